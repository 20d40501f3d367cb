package ledger

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/workload"
)

// Defaults and limits of the history.
const (
	DefaultHistoryEntries = 10_000
	DefaultHistoryBytes   = 64 << 20
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

// HistoryEntry is one call that changed the ledger, or that was refused. Entries are in the
// order of the commits.
type HistoryEntry struct {
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
	Steps []HistoryStep `json:"steps,omitempty"`
	// Omitted is the number of refusals and changes of this caller since the previous entry that were not
	// recorded.
	Omitted uint64 `json:"omitted,omitempty"`
	// Request is what is needed to make the call again: a HistoryRequest. RequestBytes is its
	// size if it is too large to be kept.
	Request      json.RawMessage `json:"request,omitempty"`
	RequestBytes int             `json:"request_bytes,omitempty"`
	// Basis is what a verdict with a request was decided on; nil if that is not known.
	Basis *HistoryBasis `json:"basis,omitempty"`
	// Before has the earlier values of what the call changed.
	Before *HistoryBefore `json:"before,omitempty"`
	// Part means that the change was too large for one entry: the entries before this one, or
	// after it, that have the same revision are of the same call.
	Part bool `json:"part,omitempty"`
	// Begins means that the state before this entry cannot be computed.
	Begins bool `json:"begins,omitempty"`
}

// Decided returns the time of the decision according to the clock. The times of entries are in no order after
// the clock was set back.
func (e *HistoryEntry) Decided() time.Time {
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

// HistoryStep is the time that a step of an admission took, in nanoseconds; the sum, if it
// was repeated.
type HistoryStep struct {
	Step     string
	Provider string
	Took     time.Duration
}

// MarshalText spells a step as "81542 hints cpu": its nanoseconds, name and provider. With a
// field for each, the steps would be half of an entry.
func (s HistoryStep) MarshalText() ([]byte, error) {
	text := append(strconv.AppendInt(nil, int64(s.Took), 10), ' ')
	text = append(text, s.Step...)
	if s.Provider != "" {
		text = append(append(text, ' '), s.Provider...)
	}
	return text, nil
}

// UnmarshalText reads what MarshalText spells.
func (s *HistoryStep) UnmarshalText(text []byte) error {
	took, rest, _ := strings.Cut(string(text), " ")
	n, err := strconv.ParseInt(took, 10, 64)
	if err != nil {
		return errdefs.Corruptf("step %.40q: %w", text, err)
	}
	s.Took = time.Duration(n)
	s.Step, s.Provider, _ = strings.Cut(rest, " ")
	return nil
}

// HistoryRequest is a recorded request. The fields of other calls are empty.
type HistoryRequest struct {
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
	// Policy that was set, in the spelling of the configuration.
	Policy json.RawMessage `json:"policy,omitempty"`
}

// HistoryBefore has the earlier values of what a commit changed.
type HistoryBefore struct {
	Pods     []PodBefore     `json:"pods,omitempty"`
	Unknown  []UnknownBefore `json:"unknown,omitempty"`
	Bindings []BindingBefore `json:"bindings,omitempty"`
	// Rules is nil unless the rules or the override changed.
	Rules *RulesBefore `json:"rules,omitempty"`
}

// PodBefore is the earlier record of a pod, without the answers of plugins; Record is nil if
// the pod was not admitted.
type PodBefore struct {
	UID    string  `json:"uid"`
	Record *Pod    `json:"record,omitempty"`
	Claims []Claim `json:"claims,omitempty"`
}

// UnknownBefore is what was known of a running pod; nil if it was not recorded.
type UnknownBefore struct {
	UID string          `json:"uid"`
	Pod *UnknownLivePod `json:"pod,omitempty"`
}

// BindingBefore is an earlier binding; nil if there was none.
type BindingBefore struct {
	ID      string   `json:"id"`
	Binding *Binding `json:"binding,omitempty"`
}

// RulesBefore are earlier rules.
type RulesBefore struct {
	Machine string `json:"machine,omitempty"` // fingerprint
	// Topology is the earlier machine, as its difference from the later one; nil for the same
	// machine, and where it is not known.
	Topology *machine.Difference `json:"topology,omitempty"`

	Config      string       `json:"config,omitempty"` // digest
	Reservation Reservation  `json:"reservation"`
	Memory      []NodeMemory `json:"memory,omitempty"`
	Claims      ClaimRules   `json:"claims,omitzero"`
	Override    *Override    `json:"override,omitempty"`
}

// ClaimRules is the part of the rules about resource claims.
type ClaimRules struct {
	CPUs    cpuset.Set   `json:"cpus,omitzero"`
	Memory  []NodeMemory `json:"memory,omitempty"`
	OnePool bool         `json:"one_pool,omitempty"`
}

// IsZero returns whether resource claims may have nothing.
func (c ClaimRules) IsZero() bool { return c.equal(ClaimRules{}) }

func (c ClaimRules) equal(o ClaimRules) bool {
	return c.CPUs == o.CPUs && slices.Equal(c.Memory, o.Memory) && c.OnePool == o.OnePool
}

func (r Rules) claims() ClaimRules {
	return ClaimRules{CPUs: r.ClaimCPUs, Memory: r.ClaimMemory, OnePool: r.OnePool}
}

// Reservation is the part of the rules about CPUs.
type Reservation struct {
	Reserved cpuset.Set `json:"reserved"`
	Strict   bool       `json:"strict,omitempty"`
	// Offline is empty. Earlier berths, whose machine was that of their start, had the CPUs here
	// that went offline later.
	Offline cpuset.Set `json:"offline"`
}

func (r Rules) reservation() Reservation {
	return Reservation{Reserved: r.ReservedCPUs, Strict: r.StrictReservation}
}

// Call describes a call for the history. A context carries it to the commit of the call's
// changes. Its fields are set before the call is carried out; the steps, and what it is decided
// on, may be added at any time.
type Call struct {
	Name   string
	Time   time.Time
	Caller *Caller
	// Request is nil if there is nothing to make again.
	Request *HistoryRequest

	mu      sync.Mutex
	steps   []HistoryStep // guarded by mu
	decided *decided      // guarded by mu; nil as long as nothing was decided
}

type callKey struct{}

// WithCall returns a context whose commits are recorded as changes of the call.
func WithCall(ctx context.Context, c *Call) context.Context {
	return context.WithValue(ctx, callKey{}, c)
}

// CallOf returns the call of a context; nil if it has none.
func CallOf(ctx context.Context) *Call {
	c, _ := ctx.Value(callKey{}).(*Call)
	return c
}

// maxSteps limits the different steps of a call that are kept.
const maxSteps = 64

// Step adds the time of a step.
func (c *Call) Step(step, provider string, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.steps, func(s HistoryStep) bool { return s.Step == step && s.Provider == provider })
	switch {
	case i >= 0:
		c.steps[i].Took += took
	case len(c.steps) < maxSteps:
		c.steps = append(c.steps, HistoryStep{step, provider, took})
	}
}

// startCall is the Call of a start of berthd.
const startCall = "Start"

// deferredVerdict is the verdict of a call that may be made again.
const deferredVerdict = "deferred"

// refused returns whether the entry is that of a refusal, which changed nothing.
func (e *HistoryEntry) refused() bool { return e.Verdict == "rejected" || e.Verdict == deferredVerdict }

// Concerns returns whether an entry is about a pod, alone or with others.
func (e *HistoryEntry) Concerns(uid string) bool {
	if e.Pod == uid || e.Before == nil {
		return e.Pod == uid
	}
	return slices.ContainsFunc(e.Before.Pods, func(p PodBefore) bool { return p.UID == uid }) ||
		slices.ContainsFunc(e.Before.Unknown, func(u UnknownBefore) bool { return u.UID == uid }) ||
		slices.ContainsFunc(e.Before.Bindings, func(b BindingBefore) bool { return b.Binding != nil && b.Binding.Owner.Pod == uid })
}

// entry begins the entry of a call; of berthd itself, if the context has none. history.mu must
// be held.
func (l *Ledger) entry(ctx context.Context) *HistoryEntry {
	e := &HistoryEntry{}
	e.Time, e.Clock = l.history.date()
	c := CallOf(ctx)
	if c == nil {
		return e
	}
	e.Took = max(0, l.history.clock().Sub(c.Time))
	e.Call, e.Caller = c.Name, c.Caller
	c.mu.Lock()
	e.Steps = slices.Clone(c.steps)
	c.mu.Unlock()
	return e
}

// request adds what is needed to make the call again.
func (e *HistoryEntry) request(c *Call) error {
	if c == nil || c.Request == nil {
		return nil
	}
	text, err := json.Marshal(c.Request)
	if err != nil {
		return err
	}
	if len(text) > longestRequest {
		e.RequestBytes = len(text)
		return nil
	}
	e.Request = text
	if e.Verdict != deferredVerdict { // which is not decided again
		e.Basis, err = c.basis()
	}
	return err
}

// historyNumber reads the key of a block.
func historyNumber(key string) (uint64, error) {
	number, err := strconv.ParseUint(key, 10, 64)
	if err == nil {
		err = matches(key, traceKey(number))
	}
	if err != nil {
		return 0, errdefs.Corruptf("history/%.40q is no number of an entry: %w", key, err)
	}
	return number, nil
}

// changed completes the entry of a commit; false if the commit changes nothing that the
// history has.
func (e *HistoryEntry) changed(old, next *View) bool {
	before, pods := &HistoryBefore{}, map[string]bool{}
	for _, c := range Changes(old, next) {
		switch c.Kind {
		case PodAdded, PodRemoved, PodChanged:
			pods[c.Pod.UID()] = true
		case Bound, Unbound:
			pods[c.Binding.Owner.Pod] = true
		}
		switch c.Kind {
		case PodAdded:
			before.Pods = append(before.Pods, PodBefore{UID: c.Pod.UID()})
			e.about(c.Pod)
		case PodRemoved:
			before.Pods = append(before.Pods, podBefore(c.Pod))
			e.about(c.Pod)
		case PodChanged:
			before.Pods = append(before.Pods, podBefore(c.Before))
			e.about(c.Pod)
		case Unbound:
			b := c.Binding
			before.Bindings = append(before.Bindings, BindingBefore{ID: b.ID, Binding: &b})
			e.bound(old, b.Owner)
		case Bound:
			// A replaced binding was unbound first, and has its earlier value already.
			if _, replaced := old.Binding(c.Binding.ID); !replaced {
				before.Bindings = append(before.Bindings, BindingBefore{ID: c.Binding.ID})
			}
			e.bound(next, c.Binding.Owner)
		}
	}
	before.unknown(old, next)
	for _, u := range before.Unknown {
		pods[u.UID] = true
	}
	switch {
	case len(pods) > 1: // it is about none of them alone
		e.Pod, e.Namespace, e.Name, e.Container, e.Digest, e.AdmissionID = "", "", "", "", "", ""
	case e.Pod == "" && len(before.Unknown) == 1:
		e.Pod = before.Unknown[0].UID
	}
	if !old.rules.same(next.rules) || old.override != next.override {
		before.Rules = rulesBefore(old)
		if old.rules.Machine != next.rules.Machine {
			before.Rules.Topology = machine.DifferenceOf(old.rules.Machine, next.rules.Machine)
		}
	}
	if len(before.Pods)+len(before.Unknown)+len(before.Bindings) == 0 && before.Rules == nil {
		return false
	}
	e.Before, e.Revision = before, next.Revision()
	return true
}

// about names the pod of an entry.
func (e *HistoryEntry) about(p *Pod) {
	e.Pod, e.Namespace, e.Name = p.UID(), p.Pod.Namespace, p.Pod.Name
	e.Digest, e.AdmissionID = p.Digest, p.AdmissionID
}

// bound names the container of an entry.
func (e *HistoryEntry) bound(v *View, owner Owner) {
	e.Pod, e.Container = owner.Pod, owner.Container
	if p, ok := v.Pod(owner.Pod); ok {
		e.Namespace, e.Name = p.Pod.Namespace, p.Pod.Name
	}
}

// podBefore returns an earlier record, without what may be secret: answers of plugins and
// providers, and annotations that berth does not use.
func podBefore(p *Pod) PodBefore {
	record := *p
	record.Pod = *Recorded(&p.Pod)
	record.Acknowledged = withoutAnswers(p.Acknowledged)
	return PodBefore{UID: p.UID(), Record: &record, Claims: withoutAnswers(p.Claims)}
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

// withoutAnswers returns claims without the answers of plugins and providers.
func withoutAnswers(claims []Claim) []Claim {
	out := slices.Clone(claims)
	for i := range out {
		out[i].Opaque = nil
		if d := out[i].Devices; d != nil {
			out[i].Devices = &Devices{Devices: d.Devices, Answer: d.Answer}
		}
	}
	return out
}

func (b *HistoryBefore) unknown(old, next *View) {
	if old.unknown.Same(next.unknown) {
		return
	}
	for u := range old.UnknownLivePods() {
		if now, ok := next.unknown.Get(u.UID); !ok || now != mustGet(old, u.UID) {
			u.Claims = withoutAnswers(u.Claims)
			b.Unknown = append(b.Unknown, UnknownBefore{UID: u.UID, Pod: &u})
		}
	}
	for u := range next.UnknownLivePods() {
		if !old.UnknownLive(u.UID) {
			b.Unknown = append(b.Unknown, UnknownBefore{UID: u.UID})
		}
	}
}

func mustGet(v *View, uid string) *UnknownLivePod {
	u, _ := v.unknown.Get(uid)
	return u
}

func rulesBefore(v *View) *RulesBefore {
	return &RulesBefore{
		Machine: v.rules.Machine.Fingerprint(), Config: v.rules.ConfigDigest,
		Reservation: v.rules.reservation(), Memory: v.rules.Memory, Claims: v.rules.claims(), Override: v.override,
	}
}

// on returns the earlier rules, on the machine of that time.
func (r *RulesBefore) on(m *machine.Topology) Rules {
	return Rules{
		Machine: m, ReservedCPUs: r.Reservation.Reserved, StrictReservation: r.Reservation.Strict, Memory: r.Memory,
		ClaimCPUs: r.Claims.CPUs, ClaimMemory: r.Claims.Memory, OnePool: r.Claims.OnePool, ConfigDigest: r.Config,
	}
}

// same returns whether these are the same rules and the same override, on a machine with the same fingerprint.
func (r *RulesBefore) same(o *RulesBefore) bool {
	return r.Machine == o.Machine && r.on(nil).same(o.on(nil)) && r.Override == o.Override
}
