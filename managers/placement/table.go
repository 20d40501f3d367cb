package placement

import "strings"

// Phase is the phase of a container.
type Phase string

// The phases, in the order of the table's columns.
const (
	Planned  Phase = "planned"  // no call has allowed its start
	Starting Phase = "starting" // PreStartContainer or CreateContainer has returned; no source shows the container yet
	Created  Phase = "created"  // shown without a process; a start may be in progress
	Idle     Phase = "idle"     // without a process, and no start is in progress
	Running  Phase = "running"  // it has a process
	Paused   Phase = "paused"   // it has a process, which is frozen
	Stopping Phase = "stopping" // it is being stopped or removed; its processes may still run
	Exited   Phase = "exited"   // it has no process and will not get one
	Unknown  Phase = "unknown"  // the last list lacks it although it was there; or no source has been read yet
)

// Phases returns all phases, in the order of the table's columns.
func Phases() []Phase {
	return []Phase{Planned, Starting, Created, Idle, Running, Paused, Stopping, Exited, Unknown}
}

// EventKind is the kind of an event.
type EventKind string

// The events, in the order of the table's rows.
const (
	Plan         EventKind = "plan"          // the ledger has the container, or its start is requested
	Restore      EventKind = "restore"       // the runtime stored it before this tracker began
	Allow        EventKind = "allow"         // the call that allows its start has returned
	Withdraw     EventKind = "withdraw"      // that answer was not sent after all, or the container's removal has failed
	Sent         EventKind = "sent"          // a write of CPUs is sent; without an answer it may be carried out now, later or never
	Confirmed    EventKind = "confirmed"     // that write was answered
	Refused      EventKind = "refused"       // that write was certainly not carried out
	ShownCreated EventKind = "shown-created" // a list or a stream shows it without a process
	ShownRunning EventKind = "shown-running" // a list or a stream shows it with a process
	ShownPaused  EventKind = "shown-paused"  // a list or a stream shows it frozen
	Ended        EventKind = "ended"         // a list, a stream or the agent reports its end
	Unlisted     EventKind = "unlisted"      // a complete list lacks it
	KernelRuns   EventKind = "kernel-runs"   // the kernel shows processes of it, with their CPUs
	KernelEmpty  EventKind = "kernel-empty"  // the kernel shows no process of it
	Stop         EventKind = "stop"          // it is about to be stopped or removed
	StartOverdue EventKind = "start-overdue" // StartTime is over
)

// transitions is the table of the package comment: one row for each event, one column
// for each phase.
const transitions = `
event           planned    starting   created    idle       running    paused     stopping   exited     unknown
plan            .          .          .          planned0   .          .          .          planned0   .
restore         .          .          .          .          .          .          .          created*   .
allow           starting   starting   created    starting   running    paused     starting   starting   starting
withdraw        .          planned0   planned0   .          .          .          starting   .          .
sent            .+         .+         .+         .+         .+         .+         .+         .          .+
confirmed       .=         .~         .~         .=         .=         .=         .=         .          .~
refused         .-         .-         .-         .-         .-         .-         .-         .          .-
shown-created   .          created    .          .          .          .          .          created*   created
shown-running   running*?  running?   running?   running?   .?         running?   .?         running*?  running?
shown-paused    paused*?   paused?    paused?    paused?    paused?    .?         .?         paused*?   paused?
ended           exited0    exited0    exited0    exited0    exited0    exited0    exited0    .          exited0
unlisted        .          .          unknown!   unknown!   unknown!   unknown!   unknown!   .          .?
kernel-runs     created+   .+         .+         created+   .=         .=         .=         .          .=
kernel-empty    .          .          .          .          idle       idle       exited0    .          exited0
stop            .          stopping   stopping   stopping   stopping   stopping   .          .          stopping
start-overdue   .          idle       idle       .          .          .          .          .          .
`

// effect is the effect of an event on the possible CPUs of a container.
type effect byte

const (
	keep    effect = 0
	add     effect = '+' // the set of the event is added
	become  effect = '=' // they become that set and the sets in flight
	arrive  effect = '~' // the set counts as assigned; sets that may have been read before stay
	retract effect = '-' // the set is no longer in flight
	none    effect = '0'
	all     effect = '*'
)

// cell is the effect of an event on a container in a phase.
type cell struct {
	next Phase
	do   effect
	// look requests the kernel's view of the container, list another list.
	look, list bool
}

var table = parse(transitions)

// parse parses the table.
func parse(text string) map[EventKind]map[Phase]cell {
	out := map[EventKind]map[Phase]cell{}
	lines := strings.Split(strings.TrimSpace(text), "\n")
	phases := strings.Fields(lines[0])[1:]
	for _, line := range lines[1:] {
		fields := strings.Fields(line)
		row := make(map[Phase]cell, len(phases))
		for i, field := range fields[1:] {
			row[Phase(phases[i])] = parseCell(Phase(phases[i]), field)
		}
		out[EventKind(fields[0])] = row
	}
	return out
}

func parseCell(from Phase, text string) cell {
	name := strings.TrimRight(text, "+=~-0*?!")
	c := cell{next: Phase(name)}
	if name == "." {
		c.next = from
	}
	for _, mark := range text[len(name):] {
		switch mark {
		case '?':
			c.look = true
		case '!':
			c.list = true
		default:
			c.do = effect(mark)
		}
	}
	return c
}
