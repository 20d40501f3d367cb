package admission

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/fault"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/workload"
)

// Import asks to take over what a kubelet's state file says.
type Import struct {
	Kind kubelet.Kind
	Data []byte
	// Policy is what the manager of the kind runs under.
	Policy string
	// Pods that the file speaks of, as the caller sent them, before defaulting.
	Pods []workload.Pod
	// ContainerIDs and SkipUnknown are as in kubelet.Input.
	ContainerIDs map[string]ledger.Owner
	SkipUnknown  bool
	DryRun       bool
}

// Outcomes of a pod of an import.
const (
	// ImportNew: the ledger did not know the pod.
	ImportNew = "new"
	// ImportExtended: the ledger did not know all that the pod holds.
	ImportExtended = "extended"
	// ImportKnown: the ledger knew all of it.
	ImportKnown = "known"
)

// ImportedPod is one pod of an import.
type ImportedPod struct {
	Pod     *ledger.Pod
	Outcome string
}

// Imported is the outcome of an import.
type Imported struct {
	Facts kubelet.Facts
	// Pods in order of their uids.
	Pods []ImportedPod
	// Findings about imported claims that today's rules would not allow. They
	// are kept, as at a start.
	Findings []ledger.Finding
	// View with the import; a dry run's is that of its draft.
	View *ledger.View
}

// Import takes over what a state file says, in one commit or not at all. The file
// tells what is the case, so nobody is asked whether it may be: what the rules
// would not allow is reported. A pod of the ledger keeps what it has.
//
// Errors are those of kubelet.Read, and of class Invalid for pods that are not
// well-formed, Precondition for a pod that the ledger knows with another
// specification, Conflict where two owners hold the same thing, which are named.
func (e *Engine) Import(ctx context.Context, req Import) (Imported, error) {
	i := &importing{Import: req, engine: e, given: map[string]*ledger.Pod{}, notes: map[string][]string{}}
	if err := i.readPods(); err != nil {
		return Imported{}, err
	}
	if req.DryRun {
		i.begin(e.Ledger.View())
		return i.out, i.plan(ctx)
	}
	for _, uid := range slices.Sorted(maps.Keys(i.given)) {
		unlock, err := e.pods.lock(ctx, uid)
		if err != nil {
			return Imported{}, err
		}
		defer unlock()
	}
	leave, err := e.enterLane(ctx)
	if err != nil {
		return Imported{}, err
	}
	defer leave()
	for attempt := 1; ; attempt++ {
		err := i.attempt(ctx)
		switch {
		case err == nil:
			return i.out, nil
		case !errors.Is(err, ledger.ErrStale):
			return Imported{}, errors.Join(err, i.undo.run())
		case attempt == e.Attempts:
			return Imported{}, errors.Join(
				fault.Unavailablef("import: the ledger moved during each of %d attempts", attempt), i.undo.run())
		}
	}
}

// importing is an import on its way.
type importing struct {
	Import
	engine *Engine
	bus    Bus
	// given are the records of the pods that the caller sent, and notes what
	// defaulting did to them, by uid.
	given map[string]*ledger.Pod
	notes map[string][]string
	undo  cleanup

	// Of one attempt.
	view  *ledger.View
	draft *ledger.Draft
	out   Imported
}

// readPods makes records of the pods that were sent, as an admission would.
func (i *importing) readPods() error {
	e := i.engine
	for n, sent := range i.Pods {
		pod, notes := workload.Defaulted(sent, e.Features)
		if err := workload.Validate(&pod, e.Bounds); err != nil {
			return err
		}
		pod.QoS = pod.QoSClass(e.Features)
		digest, err := pod.Digest()
		if err != nil {
			return fmt.Errorf("import pod %s: %w", &pod, err)
		}
		if i.given[pod.UID] != nil {
			var vs fault.Violations
			vs.Addf(fmt.Sprintf("pods[%d].metadata.uid", n), "pod %s is given twice", pod.UID)
			return vs.Err("request")
		}
		i.given[pod.UID] = &ledger.Pod{
			Pod: pod, Digest: digest, QoS: pod.QoS, AdmissionID: e.NewID(), AdmittedAt: e.Now(),
		}
		i.notes[pod.UID] = notes
	}
	return nil
}

func (i *importing) begin(view *ledger.View) {
	i.view, i.draft, i.out = view, ledger.NewDraft(view), Imported{}
	i.bus, _ = i.engine.Managers(view)
}

// plan puts the facts into the draft and says what they mean.
func (i *importing) plan(ctx context.Context) (err error) {
	specs := make(map[string]*workload.Pod, len(i.given))
	for uid, record := range i.given {
		specs[uid] = &record.Pod
	}
	i.out.Facts, err = kubelet.Read(i.Kind, i.Data, kubelet.Input{
		View: i.view, Pods: specs, Policy: i.Policy, ContainerIDs: i.ContainerIDs, SkipUnknown: i.SkipUnknown,
	})
	if err != nil {
		return err
	}
	claims := map[string][]ledger.Claim{}
	for _, c := range i.out.Facts.Claims {
		claims[c.Owner.Pod] = append(claims[c.Owner.Pod], c)
	}
	outcomes := map[string]string{}
	for _, uid := range slices.Sorted(maps.Keys(claims)) {
		if outcomes[uid], err = i.adopt(uid, claims[uid]); err != nil {
			return fmt.Errorf("import %s: %w", i.out.Facts.File, err)
		}
	}
	if err := i.check(ctx, outcomes); err != nil {
		return fmt.Errorf("import %s: %w", i.out.Facts.File, err)
	}
	i.out.View = i.draft.View()
	for _, uid := range slices.Sorted(maps.Keys(outcomes)) {
		pod, _ := i.out.View.Pod(uid)
		i.out.Pods = append(i.out.Pods, ImportedPod{Pod: pod, Outcome: outcomes[uid]})
	}
	return nil
}

// adopt puts the claims of one pod into the draft.
func (i *importing) adopt(uid string, claims []ledger.Claim) (outcome string, err error) {
	given := i.given[uid]
	have, known := i.view.Pod(uid)
	if !known {
		record := *given
		record.Claims, record.Trace = claims, i.trace(&given.Pod, given.AdmissionID, claims)
		i.noteOthers(&record)
		i.draft.PutPod(&record)
		return ImportNew, nil
	}
	if given != nil && given.Digest != have.Digest {
		return "", fault.Preconditionf("pod %s is admitted with another specification than the one given", uid)
	}
	var missing []ledger.Claim
	for _, c := range claims {
		held := slices.IndexFunc(have.Claims, func(h ledger.Claim) bool {
			return h.Owner == c.Owner && h.Resource == c.Resource && h.Provider == c.Provider
		})
		switch {
		case held < 0:
			missing = append(missing, c)
		case !sameHolding(have.Claims[held], c):
			return "", fault.Conflictf("%s holds %s in the ledger, and %s in the file", c.Owner, holding(have.Claims[held]), holding(c))
		}
	}
	if len(missing) == 0 {
		return ImportKnown, nil
	}
	i.draft.AddClaims(uid, missing...)
	i.draft.PutTrace(i.trace(&have.Pod, i.engine.NewID(), missing))
	return ImportExtended, nil
}

// sameHolding tells whether two claims of one owner are the same fact.
func sameHolding(a, b ledger.Claim) bool {
	a.Affinity, b.Affinity = nil, nil
	return reflect.DeepEqual(a, b)
}

// holding says what a claim is about.
func holding(c ledger.Claim) string {
	if c.CPUs != nil {
		return fmt.Sprintf("CPUs %s (%s)", c.CPUs.Set, c.CPUs.Use)
	}
	return "other " + c.Resource
}

// trace explains where claims come from.
func (i *importing) trace(pod *workload.Pod, id string, claims []ledger.Claim) *ledger.Trace {
	t := &ledger.Trace{
		AdmissionID: id, Pod: pod.UID, Namespace: pod.Namespace, Name: pod.Name,
		Generation: i.view.Generation(), Admitted: true, DryRun: i.DryRun,
	}
	for _, n := range i.notes[pod.UID] {
		t.Add(ledger.Step{Kind: ledger.StepNoted, Text: n})
	}
	t.Add(ledger.Step{Kind: ledger.StepNoted, Text: "taken over from a kubelet's " + i.out.Facts.File})
	for _, c := range claims {
		t.Add(ledger.Step{
			Kind: ledger.StepPlanned, Container: c.Owner.Container, Provider: c.Provider, Resource: c.Resource, Claim: &c,
		})
	}
	return t
}

// noteOthers says which devices a new pod asks for that this file does not tell
// of: the pod counts as admitted from here on, so nobody will allocate them.
func (i *importing) noteOthers(record *ledger.Pod) {
	for _, c := range record.Pod.Walk() {
		for name, n := range c.Limits.Sorted() {
			if _, told := record.Claim(c.Name, string(name)); name.IsExtended() && n > 0 && !told {
				i.out.Facts.Notes = append(i.out.Facts.Notes, fmt.Sprintf(
					"%s/%s asks for %s, of which this file does not tell: import its kind too", record.UID(), c.Name, name))
			}
		}
	}
}

// check refuses facts that cannot all be true, and reports those that the rules
// or a validator would not allow.
func (i *importing) check(ctx context.Context, outcomes map[string]string) error {
	before := map[ledger.Finding]bool{}
	for _, f := range ledger.Check(i.view) {
		before[f] = true
	}
	var conflicts []string
	for _, f := range ledger.Check(i.draft.View()) {
		switch {
		case before[f]:
		case f.Kind == ledger.Structural:
			conflicts = append(conflicts, f.Text)
		default:
			i.out.Findings = append(i.out.Findings, f)
		}
	}
	if len(conflicts) > 0 {
		return fault.Conflictf("%s", strings.Join(conflicts, "; "))
	}
	for _, uid := range slices.Sorted(maps.Keys(outcomes)) {
		if outcomes[uid] == ImportKnown {
			continue
		}
		pod, _ := i.draft.View().Pod(uid)
		trace := pod.Trace
		if outcomes[uid] != ImportNew {
			trace = &ledger.Trace{} // the pod's own is committed, and tells of its admission
		}
		err := i.bus.Validate(ctx, i.draft.View(), hint.Request{Pod: &pod.Pod, Container: -1}, trace)
		switch {
		case err != nil && fault.ClassOf(err) == fault.Refused:
			i.out.Findings = append(i.out.Findings, ledger.Finding{
				Kind: ledger.Policy, Rule: ledger.RuleValidator, Owner: ledger.Owner{Pod: uid}, Text: err.Error(),
			})
		case err != nil:
			return err
		}
	}
	return nil
}

// attempt plans on the current view, makes the new pods' cgroups and commits. An
// error wrapping ledger.ErrStale means that the ledger moved.
func (i *importing) attempt(ctx context.Context) error {
	i.begin(i.engine.Ledger.View())
	if err := i.plan(ctx); err != nil {
		return err
	}
	for n, p := range i.out.Pods {
		if p.Outcome != ImportNew {
			continue
		}
		record, err := i.place(ctx, p.Pod)
		if err != nil {
			return err
		}
		i.draft.PutPod(record)
		i.out.Pods[n].Pod = record
	}
	view, err := i.engine.Ledger.Commit(ctx, i.draft)
	if err != nil {
		return fmt.Errorf("import %s: %w", i.out.Facts.File, err)
	}
	i.out.View = view
	return nil
}

// place makes the cgroup of a new pod; under a kubelet it is there already.
func (i *importing) place(ctx context.Context, pod *ledger.Pod) (*ledger.Pod, error) {
	record, view := *pod, i.draft.View()
	parent, created, err := i.engine.Places.EnsurePod(ctx, view, pod.UID())
	if created {
		undoing := context.WithoutCancel(ctx)
		i.undo.add(func() error { return i.engine.Places.ForgetPod(undoing, view, pod.UID()) })
	}
	if err != nil {
		return nil, fmt.Errorf("import %s: make the cgroup of pod %s: %w", i.out.Facts.File, pod.UID(), err)
	}
	record.CgroupParent = parent
	record.Trace.Add(ledger.Step{Kind: ledger.StepPlaced, Text: "cgroup " + parent})
	record.Trace.Add(ledger.Step{Kind: ledger.StepCommitted})
	return &record, nil
}
