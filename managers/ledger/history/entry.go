package history

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/workload"
)

// Defaults and limits of the history.
const (
	DefaultEntries = 10_000
	DefaultBytes   = 64 << 20
	// RefusalsPerSecond limits the recorded refusals of a user in each second.
	RefusalsPerSecond = 10

	// longestRequest limits a recorded request, and longestMessage its message. largestEntry
	// limits a whole entry, and mostParts a change that has several.
	longestRequest = 64 << 10
	longestMessage = 1 << 10
	largestEntry   = 1 << 20
	mostParts      = 32 << 20
	// heldRefusals limits the refusals that wait for a commit, as largestEntry limits the size of
	// their requests, and countedUsers the users whose entries are counted at the same time.
	heldRefusals = 256
	countedUsers = 256
)

// Entry is one call that changed the ledger, or that was refused. Entries are in the
// order of the commits.
type Entry struct {
	// Number of the entry. A number is missing where changes were not recorded because their users had made too many, or where something is
	// damaged.
	Number uint64 `json:"-"`
	// Time of the decision, right before it was written, in milliseconds. It is never before that of the
	// entry before. Clock is what the clock had, if the clock was behind that entry; see Decided.
	Time  time.Time `json:"time"`
	Clock time.Time `json:"clock,omitzero"`
	// Revision after the change; of a refusal, that of the view it was decided on.
	Revision uint64 `json:"revision"`
	// Call is the method, such as Admit. Start is a start of berthd; empty is a change that
	// berthd made by itself.
	Call string `json:"call,omitempty"`
	// Caller is nil if berthd made the change by itself, or if the caller is unknown.
	Caller *Caller `json:"caller,omitempty"`
	// Pod and Container that the call is about; empty if it is about none or several, which
	// Before then has.
	Pod       string `json:"pod,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	Container string `json:"container,omitempty"`
	// Verdict is admitted, rejected or deferred for calls with a verdict.
	Verdict     string `json:"verdict,omitempty"`
	Reason      string `json:"reason,omitempty"`
	Message     string `json:"message,omitempty"`
	AdmissionID string `json:"admission_id,omitempty"`
	// Digest is that of the requested pod.
	Digest string `json:"digest,omitempty"`
	// Took is the time from the call's arrival to the entry, in nanoseconds; Steps are parts
	// of it.
	Took  time.Duration `json:"took,omitempty"`
	Steps Steps         `json:"steps,omitempty"`
	// Omitted is the number of refusals and changes of this caller since the previous entry that were not
	// recorded.
	Omitted uint64 `json:"omitted,omitempty"`
	// Request is what is needed to make the call again: a Request. RequestBytes is its
	// size if it is too large to be kept.
	Request      json.RawMessage `json:"request,omitempty"`
	RequestBytes int             `json:"request_bytes,omitempty"`
	// Basis is what a verdict with a request was decided on; nil if that is not known.
	Basis *Basis `json:"basis,omitempty"`
	// Before has the earlier values of what the call changed.
	Before *Before `json:"before,omitempty"`
	// Part means that the change was too large for one entry: the entries before this one, or
	// after it, that have the same revision are of the same call.
	Part bool `json:"part,omitempty"`
	// Begins means that the state before this entry cannot be computed.
	Begins bool `json:"begins,omitempty"`
}

// Decided returns the time of the decision according to the clock. The times of entries are in no order after
// the clock was set back.
func (e *Entry) Decided() time.Time {
	if !e.Clock.IsZero() {
		return e.Clock
	}
	return e.Time
}

// Caller is the process that made a call, as of the moment of its connection.
type Caller struct {
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`
	PID int32  `json:"pid,omitempty"`
	// Name is the kernel's name of the process (comm).
	Name string `json:"name,omitempty"`
}

// Step is the time that a step of an admission took, in nanoseconds; the sum, if it
// was repeated.
type Step struct {
	Step     string
	Provider string
	Took     time.Duration
}

// longestTook is the length of the longest number, with its sign.
const longestTook = 20

// appendTo writes a step as "81542 hints cpu": its nanoseconds, name and provider. With a
// field for each, the steps would be half of an entry.
func (s Step) appendTo(text []byte) []byte {
	text = append(strconv.AppendInt(text, int64(s.Took), 10), ' ')
	text = append(text, s.Step...)
	if s.Provider != "" {
		text = append(append(text, ' '), s.Provider...)
	}
	return text
}

// UnmarshalText reads what Steps write.
func (s *Step) UnmarshalText(text []byte) error {
	took, rest, _ := strings.Cut(string(text), " ")
	n, err := strconv.ParseInt(took, 10, 64)
	if err != nil {
		return errdefs.Corruptf("step %.40q: %w", text, err)
	}
	s.Took = time.Duration(n)
	s.Step, s.Provider, _ = strings.Cut(rest, " ")
	return nil
}

// Steps are the steps of a call.
type Steps []Step

// MarshalJSON encodes the steps as a list of texts, in one piece: every change has about ten.
func (all Steps) MarshalJSON() ([]byte, error) {
	size := len("[]")
	for _, s := range all {
		size += longestTook + len(s.Step) + len(s.Provider) + len(`"  ",`)
	}
	out := append(make([]byte, 0, size), '[')
	for i, s := range all {
		if i > 0 {
			out = append(out, ',')
		}
		at := len(out)
		out = s.appendTo(append(out, '"'))
		if slices.ContainsFunc(out[at+1:], unusual) { // in the name of an external provider
			text, err := json.Marshal(string(out[at+1:]))
			if err != nil {
				return nil, err
			}
			out = append(out[:at], text...)
		} else {
			out = append(out, '"')
		}
	}
	return append(out, ']'), nil
}

// unusual returns whether a byte of a JSON string is escaped.
func unusual(b byte) bool { return b < ' ' || b > '~' || b == '"' || b == '\\' }

// Request is a recorded request. The fields of other calls are empty.
type Request struct {
	// Pod to admit, as its caller sent it, without annotations that berth does not use.
	Pod   *workload.Pod `json:"pod,omitempty"`
	Owner string        `json:"owner,omitempty"`
	// Running is whether the caller stated allocations of running containers, so that nothing
	// was planned.
	Running bool `json:"running,omitempty"`
	// Changes of a resize, with its limits of disturbance.
	Changes       []workload.Change `json:"changes,omitempty"`
	QoS           workload.QoSClass `json:"qos,omitempty"`
	MaxDisruption int               `json:"max_disruption,omitempty"`
	MaxMove       int               `json:"max_move_disruption,omitempty"`
	// Policy that was set, as in the configuration.
	Policy json.RawMessage `json:"policy,omitempty"`
}

// Before has the earlier values of what a commit changed.
type Before struct {
	Pods     []Pod     `json:"pods,omitempty"`
	Unknown  []Unknown `json:"unknown,omitempty"`
	Bindings []Binding `json:"bindings,omitempty"`
	// Rules is nil unless the rules or the override changed.
	Rules *ledger.PastRules `json:"rules,omitempty"`
}

// Pod is the earlier record of a pod, without the answers of plugins; Record is nil if
// the pod was not admitted.
type Pod struct {
	UID    string         `json:"uid"`
	Record *ledger.Pod    `json:"record,omitempty"`
	Claims []ledger.Claim `json:"claims,omitempty"`
}

// Unknown holds what was known of a running pod; nil if it was not recorded.
type Unknown struct {
	UID string                 `json:"uid"`
	Pod *ledger.UnknownLivePod `json:"pod,omitempty"`
}

// Binding is an earlier binding; nil if there was none.
type Binding struct {
	ID      string          `json:"id"`
	Binding *ledger.Binding `json:"binding,omitempty"`
}

// Basis holds what a verdict was decided on: a state, and what other calls in flight had reserved on it.
type Basis struct {
	// Revision of the state.
	Revision uint64 `json:"revision"`
	// Entry is the number of the last entry that led to the state.
	Entry uint64 `json:"entry"`
	// Reserved is a list of Pod: the pods that were being admitted or resized, with what was reserved for
	// them. They counted as if the state had them.
	Reserved json.RawMessage `json:"reserved,omitempty"`
	// Omitted is the number of those pods if they were too large to be recorded.
	Omitted int `json:"omitted,omitempty"`
}

// startCall is the Call of a start of berthd.
const startCall = "Start"

// deferredVerdict is the verdict of a call that may be made again.
const deferredVerdict = "deferred"

// refused returns whether the entry is that of a refusal, which changed nothing.
func (e *Entry) refused() bool { return e.Verdict == "rejected" || e.Verdict == deferredVerdict }

// Concerns returns whether an entry is about a pod, alone or with others.
func (e *Entry) Concerns(uid string) bool {
	if e.Pod == uid || e.Before == nil {
		return e.Pod == uid
	}
	return slices.ContainsFunc(e.Before.Pods, func(p Pod) bool { return p.UID == uid }) ||
		slices.ContainsFunc(e.Before.Unknown, func(u Unknown) bool { return u.UID == uid }) ||
		slices.ContainsFunc(e.Before.Bindings, func(b Binding) bool { return b.Binding != nil && b.Binding.Owner.Pod == uid })
}

// entry begins the entry of a call; of berthd itself, if the context has none. mu must be held.
func (h *History) entry(ctx context.Context) *Entry {
	e := &Entry{}
	e.Time, e.Clock = h.date()
	c := CallOf(ctx)
	if c == nil {
		return e
	}
	e.Took = max(0, h.clock().Sub(c.Time))
	e.Call, e.Caller = c.Name, c.Caller
	c.mu.Lock()
	e.Steps = slices.Clone(c.steps)
	c.mu.Unlock()
	return e
}

// changed completes the entry of a commit; false if the commit changes nothing that the
// history has.
func (e *Entry) changed(old, next *ledger.View) bool {
	before, pods := &Before{}, map[string]bool{}
	for _, c := range ledger.Changes(old, next) {
		switch c.Kind {
		case ledger.PodAdded, ledger.PodRemoved, ledger.PodChanged:
			pods[c.Pod.UID()] = true
		case ledger.Bound, ledger.Unbound:
			pods[c.Binding.Owner.Pod] = true
		}
		switch c.Kind {
		case ledger.PodAdded:
			before.Pods = append(before.Pods, Pod{UID: c.Pod.UID()})
			e.about(c.Pod)
		case ledger.PodRemoved:
			before.Pods = append(before.Pods, podOf(c.Pod))
			e.about(c.Pod)
		case ledger.PodChanged:
			before.Pods = append(before.Pods, podOf(c.Before))
			e.about(c.Pod)
		case ledger.Unbound:
			b := c.Binding
			before.Bindings = append(before.Bindings, Binding{ID: b.ID, Binding: &b})
			e.bound(old, b.Owner)
		case ledger.Bound:
			// A replaced binding was unbound first, and has its earlier value already.
			if _, replaced := old.Binding(c.Binding.ID); !replaced {
				before.Bindings = append(before.Bindings, Binding{ID: c.Binding.ID})
			}
			e.bound(next, c.Binding.Owner)
		}
	}
	for uid, was := range ledger.FormerUnknown(old, next) {
		if was != nil {
			before.Unknown = append(before.Unknown, unknownOf(*was))
		} else {
			before.Unknown = append(before.Unknown, Unknown{UID: uid})
		}
		pods[uid] = true
	}
	switch {
	case len(pods) > 1: // it is about none of them alone
		e.Pod, e.Namespace, e.Name, e.Container, e.Digest, e.AdmissionID = "", "", "", "", "", ""
	case e.Pod == "" && len(before.Unknown) == 1:
		e.Pod = before.Unknown[0].UID
	}
	if !old.Rules().Equal(next.Rules()) || old.Override() != next.Override() {
		before.Rules = old.PastRules()
		if old.Machine() != next.Machine() {
			before.Rules.Topology = machine.DifferenceOf(old.Machine(), next.Machine())
		}
	}
	if len(before.Pods)+len(before.Unknown)+len(before.Bindings) == 0 && before.Rules == nil {
		return false
	}
	e.Before, e.Revision = before, next.Revision()
	return true
}

// about names the pod of an entry.
func (e *Entry) about(p *ledger.Pod) {
	e.Pod, e.Namespace, e.Name = p.UID(), p.Pod.Namespace, p.Pod.Name
	e.Digest, e.AdmissionID = p.Digest, p.AdmissionID
}

// bound names the container of an entry.
func (e *Entry) bound(v *ledger.View, owner ledger.Owner) {
	e.Pod, e.Container = owner.Pod, owner.Container
	if p, ok := v.Pod(owner.Pod); ok {
		e.Namespace, e.Name = p.Pod.Namespace, p.Pod.Name
	}
}

// podOf returns an earlier record, without what may be secret: answers of plugins and
// providers, and annotations that berth does not use.
func podOf(p *ledger.Pod) Pod {
	record := *p
	record.Pod = *Recorded(&p.Pod)
	record.Acknowledged = withoutAnswers(p.Acknowledged)
	return Pod{UID: p.UID(), Record: &record, Claims: withoutAnswers(p.Claims)}
}

// Recorded returns a pod as the history has it: without annotations that berth does not use.
func Recorded(p *workload.Pod) *workload.Pod {
	out := *p
	out.Annotations = nil
	for name, value := range p.Annotations {
		if slices.Contains(workload.UsedAnnotations, name) {
			if out.Annotations == nil {
				out.Annotations = map[string]string{}
			}
			out.Annotations[name] = value
		}
	}
	return &out
}

// unknownOf is podOf for an unknown living pod.
func unknownOf(u ledger.UnknownLivePod) Unknown {
	u.Claims = withoutAnswers(u.Claims)
	return Unknown{UID: u.UID, Pod: &u}
}

// withoutAnswers returns claims without the answers of plugins and providers.
func withoutAnswers(claims []ledger.Claim) []ledger.Claim {
	out := slices.Clone(claims)
	for i := range out {
		out[i].Opaque = nil
		if d := out[i].Devices; d != nil {
			out[i].Devices = &ledger.Devices{Devices: d.Devices, Answer: d.Answer}
		}
	}
	return out
}
