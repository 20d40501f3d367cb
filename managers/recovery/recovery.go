package recovery

import (
	"maps"
	"slices"
	"time"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/claimrecord"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// Record is the state of a claim record.
type Record int

// The states of a claim record.
const (
	Missing Record = iota
	Damaged
	Whole
)

// Processes is the state of a pod's processes.
type Processes int

// What of a pod runs.
const (
	Gone Processes = iota
	Empty
	Running
	Unseen
)

// Living reports whether processes run, or may.
func (p Processes) Living() bool { return p == Running || p == Unseen }

// Container is a container as its cgroup shows it.
type Container struct {
	// Name is the last component of its cgroup's name.
	Name string
	CPUs cpuset.Set
	Mems numa.Mask
	// MemoryBytes is its limit, or its use without a limit.
	MemoryBytes uint64
}

// Observation is the observed state of a pod.
type Observation struct {
	UID string
	// QoS is the class of the pod's cgroup; empty if unknown.
	QoS    workload.QoSClass
	Record Record
	// Claims is the claim record, if it is whole.
	Claims    *claimrecord.Record
	Processes Processes
	// Containers that hold processes.
	Containers []Container
}

// Input is all that a decision depends on.
type Input struct {
	View   *ledger.View
	Report journal.Report
	// Observed pods; each uid once.
	Observed []Observation
	// BootID of this boot.
	BootID string
	// Acknowledged is the newest acknowledged commit; zero if unknown.
	Acknowledged Commit
	// Unseen means that processes cannot be observed, because the cgroups are simulated.
	Unseen bool
	Now    time.Time
}

// Commit names a commit of the ledger. Revisions grow from epoch to epoch.
type Commit struct {
	Epoch ledger.EpochID
	// Revision is zero if unknown.
	Revision uint64
}

// Case names a row of the table in the package comment.
type Case string

// The cases.
const (
	Agrees         Case = "ledger and claim record agree"
	LedgerOnly     Case = "in the ledger, no claim record"
	LedgerDamaged  Case = "in the ledger, claim record damaged"
	LedgerNewer    Case = "in the ledger, claim record older"
	LedgerDead     Case = "in the ledger, claim record of another epoch, no processes"
	NotRunning     Case = "in the ledger, no cgroup"
	Unacknowledged Case = "claim record newer, by a change that was not acknowledged"
	NotBegun       Case = "claim record newer, by a move that did not begin"
	OlderCopy      Case = "the ledger is an older copy"
	OtherEpoch     Case = "the ledger is another one than the claim record's"
	Restored       Case = "ledger record damaged, claim record whole"
	Damage         Case = "ledger record damaged, no whole claim record"
	LostCase       Case = "ledger record damaged, not running"
	Unrecorded     Case = "not in the ledger, claim record whole"
	Nothing        Case = "not in the ledger, no whole claim record"
	NeverAdmitted  Case = "not in the ledger, not running"
	Displaced      Case = "in the ledger, but a living pod has what it held"
)

// Decision is the decision about a pod.
type Decision struct {
	UID             string
	Namespace, Name string
	Case            Case
	// Living means that its processes run, or may run.
	Living bool
	// Source of the kept claims; empty if there are none.
	Source ledger.ClaimSource
	// Kept claims, in the order of records.
	Kept []ledger.Claim
	// Waits means that the pod is an unknown living pod: it keeps its claims until the agent
	// admits it.
	Waits bool
	// DevicesUnknown means that it may hold unknown devices.
	DevicesUnknown bool
	// Text has details, such as claims lost to another pod; may be empty.
	Text string
}

// Plan lists what a start does.
type Plan struct {
	// Decisions by uid.
	Decisions []Decision
	// OlderCopy means that the ledger is an older copy, so its epoch must be renewed.
	OlderCopy bool
	// Remove lists the pods whose cgroups are removed; they have no process.
	Remove []string

	put     []*ledger.Pod
	drop    []string
	unknown []ledger.UnknownLivePod
	forget  []string
	bind    []ledger.Binding
}

// Changes reports whether the plan changes the ledger.
func (p *Plan) Changes() bool {
	return len(p.put)+len(p.drop)+len(p.unknown)+len(p.forget)+len(p.bind) > 0
}

// Apply puts the plan into a draft on the view that it was made for.
func (p *Plan) Apply(d *ledger.Draft) {
	for _, uid := range p.forget {
		d.ForgetUnknownLive(uid)
	}
	for _, uid := range p.drop {
		d.RemovePod(uid)
	}
	for _, u := range p.unknown {
		d.PutUnknownLive(u)
	}
	for _, pod := range p.put {
		d.PutPod(pod)
	}
	for _, b := range p.bind {
		d.Bind(b)
	}
}

// Decide decides about every pod.
func Decide(in Input) Plan {
	r := &recovery{Input: in, pods: map[string]*pod{}}
	r.collect()
	last := in.View.Generation() + 1 // a claim record of a change that a crash prevented
	if e := in.Acknowledged.Epoch; e != 0 && e != in.View.EpochID() {
		last-- // that change would have been of the mark's epoch
	}
	r.older = in.Acknowledged.Revision > in.View.Revision() ||
		slices.ContainsFunc(in.Observed, func(o Observation) bool {
			return o.Record == Whole && r.ours(o.Claims) && o.Claims.Generation > last
		})
	shown := r.shown()
	for _, uid := range slices.Sorted(maps.Keys(r.pods)) {
		r.decide(r.pods[uid], shown[uid])
	}
	r.resolveConflicts()
	return r.plan()
}

// recovery is a decision in the making.
type recovery struct {
	Input
	pods  map[string]*pod
	older bool
}

// pod has the inputs and the decision for one pod.
type pod struct {
	uid    string
	ledger *ledger.Pod            // nil: no whole record
	lost   *journal.LostPod       // nil: not damaged
	noted  *ledger.UnknownLivePod // nil: not noted as living and unknown
	seen   Observation
	// incomplete means that the claim record has digests of claims that are not known.
	incomplete bool

	Decision
	// record, or unknown, is what the ledger has afterwards; both nil: nothing.
	record  *ledger.Pod
	unknown *ledger.UnknownLivePod
}

func (r *recovery) pod(uid string) *pod {
	p := r.pods[uid]
	if p == nil {
		p = &pod{uid: uid, seen: Observation{UID: uid}, Decision: Decision{UID: uid}}
		r.pods[uid] = p
	}
	return p
}

// collect joins the three records of each pod.
func (r *recovery) collect() {
	for p := range r.View.Pods() {
		r.pod(p.UID()).ledger = p
	}
	for i := range r.Report.Lost {
		r.pod(r.Report.Lost[i].UID).lost = &r.Report.Lost[i]
	}
	for u := range r.View.UnknownLivePods() {
		r.pod(u.UID).noted = &u
	}
	for _, o := range r.Observed {
		if o.Record == Whole && (o.Claims == nil || o.Claims.BootID != r.BootID) {
			o.Record, o.Claims = Missing, nil
		}
		r.pod(o.UID).seen = o
	}
	for _, p := range r.pods {
		p.complete()
		p.Namespace, p.Name = p.names()
		p.Living = p.seen.Processes.Living()
	}
}

// complete adds the claims of which the record has only digests, from what else is known of the pod.
func (p *pod) complete() {
	c := p.seen.Claims
	if c == nil || len(c.Unlisted) == 0 {
		return
	}
	var known []ledger.Claim
	switch {
	case p.ledger != nil:
		known = p.ledger.Claims
	case p.lost != nil:
		known = p.lost.Claims
	case p.noted != nil:
		known = p.noted.Claims
	}
	record := *c
	claims, whole := c.Completed(known)
	record.Claims, p.incomplete = claims, !whole
	p.seen.Claims = &record
}

func (p *pod) names() (namespace, name string) {
	switch {
	case p.ledger != nil:
		return p.ledger.Pod.Namespace, p.ledger.Pod.Name
	case p.seen.Claims != nil:
		return p.seen.Claims.Namespace, p.seen.Claims.Name
	case p.lost != nil && p.lost.Pod != nil:
		return p.lost.Pod.Pod.Namespace, p.lost.Pod.Pod.Name
	case p.noted != nil:
		return p.noted.Namespace, p.noted.Name
	}
	return "", ""
}

// ours reports whether a claim record was written for this life of the ledger.
func (r *recovery) ours(c *claimrecord.Record) bool { return c.Epoch == r.View.EpochID() }

// decide finds the row of the table.
func (r *recovery) decide(p *pod, shown []ledger.Claim) {
	switch {
	case p.ledger != nil:
		r.known(p)
	case p.lost != nil:
		r.damaged(p, shown)
	default:
		r.missing(p, shown)
	}
}

// known decides about a pod with an intact ledger record.
func (r *recovery) known(p *pod) {
	c := p.seen.Claims
	switch {
	case p.seen.Processes == Gone:
		p.keep(NotRunning)
	case p.seen.Record == Missing:
		p.keep(LedgerOnly)
	case p.seen.Record == Damaged:
		p.keep(LedgerDamaged)
	case c.Digest == p.ledger.Digest && !p.incomplete && ledger.SameClaims(c.Claims, p.ledger.Claims):
		p.keep(Agrees)
	case !r.ours(c) && p.Living:
		p.follow(OtherEpoch)
	case !r.ours(c):
		p.keep(LedgerDead)
	case c.Generation <= p.ledger.ChangedGeneration:
		p.keep(LedgerNewer)
	case r.older:
		p.follow(OlderCopy)
	case c.Digest == p.ledger.Digest && r.marked():
		p.keep(NotBegun)
	default:
		p.unite()
	}
}

// marked reports whether the ledger has the last commit that was marked, and none since. Then the change
// of a newer claim record was never in force: each commit is marked before the cgroups follow it. If the pod's
// specification is the same, berthd itself made the change, so no agent repeats it.
func (r *recovery) marked() bool {
	return r.Acknowledged == Commit{r.View.EpochID(), r.View.Revision()}
}

// keep leaves the ledger record as it is.
func (p *pod) keep(why Case) {
	p.Case, p.Source, p.Kept = why, ledger.FromLedger, p.ledger.Claims
	if why == Agrees {
		p.Source = ledger.FromBoth
	}
	p.record = p.ledger
}

// follow uses the claims of the claim record. The specification is known only if the ledger's is
// the same.
func (p *pod) follow(why Case) {
	c := p.seen.Claims
	p.Case = why
	if c.Digest == p.ledger.Digest && !p.incomplete {
		p.restore(*p.ledger)
		return
	}
	p.Text = "its specification is not the one in the ledger"
	if c.Digest == p.ledger.Digest {
		p.Text = "its claim record has no list of its devices"
	}
	p.wait(ledger.FromClaimRecord, c.Claims)
}

// restore makes a record with the claims of the claim record.
func (p *pod) restore(record ledger.Pod) {
	p.Source, p.Kept = ledger.FromClaimRecord, answered(p.seen.Claims.Claims, record.Claims)
	record.Claims, record.Acknowledged = p.Kept, nil
	p.record = &record
}

// answered adds known plugin responses to claims on the same devices.
func answered(claims, known []ledger.Claim) []ledger.Claim {
	claims = slices.Clone(claims)
	for i := range claims {
		c := &claims[i]
		if c.Devices == nil || c.Devices.Response != nil {
			continue
		}
		for j := range known {
			k := &known[j]
			if k.Devices != nil && k.Devices.Response != nil && k.Owner == c.Owner && k.Resource == c.Resource &&
				slices.Equal(k.Devices.IDs(), c.Devices.IDs()) {
				c.Devices = k.Devices
			}
		}
	}
	return claims
}

// unite keeps the claims of both records, because the result of an interrupted change is unknown.
func (p *pod) unite() {
	p.Case = Unacknowledged
	if p.incomplete {
		p.Text = "its claim record has no list of its devices"
		p.wait(ledger.FromBoth, Union(p.ledger.Claims, p.seen.Claims.Claims))
		return
	}
	union := Union(p.ledger.Claims, p.seen.Claims.Claims)
	record := *p.ledger
	if !ledger.SameClaims(union, p.ledger.Claims) {
		record.Claims, record.Acknowledged = union, append([]ledger.Claim{}, p.ledger.Claims...)
		p.Text = "it holds the union until the agent repeats the call or calls SyncPods"
	}
	p.Source, p.Kept, p.record = ledger.FromBoth, record.Claims, &record
	if ledger.SameClaims(union, p.ledger.Claims) {
		p.record = p.ledger
	}
}

// damaged decides about a pod with a damaged ledger record.
func (r *recovery) damaged(p *pod, shown []ledger.Claim) {
	l, c := p.lost, p.seen.Claims
	switch {
	case p.seen.Processes == Gone:
		p.Case = LostCase
	case c != nil && l.Pod != nil && !l.PerhapsStale && l.Pod.Digest == c.Digest && !p.incomplete:
		record := *l.Pod
		record.Claims = l.Claims
		p.Case = Restored
		p.restore(record)
	case c != nil:
		p.Case = Restored
		p.wait(ledger.FromClaimRecord, c.Claims)
	case !p.Living:
		p.Case = LostCase
	default:
		p.Case = Damage
		p.guess(shown)
	}
	if p.record == nil && p.unknown == nil {
		p.Text = l.Why
	}
}

// guess combines the rest of a damaged ledger record with the kernel's values. It has no digest
// of the specification: an incomplete list of claims must not be restored automatically.
func (p *pod) guess(shown []ledger.Claim) {
	var left []ledger.Claim
	if !p.lost.PerhapsStale {
		left = p.lost.Claims
	}
	// A claim that is left may be older than the record, as after the loss of a write. So exclusive CPUs
	// that the kernel shows count, too, and alone if none of the claim's is among them.
	left = slices.DeleteFunc(slices.Clone(left), func(c ledger.Claim) bool {
		return c.CPUs != nil && slices.ContainsFunc(shown, func(k ledger.Claim) bool {
			return k.CPUs != nil && k.Owner == c.Owner && !k.CPUs.Set.Overlaps(c.CPUs.Set)
		})
	})
	source := ledger.FromKernel
	if len(left) > 0 {
		source = ledger.FromLedger
		memory := func(c ledger.Claim) bool { return c.Resource == string(workload.Memory) }
		if slices.ContainsFunc(left, memory) {
			shown = slices.DeleteFunc(slices.Clone(shown), memory)
		}
	}
	p.wait(source, Union(left, shown))
	p.unknown.DevicesUnknown = p.lost.Pod == nil || p.lost.PerhapsStale || lacksDevices(p.lost.Pod, left)
	p.DevicesUnknown = p.unknown.DevicesUnknown
}

// lacksDevices reports whether a pod requests devices without a known claim.
func lacksDevices(p *ledger.Pod, claims []ledger.Claim) bool {
	for _, c := range p.Pod.Walk() {
		for name, n := range c.Limits.Sorted() {
			if name.IsExtended() && n > 0 && !slices.ContainsFunc(claims, func(have ledger.Claim) bool {
				return have.Owner.Container == c.Name && have.Resource == string(name)
			}) {
				return true
			}
		}
	}
	return false
}

// missing decides about a pod that the ledger does not contain, or only as living.
func (r *recovery) missing(p *pod, shown []ledger.Claim) {
	c := p.seen.Claims
	switch {
	case p.seen.Processes == Gone && !(r.Unseen && p.noted != nil):
		p.Case = NeverAdmitted
	case p.seen.Processes != Running && c != nil && r.ours(c) && !r.older && p.noted == nil:
		p.Case, p.Living = NeverAdmitted, false
	case p.seen.Processes == Empty && c == nil:
		p.Case = NeverAdmitted
	case c != nil:
		p.Case = Unrecorded
		p.wait(ledger.FromClaimRecord, c.Claims)
	case p.noted != nil && p.noted.Source != "":
		u := *p.noted
		p.Case, p.Source, p.Kept, p.Waits, p.DevicesUnknown, p.unknown = Nothing, u.Source, u.Claims, true, u.DevicesUnknown, &u
	case p.seen.Processes == Unseen || p.seen.Processes == Gone:
		p.Case = Nothing
		p.wait("", nil)
		p.unknown.DevicesUnknown, p.DevicesUnknown = true, true
	default:
		p.Case = Nothing
		p.wait(ledger.FromKernel, shown)
		p.unknown.DevicesUnknown, p.DevicesUnknown = true, true
	}
}

// wait makes the pod an unknown living one. Without processes it is nothing.
func (p *pod) wait(source ledger.ClaimSource, claims []ledger.Claim) {
	p.Source, p.Kept, p.Waits = source, claims, true
	p.unknown = &ledger.UnknownLivePod{
		UID: p.uid, Namespace: p.Namespace, Name: p.Name, Source: source, QoS: p.seen.QoS, Claims: claims,
		DevicesUnknown: p.incomplete,
	}
	p.DevicesUnknown = p.incomplete
	if p.noted != nil {
		p.unknown.Since = p.noted.Since
	}
	if c := p.seen.Claims; c != nil && source == ledger.FromClaimRecord {
		p.unknown.Digest, p.unknown.QoS, p.unknown.Bindings, p.unknown.OwnedBy = c.Digest, c.QoS, c.Bindings, c.OwnedBy
		p.unknown.ResourceClaim = c.ResourceClaim
	}
}

// plan turns the decisions into changes.
func (r *recovery) plan() Plan {
	out := Plan{OlderCopy: r.older}
	for _, uid := range slices.Sorted(maps.Keys(r.pods)) {
		p := r.pods[uid]
		out.Decisions = append(out.Decisions, p.Decision)
		switch {
		case p.record != nil && p.record != p.ledger:
			out.put = append(out.put, p.record)
			out.bind = append(out.bind, r.bindings(p)...)
		case p.record == nil && p.ledger != nil:
			out.drop = append(out.drop, uid)
		}
		switch {
		case p.unknown != nil:
			if p.unknown.Since.IsZero() {
				p.unknown.Since = r.Now
			}
			if p.noted == nil || !sameNote(p.noted, p.unknown) {
				out.unknown = append(out.unknown, *p.unknown)
			}
		case p.noted != nil && p.record == nil:
			out.forget = append(out.forget, uid)
		}
		if p.record == nil && p.unknown == nil && (p.seen.Processes == Empty || p.seen.Processes == Unseen) {
			out.Remove = append(out.Remove, uid)
		}
	}
	return out
}

// sameNote reports whether two notes are equal.
func sameNote(a, b *ledger.UnknownLivePod) bool {
	return a.Source == b.Source && a.Digest == b.Digest && a.QoS == b.QoS && a.DevicesUnknown == b.DevicesUnknown &&
		a.Namespace == b.Namespace && a.Name == b.Name && ledger.SameClaims(a.Claims, b.Claims) && slices.Equal(a.Bindings, b.Bindings)
}

// bindings returns a restored pod's bindings that the ledger does not contain.
func (r *recovery) bindings(p *pod) (out []ledger.Binding) {
	add := func(b ledger.Binding) {
		_, here := r.View.Binding(b.ID)
		if !here && p.record.Pod.Container(b.Owner.Container) != nil &&
			!slices.ContainsFunc(out, func(o ledger.Binding) bool { return o.ID == b.ID }) {
			out = append(out, b)
		}
	}
	if p.lost != nil {
		for _, id := range slices.Sorted(maps.Keys(p.lost.Bindings)) {
			b := p.lost.Bindings[id]
			b.ID = id
			add(b)
		}
	}
	if p.seen.Claims != nil {
		for _, b := range Bindings(p.uid, p.seen.Claims.Bindings) {
			add(b)
		}
	}
	return out
}

// Bindings makes bindings of recorded ones.
func Bindings(uid string, recorded []ledger.RecordedBinding) []ledger.Binding {
	out := make([]ledger.Binding, 0, len(recorded))
	for _, b := range recorded {
		out = append(out, ledger.Binding{
			ID: b.ID, Owner: ledger.Owner{Pod: uid, Container: b.Container}, CgroupPath: b.CgroupPath, Own: b.Own, Sequence: 1,
		})
	}
	return out
}
