package live

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/transition"
	"github.com/berthd/berth/managers/workload"
)

// ResizeRequest requests other amounts of cpu and memory for an admitted pod.
type ResizeRequest struct {
	UID string
	// Owner is the pod's agent; empty means ledger.DefaultOwner.
	Owner string
	// Changes are the amounts that change. A pod without these amounts is unchanged.
	Changes []workload.Change
	// AdmissionID names the attempt; it may be empty.
	AdmissionID string
	// IfRevision is the revision at which the caller has read the pod. If the pod has changed
	// since, the resize fails with class Conflict. 0 means no condition.
	IfRevision uint64
	// MaxDisruption is the limit of the disturbance. A resize above it is rejected.
	MaxDisruption Disruption
	// MaxMove is the limit of the disturbance by a move to other NUMA nodes. A resize that needs a
	// larger one is refused as if there was none.
	MaxMove Disruption
	// QoS is the pod's class as its agent has it; empty means that it is computed.
	QoS    workload.QoSClass
	DryRun bool
}

// Resized is the result of a resize.
type Resized struct {
	// Verdict: an admitted resize is complete, a rejected one is infeasible on this node, a
	// deferred one may be repeated later. Unless it is admitted, the pod is unchanged.
	admission.Verdict
	// Restarts lists the containers that the caller has to restart for the change to take
	// effect, according to their resize policy.
	Restarts []string
	// Disruption is how much an admitted resize disturbs the containers.
	Disruption Disruption
	// Plan has the steps of a resize that is carried out as a move to other NUMA nodes; nil for one in
	// place. The pod's claims include the old and the new ones until the move has ended.
	Plan *transition.Plan
	// MoveDisruption is how much a move would disturb that would serve a refused resize, if only the
	// request's limits forbid it; else AnyDisruption.
	MoveDisruption Disruption
	// ID is the request's admission id, or a new one.
	ID string
}

// Resize changes the cpu and memory of an admitted pod in place: in the ledger, in the
// pod's cgroup, and in the cgroups of containers that berth created. The caller updates the
// other containers, with a new answer of Allocate. Exclusive CPUs and pinned memory change with
// the commit. The containers get new CPUs right after it, when all others have left them.
//
// A resize to the current size is admitted again. Errors are of class NotFound for a pod
// that is not admitted or does not have a container (Unavailable, if the ledger may lack
// the pod), Precondition for a pod of another owner
// and for a revision of another ledger, Exists for the admission id of another request or of an
// earlier resize that a later one has replaced,
// Conflict for a pod that has changed since the given revision, and Invalid for amounts
// that the pod cannot have. If the kernel refuses a value, the error has its class, and the
// pod has its old values.
func (e *Engine) Resize(ctx context.Context, req ResizeRequest) (Resized, error) {
	r := &resizing{engine: e, request: req, id: req.AdmissionID, scope: admission.Scope{Owner: req.Owner}}
	if r.id == "" {
		r.id = e.NewID()
	}
	out, err := r.run(ctx)
	out.ID = r.id
	if err == nil && !req.DryRun {
		e.RefusedResize(ctx, out.Verdict, &ledger.Pod{Pod: r.wanted, Digest: r.digest}, r.scope.Agent(), r.id, req.AdmissionID != "")
	}
	return out, err
}

func (r *resizing) run(ctx context.Context) (Resized, error) {
	e, req := r.engine, r.request
	if req.DryRun {
		b, err := e.BasisInFlight()
		if err != nil {
			return Resized{}, fmt.Errorf("resize pod %s: %w", req.UID, err)
		}
		return r.decide(ctx, b)
	}
	unlock, err := e.LockPod(ctx, req.UID)
	if err != nil {
		return Resized{}, err
	}
	defer unlock()
	for attempt := 1; ; attempt++ {
		out, err := r.attempt(ctx)
		switch {
		case !errors.Is(err, admission.ErrOvertaken):
			return out, err
		case attempt == e.Attempts:
			return Resized{}, errdefs.Unavailablef("resize pod %s: the policy or the machine was changed during each of %d attempts",
				req.UID, attempt)
		}
	}
}

// attempt decides and carries the decision out. An error that wraps ErrOvertaken means that
// the rules have changed meanwhile, and that the pod is unchanged.
func (r *resizing) attempt(ctx context.Context) (Resized, error) {
	e := r.engine
	// The kernel is read without the admission lock. Then the decision is confirmed under
	// the lock, and the new size is reserved.
	b, err := e.Decides(ctx)
	if err != nil {
		return Resized{}, fmt.Errorf("resize pod %s: %w", r.request.UID, err)
	}
	out, err := r.decide(ctx, b)
	if err != nil || out.Outcome != admission.Admitted || out.Repeated {
		return out, err
	}
	defer e.Unreserve(r.request.UID)
	view, out, err := r.reserve(ctx)
	if err != nil || out.Outcome != admission.Admitted || out.Repeated {
		return out, err
	}
	return r.carryOut(ctx, view, out)
}

// resizing is a resize in progress.
type resizing struct {
	engine  *Engine
	request ResizeRequest
	scope   admission.Scope
	// id is the request's admission id, or a new one.
	id string
	// wanted is the pod of the last view after the changes.
	wanted workload.Pod
	// digest is that of wanted.
	digest string
	// claims are those that change. Of a move, they are those of its begin.
	claims []ledger.Claim
	// move is the move by which the resize is carried out; nil for a resize in place.
	move *planned
	// forbidden is how much the move would disturb that the request's limits forbid.
	forbidden Disruption
	// amounts is the last view with the new amounts and the old claims. The cgroups get these
	// before the commit. The passes after it write CPUs and memory nodes, in the order in which
	// no other container shares exclusive CPUs.
	amounts *ledger.View
	trace   *ledger.Trace
}

// decide decides whether the resize is possible, and changes nothing.
func (r *resizing) decide(ctx context.Context, b admission.Basis) (Resized, error) {
	out, err := r.allow(ctx, b)
	if err != nil || out.Outcome != admission.Admitted || out.Repeated {
		return out, err
	}
	if err := r.engine.CgroupManager.CheckResize(ctx, r.amounts, r.wanted.UID); err != nil {
		have, _ := b.View.Pod(r.wanted.UID)
		return r.refuse(have, b.View, err)
	}
	return out, nil
}

// reserve decides again under the admission lock, and reserves the larger of the old and
// new amounts. It returns the view from before.
func (r *resizing) reserve(ctx context.Context) (*ledger.View, Resized, error) {
	e := r.engine
	release, err := e.Acquire(ctx)
	if err != nil {
		return nil, Resized{}, err
	}
	defer release()
	b, err := e.Decides(ctx)
	if err != nil {
		return nil, Resized{}, fmt.Errorf("resize pod %s: %w", r.request.UID, err)
	}
	out, err := r.allow(ctx, b)
	if err == nil && out.Outcome == admission.Admitted && !out.Repeated {
		have, _ := b.View.Pod(r.wanted.UID)
		reserved := *have
		reserved.Pod = larger(&have.Pod, &r.wanted)
		reserved.Claims = r.both(have)
		if r.move != nil {
			reserved.Move = &r.move.move
		}
		e.Reserve(&reserved)
	}
	return b.View, out, err
}

// larger returns a pod with the larger amounts of two versions of it.
func larger(a, b *workload.Pod) workload.Pod {
	out := *b
	out.Containers = slices.Clone(b.Containers)
	for i := range out.Containers {
		c := &out.Containers[i]
		if old := a.Container(c.Name); old != nil {
			c.Requests, c.Limits = most(old.Requests, c.Requests), most(old.Limits, c.Limits)
		}
	}
	if a.Resources != nil && b.Resources != nil {
		out.Resources = &workload.Resources{
			Requests: most(a.Resources.Requests, b.Resources.Requests), Limits: most(a.Resources.Limits, b.Resources.Limits),
		}
	}
	return out
}

// both returns a pod's claims with what it has and what it gets: nothing of it is free.
func (r *resizing) both(have *ledger.Pod) []ledger.Claim {
	out := slices.Clone(have.Claims)
	for _, c := range r.grown(have) {
		i := slices.IndexFunc(out, func(o ledger.Claim) bool {
			return o.Key() == c.Key()
		})
		switch {
		case i < 0:
			continue
		case c.CPUs != nil:
			c.CPUs = &ledger.CPUs{Set: c.CPUs.Set.Union(out[i].CPUs.Set), Use: c.CPUs.Use}
		case len(c.Memory) > 0:
			c.Memory = []ledger.Block{largerBlock(out[i].Memory, c.Memory)}
		}
		out[i] = c
	}
	return out
}

// largerBlock returns a block that has of each NUMA node the larger amount of two lists of blocks.
func largerBlock(a, b []ledger.Block) ledger.Block {
	out := ledger.Block{Nodes: ledger.NodesOf(a).Union(ledger.NodesOf(b))}
	for id := range out.Nodes.All() {
		if n := max(on(a, id), on(b, id)); n > 0 {
			out.Parts = append(out.Parts, ledger.Part{Node: id, Bytes: n})
			out.Bytes += n
		}
	}
	return out
}

func on(blocks []ledger.Block, node int) (bytes uint64) {
	for i := range blocks {
		bytes += blocks[i].On(numa.Of(node))
	}
	return bytes
}

// grown returns the changed claims with something that the pod does not have yet.
func (r *resizing) grown(have *ledger.Pod) []ledger.Claim {
	claims := r.claims
	if r.move != nil {
		claims = r.move.move.Held
	}
	return slices.DeleteFunc(slices.Clone(claims), func(c ledger.Claim) bool {
		old, ok := have.Claim(c.Owner.Container, c.Resource)
		if !ok || old.Provider != c.Provider {
			return false
		}
		if c.CPUs != nil && old.CPUs != nil {
			return c.CPUs.Set.IsSubsetOf(old.CPUs.Set)
		}
		return total(c.Memory) <= total(old.Memory) && ledger.NodesOf(c.Memory).IsSubsetOf(ledger.NodesOf(old.Memory))
	})
}

func total(blocks []ledger.Block) (bytes uint64) {
	for _, b := range blocks {
		bytes += b.Bytes
	}
	return bytes
}

func most(a, b workload.Quantities) workload.Quantities {
	out := maps.Clone(b)
	for r, n := range a {
		if out[r] < n {
			out[r] = n
		}
	}
	return out
}

// allow returns whether the ledger and the providers allow the new size.
func (r *resizing) allow(ctx context.Context, b admission.Basis) (Resized, error) {
	e, uid, view := r.engine, r.request.UID, b.View
	have, ok := view.Pod(uid)
	if !ok {
		return Resized{}, view.NotAdmitted(uid)
	}
	if err := r.scope.Check(uid, have.Agent()); err != nil {
		return Resized{}, err
	}
	if have.Pod.ResourceClaim != nil {
		return Resized{}, errdefs.Invalidf("%s is a resource claim: its amounts are those of its allocation, and do not change", &have.Pod)
	}
	moves := have.Move
	if have.Acknowledged != nil {
		moves = nil
		view, have = acknowledged(view, have)
	}
	digest, notes, err := r.change(have)
	if err != nil {
		return Resized{}, err
	}
	back := moves != nil && moves.Before == digest
	if err := r.named(view, have, digest); err != nil {
		return Resized{}, err
	}
	if have.Digest == digest {
		return Resized{Disruption: NoDisruption, Verdict: admission.Verdict{
			Outcome: admission.Admitted, QoS: have.QoS, Pod: have, View: view, Trace: have.Trace, Repeated: true,
		}}, nil
	}
	if err := r.current(view, have); err != nil {
		return Resized{}, err
	}
	if err := workload.CheckResize(&have.Pod, &r.wanted, e.Features).Err(fmt.Sprintf("resize of pod %.200q", &r.wanted)); err != nil {
		return Resized{}, err
	}
	r.begin(view, e.Now(), notes)
	if err := moving(have); err != nil && !back {
		return r.refuse(have, view, err)
	}
	record := *have
	record.Pod, record.Digest, record.Trace = r.wanted, digest, r.trace
	record.EarlierResizeIDs, record.ResizeID = resizeIDs(have), r.id
	draft := ledger.NewDraft(view)
	draft.PutPod(&record)
	if back {
		err = r.back(draft.View(), have)
	} else {
		err = r.place(ctx, b.On(view), have, &record)
		if err == nil && r.move == nil {
			err = initializing(view, have, r.claims)
		}
	}
	if err != nil {
		return r.refuse(have, view, err)
	}
	r.amounts = draft.View()
	if condition, why := admission.HeldBack(view, uid, r.grown(have)); why != "" {
		out, err := r.refuse(have, view, errdefs.Refuse(errdefs.ResizeDeferred, "%s", why))
		out.Condition = &admission.Condition{Type: condition}
		return out, err
	}
	restarts := workload.Restarts(&have.Pod, &r.wanted)
	disturbs, err := r.disturbs(draft, have, restarts)
	if err != nil {
		return r.refuse(have, view, err)
	}
	draft.AddClaims(uid, r.claims...)
	changed, _ := draft.View().Pod(uid)
	if r.move != nil {
		changed = clone(changed)
		changed.Move = &r.move.move
		draft.PutPod(changed)
	}
	r.trace.Admitted = true
	out := Resized{
		Verdict:  admission.Verdict{Outcome: admission.Admitted, QoS: record.QoS, Pod: changed, View: draft.View(), Trace: r.trace},
		Restarts: restarts, Disruption: disturbs,
	}
	if r.move != nil {
		out.Plan = r.move.Plan
	}
	return out, nil
}

// place plans where the pod gets its new amounts: in place, or on other NUMA nodes.
func (r *resizing) place(ctx context.Context, b admission.Basis, have, record *ledger.Pod) (err error) {
	if r.claims, err = b.Bus.Resize(ctx, b.View, &have.Pod, &r.wanted, b.Policy.Widening(), r.trace); err != nil {
		return r.elsewhere(ctx, b, have, record, err)
	}
	return nil
}

// acknowledged returns a pod with the claims of its last acknowledged change, and a view with that pod. A
// change that was neither committed nor answered is the base of no other one: it may have been a move, and
// the claims of both sides are not those of one place.
func acknowledged(view *ledger.View, have *ledger.Pod) (*ledger.View, *ledger.Pod) {
	record := *have
	record.Claims, record.Acknowledged = slices.Clone(have.Acknowledged), nil
	d := ledger.NewDraft(view)
	d.PutPod(&record)
	return d.View(), &record
}

// disturbs returns how much the resize disturbs the containers, and refuses it if that is more than is
// allowed.
func (r *resizing) disturbs(amounts *ledger.Draft, have *ledger.Pod, restarts []string) (Disruption, error) {
	final, claims := ledger.NewDraft(amounts.View()), r.claims
	if r.move != nil {
		claims = r.move.move.To
	}
	final.AddClaims(have.UID(), claims...)
	then, _ := final.View().Pod(have.UID())
	d := disruption(have, then, restarts)
	return d, tooMuch(d, r.request.MaxDisruption, restarts)
}

// change computes the pod with the changes, and its digest.
func (r *resizing) change(have *ledger.Pod) (digest string, notes []string, err error) {
	e := r.engine
	if whole := slices.ContainsFunc(r.request.Changes, func(c workload.Change) bool { return c.Container == "" }); whole &&
		have.Pod.Resources == nil {
		var vs errdefs.Violations
		vs.Addf("resources", "pod %s was admitted without resources as a whole", have.UID())
		return "", nil, vs.Err("request")
	}
	changed, unknown := have.Pod.With(r.request.Changes, e.Features)
	if unknown != "" {
		return "", nil, errdefs.NotFoundf("pod %s has no container %q", have.UID(), unknown).
			Coded(errdefs.ContainerNotFound, "pod_uid", have.UID(), "container_name", unknown)
	}
	if r.request.QoS != "" {
		changed.QoS = r.request.QoS
	}
	record, notes, err := e.Record(changed, "resize")
	if err != nil {
		return "", nil, err
	}
	r.wanted, r.digest = record.Pod, record.Digest
	return record.Digest, notes, nil
}

// earlierResizes is how many admission ids of a pod's earlier resizes are remembered. The
// record of a pod has at most 2 KiB of them, because ids have a limit.
const earlierResizes = 16

// resizeIDs returns the ids of a pod's resizes, the newest last.
func resizeIDs(p *ledger.Pod) []string {
	if p.ResizeID == "" {
		return nil
	}
	ids := append(slices.Clone(p.EarlierResizeIDs), p.ResizeID)
	return ids[max(0, len(ids)-earlierResizes):]
}

// named refuses an admission id that was used for another request, and that of an earlier
// resize, which a later one has replaced.
func (r *resizing) named(view *ledger.View, have *ledger.Pod, digest string) error {
	id := r.request.AdmissionID
	if id == "" {
		return nil
	}
	used := func(format string, args ...any) error {
		return errdefs.Existsf(format, args...).Coded(errdefs.AdmissionIDUsed, "admission_id", id, "pod_uid", have.UID())
	}
	if id == have.ResizeID && digest != have.Digest {
		return used("admission id %q is that of another resize of pod %s: every resize has a name of its own", id, have.UID())
	}
	if slices.Contains(have.EarlierResizeIDs, id) && digest != have.Digest {
		return used("admission id %q is that of an earlier resize of pod %s, which was carried out and then replaced by a later one: "+
			"read the pod, and change it again with a new admission id", id, have.UID())
	}
	if p, ok := view.Admitted(id); ok {
		return used("admission id %q is that of the admission of pod %s: every resize has a name of its own", id, p.UID())
	}
	return r.engine.CheckRefused(r.scope.Agent(), id, have.UID(), digest)
}

// current refuses a resize of a pod that has changed since the caller has read it.
func (r *resizing) current(view *ledger.View, have *ledger.Pod) error {
	read := r.request.IfRevision
	changed := view.RevisionOf(max(have.ChangedGeneration, have.AdmittedGeneration))
	switch {
	case read == 0:
		return nil
	case read > view.Revision():
		return errdefs.Preconditionf("revision %d is not one of this ledger, which is at %d: read the pod again", read, view.Revision()).
			Coded(errdefs.RevisionUnknown, "pod_uid", have.UID())
	case changed > read:
		return errdefs.Conflictf("pod %s has changed at revision %d, after revision %d: read it again", have.UID(), changed, read)
	}
	return nil
}

func (r *resizing) begin(view *ledger.View, now time.Time, notes []string) {
	p := &r.wanted
	r.move, r.forbidden = nil, AnyDisruption
	r.trace = &ledger.Trace{
		AdmissionID: r.id, Pod: p.UID, Namespace: p.Namespace, Name: p.Name,
		Generation: view.Generation(), DryRun: r.request.DryRun, Time: now,
	}
	for _, n := range notes {
		r.trace.Add(ledger.Step{Kind: ledger.StepNoted, Text: n})
	}
	r.trace.Add(ledger.Step{Kind: ledger.StepNoted, Text: "an admitted pod is resized in place"})
}

// refuse converts a refusal to a verdict; other errors stay errors. A failure that wraps an
// earlier refusal is no refusal.
func (r *resizing) refuse(have *ledger.Pod, view *ledger.View, err error) (Resized, error) {
	reason, refused := errdefs.ReasonOf(err)
	if !refused || errdefs.ClassOf(err) != errdefs.Refused {
		return Resized{}, fmt.Errorf("resize pod %s: %w", &r.wanted, err)
	}
	_, message := errdefs.Verdict(err)
	v := admission.Verdict{Outcome: admission.Rejected, Reason: reason, Message: message, QoS: have.QoS, View: view, Trace: r.trace}
	if reason == errdefs.ResizeDeferred {
		v.Outcome, v.RetryAfter = admission.Deferred, r.engine.RetryAfter
	}
	r.trace.Admitted, r.trace.Reason, r.trace.Message = false, string(reason), message
	step := ledger.Step{Kind: ledger.StepRefused, Text: message}
	if fe := new(errdefs.Error); errors.As(err, &fe) {
		step.Provider, step.Resource = fe.Provider, fe.Resource
	}
	r.trace.Add(step)
	return Resized{Verdict: v, MoveDisruption: r.forbidden}, nil
}

// carryOut writes the cgroups and then the ledger. After an error, the cgroups have their
// old values, or the next reconcile writes them.
func (r *resizing) carryOut(ctx context.Context, before *ledger.View, out Resized) (Resized, error) {
	e, uid := r.engine, r.wanted.UID
	undo := func() error { return e.CgroupManager.Resize(context.WithoutCancel(ctx), before, uid) }
	if err := e.CgroupManager.Resize(ctx, r.amounts, uid); err != nil {
		if undone := undo(); undone != nil {
			return Resized{}, errors.Join(fmt.Errorf("resize pod %s: %w", &r.wanted, err), undone)
		}
		have, _ := before.Pod(uid)
		return r.refuse(have, before, err) // since the decision it may use more memory
	}
	r.trace.Add(ledger.Step{Kind: ledger.StepPlaced, Text: "cgroup " + out.Pod.CgroupParent})
	r.trace.Add(ledger.Step{Kind: ledger.StepCommitted})
	restore, err := e.RecordClaims(ctx, out.View, uid, true)
	if err != nil {
		return Resized{}, errors.Join(err, undo())
	}
	view, err := e.Update(ctx, func(d *ledger.Draft) error {
		now := d.Base()
		if !now.Rules().SameManagers(before.Rules()) {
			return admission.ErrOvertaken
		}
		have, ok := now.Pod(uid)
		if !ok {
			return errdefs.Conflictf("the pod left meanwhile")
		}
		record := *out.Pod
		if record.Claims = have.Claims; have.Acknowledged != nil {
			record.Claims = have.Acknowledged
		}
		record.Acknowledged = nil
		d.PutPod(&record)
		d.AddClaims(uid, r.claims...)
		return admission.Overtaken(out.View, now, d.View(), uid, r.grown(have))
	})
	if err != nil {
		return Resized{}, errors.Join(fmt.Errorf("resize pod %s: %w", &r.wanted, err), restore(), undo())
	}
	out.View = view
	out.Pod, _ = view.Pod(uid)
	return out, nil
}
