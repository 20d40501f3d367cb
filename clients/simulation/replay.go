package simulation

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/convert/decisions"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/workload"
)

// ReplayOptions are options of a replay.
type ReplayOptions struct {
	// KeepAdmitted keeps what only the replay admits, until a recorded call removes the pod.
	KeepAdmitted bool
	// KeepPolicy leaves out recorded changes of the policy.
	KeepPolicy bool
	// Explain is how many verdicts that differ are explained.
	Explain int
}

// Reasons for which an entry with a verdict is not decided again.
const (
	skipOlder     = "older"
	skipBeside    = "beside"
	skipDeferred  = "deferred"
	skipLarge     = "large"
	skipRunning   = "running"
	skipDevices   = "devices"
	skipProviders = "providers"
	skipConfig    = "configuration"
	skipKernel    = "kernel"
	skipAbsent    = "absent"
	skipConflict  = "conflict"
	skipInvalid   = "invalid"
)

// skipTexts are the reasons in words, in the order in which a replay lists them.
var skipTexts = [][2]string{
	{skipOlder, "the state before them is not known"},
	{skipBeside, "they cannot be replayed exactly (decided at the same time as others): what they were decided on is not recorded"},
	{skipDeferred, "they were deferred: the reason for it is not recorded"},
	{skipLarge, "the request was too large to be recorded, or has no record"},
	{skipRunning, "the pod was running already, so its allocations were not decided"},
	{skipDevices, "they request devices that are not known"},
	{skipProviders, "the pod involves an external provider, which a replay does not call"},
	{skipConfig, "they were decided under another configuration, which is not known"},
	{skipKernel, "the kernel refused them: its state is not recorded"},
	{skipAbsent, "the pod is not admitted in the replay"},
	{skipConflict, "other pods hold the resources of the pod in the replay"},
	{skipInvalid, "this version of berth refuses such a request"},
}

// Replay decides about recorded requests again on the scene, in the order in which they were
// decided. Removals and all other changes are carried out as recorded.
//
// If the scene has the machine and the configuration of the record, each request is decided on the
// state on which it was decided when it was recorded, with the reservations of the calls in flight that counted then, as
// long as no verdict differs. A request for which these are not known is not decided. Otherwise it is decided on
// the state that the replay has led to: the pods that were admitted before the first entry keep what they
// have, as after a start of berthd with another configuration. On another machine they are admitted
// again. What only the replay admits is not kept: nothing says when it would have ended.
//
// Errors are those of Run and of Record.History.
func (s Scene) Replay(ctx context.Context, rec *Record, o ReplayOptions) (*admissionv1.Replay, Placement, error) {
	line, err := rec.read(ctx)
	if err != nil {
		return nil, Placement{}, err
	}
	r := &replay{
		scene: s, options: o, record: rec, out: &admissionv1.Replay{
			Machine: s.Machine.Snapshot().Name, Entries: uint32(len(line.entries)),
			BeginRevision: line.begin.Revision(), BeginPods: uint32(line.begin.NumPods()), BeginReason: line.why,
			SameMachine: rec.isOn(s.Machine),
		},
		skipped: map[string]int{skipOlder: line.older}, known: map[string]bool{}, today: maps.Clone(rec.Today),
		stages: map[stageKey]*stage{},
		bases:  basesOf(&line),
	}
	if r.out.GetSameMachine() {
		r.scene.Machine = line.begin.Machine() // which changes while the replay continues
	}
	if n := len(line.entries); n > 0 {
		r.out.BeginTime, r.out.EndTime = timestamppb.New(line.entries[0].Time), timestamppb.New(line.entries[n-1].Time)
	}
	if err := r.begin(ctx, line.begin); err != nil {
		return nil, Placement{}, err
	}
	for i := range line.entries {
		if err := ctx.Err(); err != nil {
			return nil, Placement{}, err
		}
		r.bases.before(i, r.view)
		if err := r.entry(ctx, &line.entries[i]); err != nil {
			return nil, Placement{}, fmt.Errorf("entry %d of the history: %w", line.entries[i].Number, err)
		}
		r.bases.after(i)
	}
	m := r.stage.managerSet
	r.out.TopologyPolicy, r.out.TopologyScope = string(m.Topology.Policy()), string(m.Topology.Scope())
	r.out.CpuPolicy = m.CPU.Describe().Policy
	for _, t := range skipTexts {
		if n := r.skipped[t[0]]; n > 0 {
			r.out.Skipped = append(r.out.Skipped, &admissionv1.SkippedVerdicts{Reason: t[0], Count: uint32(n), Text: t[1]})
		}
	}
	return r.out, Placement{View: r.view, Memory: m.Memory.State(r.view), Reserved: m.CPU.Reserved()}, nil
}

// replay is a replay in progress.
type replay struct {
	scene   Scene
	options ReplayOptions
	record  *Record
	out     *admissionv1.Replay
	skipped map[string]int

	// view is the state of the replay. follows is whether it is the recorded one, and asRecorded
	// whether machine and configuration are those of the record.
	view                *ledger.View
	follows, asRecorded bool
	// bases are earlier states, and on is the one that the current entry is decided on.
	bases bases
	on    *ledger.View
	// stage has the managers that decide, trial decides with them, and detailed also explains.
	stage           *stage
	trial, detailed *live.Trial
	// known are the digests of the configurations that are known, and stages the ones that were
	// made. today has the digests of recorded ones that are others today.
	known  map[string]bool
	today  map[string]string
	stages map[stageKey]*stage
	// reserved are the recorded CPUs that stay reserved on a changed machine.
	reserved cpuset.Set
}

// stageKey is what the managers of a stage follow from.
type stageKey struct {
	digest   string
	machine  *machine.Topology
	reserved cpuset.Set
}

// digest returns today's digest of a configuration with a recorded digest.
func (r *replay) digest(recorded string) string { return cmp.Or(r.today[recorded], recorded) }

// begin sets the state before the first entry.
func (r *replay) begin(ctx context.Context, recorded *ledger.View) error {
	digest, err := r.scene.Config.Digest()
	if err != nil {
		return err
	}
	r.out.SameConfiguration = digest == r.record.ConfigDigest
	r.asRecorded = r.out.GetSameMachine() && r.out.GetSameConfiguration() && !r.options.KeepPolicy
	r.follows = r.asRecorded
	if r.asRecorded {
		r.reserved = recorded.Rules().ReservedCPUs
	}
	r.known[digest], r.known[r.record.ConfigDigest] = true, r.record.Config != nil || r.out.GetSameConfiguration()
	if err := r.force(recorded.Override()); err != nil {
		return err
	}
	if rules := r.stage.managerSet.Rules; rules.ConfigDigest == r.digest(recorded.Rules().ConfigDigest) &&
		!slices.Equal(rules.Memory, recorded.Rules().Memory) {
		r.asRecorded, r.follows = false, false // only a fingerprint is known, which leaves out the memory
	}
	if !r.out.GetSameMachine() {
		return r.admitAgain(ctx, recorded)
	}
	d := ledger.NewDraft(recorded)
	d.SetUncertain("") // since when it was so is not recorded
	r.view = d.View()
	if rules := r.stage.managerSet.Rules; !r.follows || r.digest(r.view.Rules().ConfigDigest) == rules.ConfigDigest {
		r.view = r.view.Under(rules)
	}
	return nil
}

// admitAgain admits the pods of a state on another machine, in the order of their admission.
func (r *replay) admitAgain(ctx context.Context, recorded *ledger.View) error {
	r.view = ledger.Empty(r.stage.managerSet.Rules)
	pods := slices.SortedFunc(recorded.Pods(), func(a, b *ledger.Pod) int {
		return cmp.Or(a.AdmittedAt.Compare(b.AdmittedAt), cmp.Compare(a.UID(), b.UID()))
	})
	for _, p := range pods {
		r.trial.On(r.view, p.AdmittedAt)
		v, err := r.trial.Repeat(ctx, admission.Request{Pod: p.Pod, Owner: p.Agent(), AdmissionID: p.AdmissionID})
		if err != nil && ctx.Err() != nil {
			return err
		}
		if err == nil && v.Outcome == admission.Admitted {
			r.view = v.View
			continue
		}
		if err != nil {
			v = admission.Verdict{Message: err.Error()}
		}
		r.out.RefusedAtBegin = append(r.out.RefusedAtBegin, &admissionv1.SimulatedPod{
			Uid: p.UID(), Namespace: p.Pod.Namespace, Name: p.Pod.Name,
			Verdict: decisions.Verdict(v, admissionv1.TraceLevel_TRACE_LEVEL_NONE),
		})
	}
	return nil
}

// force puts the configuration into force, or the policy that replaces it.
func (r *replay) force(o *ledger.Override) error {
	if r.options.KeepPolicy {
		o = nil
	}
	c, err := inForce(r.scene.Config, o, r.today)
	if err != nil {
		return err
	}
	return r.use(c)
}

// use makes the managers of a configuration decide.
func (r *replay) use(c config.Config) error {
	digest, err := c.Digest()
	if err != nil {
		return err
	}
	key := stageKey{digest, r.scene.Machine, r.reserved}
	st := r.stages[key]
	if st == nil {
		s := r.scene
		s.Config = c
		if st, err = s.buildKeeping(r.reserved); err != nil {
			return err
		}
		st.engine.Resources = c.Resources(time.Time{})
		r.stages[key] = st
	}
	r.stage, r.known[digest] = st, true
	r.trial, r.detailed = st.trial(r.view, -1), st.trial(r.view, st.engine.Tries)
	if r.view != nil {
		r.view = r.view.Under(st.managerSet.Rules)
	}
	return nil
}

// entry replays an entry.
func (r *replay) entry(ctx context.Context, e *recorded) error {
	// Sums are computed from state to state. Otherwise the last one leads to all earlier ones.
	r.view.Requests(r.stage.engine.Features, "")
	req, err := e.Requested()
	if err != nil {
		r.skip(e, skipInvalid)
		return nil
	}
	switch {
	case e.Verdict != "":
		return r.verdict(ctx, e, req)
	case req != nil && req.Policy != nil && e.Call == "SetPolicy" && !r.options.KeepPolicy:
		policy, err := config.ReadPolicy(req.Policy)
		if err != nil {
			return err
		}
		r.out.PolicyChanges++
		r.reserved = cpuset.Set{}
		if r.asRecorded && e.rules != nil {
			r.reserved = e.rules.reserved
		}
		if r.record.Config != nil {
			digest, err := r.record.Config.With(policy).Digest()
			if err != nil {
				return err
			}
			r.known[digest] = true
			if e.rules != nil && r.today != nil {
				r.today[e.rules.config] = digest
			}
		}
		return r.use(r.scene.Config.With(policy))
	case e.rules != nil:
		if r.out.GetSameMachine() && r.scene.Machine != e.rules.machine {
			r.scene.Machine = e.rules.machine
			r.out.MachineChanges++
		}
		if r.asRecorded {
			r.reserved = e.rules.reserved
		}
		if err := r.force(e.rules.override); err != nil {
			return err
		}
	}
	if !r.apply(e) {
		r.skipped[skipConflict]++
	}
	return nil
}

// verdict decides about a recorded request again.
func (r *replay) verdict(ctx context.Context, e *recorded, req *history.Request) error {
	exact := r.setBasis(e)
	why := r.cannot(e, req)
	if why == "" && !exact {
		why = skipBeside
	}
	if why != "" {
		r.skip(e, why)
		return nil
	}
	v, err := r.decide(ctx, r.trial, e, req)
	switch {
	case err != nil && ctx.Err() != nil:
		return err
	case err != nil:
		r.skip(e, skipInvalid)
		return nil
	case v.Outcome == admission.Admitted && r.byKernel(e):
		r.skip(e, skipKernel)
		return nil
	}
	r.out.Verdicts++
	if !r.known[r.digest(e.config)] {
		r.out.OtherConfiguration++
	}
	if after := e.after(); v.Outcome == admission.Admitted && !v.Repeated && after != nil && !sameHoldings(v.Pod, after.AfterMove()) {
		r.out.Moved++
	}
	same := e.Verdict == v.Outcome.String() && e.Reason == string(v.Reason)
	if !same {
		if err := r.differs(ctx, e, req, v); err != nil {
			return err
		}
	}
	switch r.follows = r.follows && same; {
	case r.follows:
		r.apply(e)
	case v.Outcome == admission.Admitted && (same || r.options.KeepAdmitted):
		r.keep(v.View, v.Pod)
	}
	return nil
}

// decide decides about a recorded request.
func (r *replay) decide(ctx context.Context, t *live.Trial, e *recorded, req *history.Request) (admission.Verdict, error) {
	t.On(r.on, e.Time)
	if req.Pod != nil {
		return t.Repeat(ctx, admission.Request{Pod: *req.Pod, Owner: req.Owner, AdmissionID: e.AdmissionID})
	}
	out, err := t.Resize(ctx, live.ResizeRequest{
		UID: e.Pod, Owner: req.Owner, Changes: req.Changes, QoS: req.QoS, MaxDisruption: live.Disruption(req.MaxDisruption),
		MaxMove: live.Disruption(req.MaxMove),
	})
	return out.Verdict, err
}

// differs adds a verdict that differs, with an explanation unless there were enough.
func (r *replay) differs(ctx context.Context, e *recorded, req *history.Request, v admission.Verdict) error {
	level := admissionv1.TraceLevel_TRACE_LEVEL_NONE
	if r.out.Differ++; int(r.out.GetDiffer()) <= r.options.Explain {
		var err error
		if v, err = r.decide(ctx, r.detailed, e, req); err != nil {
			return err
		}
		level = admissionv1.TraceLevel_TRACE_LEVEL_FULL
	}
	r.out.Differences = append(r.out.Differences, &admissionv1.ReplayedVerdict{
		Entry: e.Number, DecisionTime: timestamppb.New(e.Time), Call: e.Call, PodUid: e.Pod, Namespace: e.Namespace, Name: e.Name,
		Recorded: convert.EnumOf[admissionv1.Verdict](e.Verdict), RecordedReason: e.Reason, RecordedMessage: e.Message,
		Replayed: decisions.Verdict(v, level), OtherConfiguration: !r.known[r.digest(e.config)],
	})
	return nil
}

// cannot returns why a verdict cannot be given again; empty if it can.
func (r *replay) cannot(e *recorded, req *history.Request) string {
	switch {
	case e.Verdict == admission.Deferred.String():
		return skipDeferred
	case req == nil || req.Pod == nil && len(req.Changes) == 0:
		return skipLarge
	case req.Running, req.Pod != nil && r.on.UnknownLive(req.Pod.UID):
		return skipRunning
	case r.asRecorded && r.digest(e.config) != r.stage.managerSet.Rules.ConfigDigest:
		return skipConfig
	}
	var pod *workload.Pod
	if req.Pod != nil {
		defaulted, _ := workload.Defaulted(*req.Pod, r.stage.engine.Features)
		pod = &defaulted
	} else {
		have, ok := r.on.Pod(e.Pod)
		if !ok {
			return skipAbsent
		}
		pod = &have.Pod
	}
	after := e.after()
	switch {
	case r.external(pod, after):
		return skipProviders
	case req.Pod != nil && !r.devicesKnown(e, pod, after):
		return skipDevices
	}
	return ""
}

// external returns whether an external provider takes part in a decision.
func (r *replay) external(pod *workload.Pod, after *ledger.Pod) bool {
	own := r.stage.managerSet.Bus.Entries()
	if after != nil && slices.ContainsFunc(after.Claims, func(c ledger.Claim) bool {
		return !slices.ContainsFunc(own, func(e hint.Entry) bool { return e.Provider.Name() == c.Provider })
	}) {
		return true
	}
	for p := range r.record.View.ExternalProviders() {
		if len(p.Resources) == 0 {
			return true
		}
		for _, c := range pod.Walk() {
			if slices.ContainsFunc(p.Resources, func(name string) bool {
				return c.Limits[workload.Resource(name)] > 0 || c.Requests[workload.Resource(name)] > 0
			}) {
				return true
			}
		}
	}
	return false
}

// devicesKnown returns whether the devices that a pod requests are known. Resources that no plugin
// had were not allocated to admitted pods.
func (r *replay) devicesKnown(e *recorded, pod *workload.Pod, after *ledger.Pod) bool {
	for _, c := range pod.Walk() {
		for name, n := range c.Limits.Sorted() {
			if !name.IsExtended() || n == 0 || c.HasExternal(string(name)) || len(r.scene.Devices[string(name)]) > 0 ||
				r.elsewhere(string(name)) {
				continue
			}
			if e.Verdict != admission.Admitted.String() || after == nil || after.Holds(string(name)) {
				return false
			}
		}
	}
	return true
}

// elsewhere returns whether another program serves a resource.
func (r *replay) elsewhere(name string) bool {
	domain, _, _ := strings.Cut(name, "/")
	return slices.ContainsFunc(r.stage.Config.Devices.Elsewhere, func(e string) bool {
		return e == name || e == domain || e == admission.Everywhere
	})
}

// byKernel returns whether a recorded refusal may have been the kernel's.
func (r *replay) byKernel(e *recorded) bool {
	return e.Verdict == admission.Rejected.String() &&
		(strings.HasPrefix(e.Reason, string(errdefs.OutOf(workload.HugePagesPrefix))) &&
			r.stage.Config.Memory.CheckFreeHugePages != config.PagesIgnore ||
			e.Reason == string(errdefs.Infeasible) && strings.Contains(e.Message, "containers with swap"))
}

// skip counts an entry that is not decided again, and carries it out as recorded.
func (r *replay) skip(e *recorded, why string) {
	r.skipped[why]++
	r.apply(e)
}

// apply carries out what an entry changed. It returns false if what a pod holds there is not free
// in the replay; then the pod is left out.
func (r *replay) apply(e *recorded) (ok bool) {
	if ok = true; len(e.changes)+len(e.unknown) == 0 {
		return ok
	}
	d := ledger.NewDraft(r.view)
	next := func() { // so that no view has to be made of many changes, again and again
		r.view = d.View()
		d = ledger.NewDraft(r.view)
	}
	for i, c := range e.changes {
		if ofContainer := c.Kind == ledger.Bound || c.Kind == ledger.Unbound; !ofContainer || i > 0 && c.Kind != e.changes[i-1].Kind {
			next()
		}
		switch c.Kind {
		case ledger.PodRemoved:
			d.RemovePod(c.Pod.UID())
		case ledger.PodAdded, ledger.PodChanged:
			ok = r.put(d, c) && ok
		case ledger.Unbound:
			d.Unbind(c.Binding.ID)
		case ledger.Bound:
			if _, here := r.view.Pod(c.Binding.Owner.Pod); here {
				d.Bind(c.Binding)
			}
		}
	}
	for _, u := range e.unknown {
		next()
		switch _, admitted := r.view.Pod(u.uid); {
		case u.pod == nil:
			d.ForgetUnknownLive(u.uid)
		case !admitted && r.out.GetSameMachine():
			d.PutUnknownLive(*u.pod)
		}
	}
	next()
	return ok
}

// put stores a pod as recorded, unless the replay has it otherwise or cannot have it so.
func (r *replay) put(d *ledger.Draft, c ledger.Change) bool {
	record := *c.Pod
	have, here := d.View().Pod(c.Pod.UID())
	switch {
	case r.follows:
		d.PutPod(&record)
		return true
	case here && (c.Before == nil || !sameHoldings(have, c.Before)), !here && c.Before != nil:
		return true
	case !r.out.GetSameMachine():
		return false
	}
	d.PutPod(&record)
	if !overlaps(d.View(), c.Pod.UID()) {
		return true
	}
	if here {
		d.PutPod(have)
	} else {
		d.RemovePod(c.Pod.UID())
	}
	return false
}

// sameHoldings returns whether two records of a pod have the same CPUs, memory and devices.
func sameHoldings(a, b *ledger.Pod) bool {
	return slices.EqualFunc(a.Claims, b.Claims, func(a, b ledger.Claim) bool {
		return a.Key() == b.Key() && reflect.DeepEqual(a.CPUs, b.CPUs) &&
			slices.EqualFunc(a.Memory, b.Memory, ledger.Block.Equal) && slices.Equal(idsOf(a), idsOf(b))
	})
}

func idsOf(c ledger.Claim) []string {
	if c.Devices == nil {
		return nil
	}
	return c.Devices.IDs()
}
