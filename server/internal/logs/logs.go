// Package logs names the lines of berthd's log that programs and people search for. Each has the
// key "event"; docs/operate.md has the table of events and their keys.
//
// # Invariants
//
//   - A name that is here is not changed: others filter by it.
package logs

// Event is the key of a line's event.
const Event = "event"

// The events.
const (
	// Verdict is a decision that is not "admitted", or that is so only in part.
	Verdict = "verdict"
	// Repair is something that berthd has put right, or is about to.
	Repair = "repair"
	// Peer is a peer that has connected or disconnected.
	Peer = "peer"
)

// What a repair is of.
const (
	Cgroup  = "cgroup"
	Ledger  = "ledger"
	Socket  = "socket"
	Records = "claim-records"
)

// Kinds of peers.
const (
	Plugin   = "plugin"
	Provider = "provider"
	Agent    = "agent"
)

// What a peer did.
const (
	came = "came"
	gone = "gone"
)

// Repaired gives the keys of a repair.
func Repaired(object string, more ...any) []any {
	return append([]any{Event, Repair, "object", object}, more...)
}

// Came gives the keys of a peer that came.
func Came(kind string, more ...any) []any {
	return append([]any{Event, Peer, "kind", kind, "state", came}, more...)
}

// Gone gives the keys of a peer that has gone.
func Gone(kind string, more ...any) []any {
	return append([]any{Event, Peer, "kind", kind, "state", gone}, more...)
}
