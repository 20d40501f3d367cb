package importer

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/workload"
)

// plan adds the file's facts to a draft on a view, and describes them.
func (i *importing) plan(ctx context.Context, view *ledger.View) (err error) {
	i.view, i.draft, i.out = view, ledger.NewDraft(view), Result{}
	if i.out.Facts, err = i.read(i.view, i.SkipUnknown); err != nil {
		return err
	}
	if err := i.sift(); err != nil {
		return fmt.Errorf("import %s: %w", i.out.Facts.File, err)
	}
	i.rememberResources()
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
		i.out.Pods = append(i.out.Pods, Pod{Pod: pod, Outcome: outcomes[uid]})
	}
	return nil
}

// read returns the facts in the file for a view.
func (i *importing) read(view *ledger.View, skipUnknown bool) (kubelet.Facts, error) {
	specs := make(map[string]*workload.Pod, len(i.given))
	for uid, record := range i.given {
		specs[uid] = &record.Pod
	}
	return kubelet.Read(i.Kind, i.Data, kubelet.Input{
		Settings: i.Settings, View: view, Pods: specs, ContainerIDs: i.ContainerIDs, SkipUnknown: skipUnknown,
		PodLevel: i.engine.Features.PodLevelResourceManagers,
	})
}

// rememberResources records the device resources that had plugins, so that they count as
// known until their plugins register.
func (i *importing) rememberResources() {
	seen := map[string]bool{}
	for r := range i.view.SeenResources() {
		seen[r.Name] = true
	}
	for _, name := range i.out.Facts.Resources {
		if !seen[name] {
			i.draft.PutResource(ledger.SeenResource{Name: name, LastSeen: i.engine.Now()})
		}
	}
}

// adopt adds the claims of one pod to the draft.
func (i *importing) adopt(uid string, claims []ledger.Claim) (outcome string, err error) {
	given := i.given[uid]
	have, known := i.view.Pod(uid)
	if !known {
		record := *given
		record.Claims, record.Trace = claims, i.trace(&given.Pod, given.AdmissionID, claims)
		i.noteOthers(&record)
		i.draft.PutPod(&record)
		return New, nil
	}
	if given != nil && given.Digest != have.Digest {
		return "", errdefs.Preconditionf("pod %s is admitted with another specification than the one given", uid).
			Coded(errdefs.PodSpecDiffers, "pod_uid", uid)
	}
	var missing []ledger.Claim
	for _, c := range claims {
		held := slices.IndexFunc(have.Claims, func(h ledger.Claim) bool {
			return h.Key() == c.Key()
		})
		switch {
		case held < 0:
			missing = append(missing, c)
		case !sameAllocation(have.Claims[held], c):
			var vs errdefs.Violations
			vs.Addf(c.Owner.String(), "%s holds %s in the ledger, and %s in the file", c.Owner, claimText(have.Claims[held]), claimText(c))
			return "", vs.Precondition("").
				Coded(errdefs.ImportContradicts, "pod_uid", c.Owner.Pod, "container_name", c.Owner.Container, "resource", c.Resource)
		}
	}
	if len(missing) == 0 {
		return Known, nil
	}
	i.draft.AddClaims(uid, missing...)
	i.draft.PutTrace(i.extended(have, missing))
	return Extended, nil
}

// sameAllocation returns whether two claims of one owner are the same allocation. How a block
// is divided among its nodes, and what a plugin answered about its devices, does not
// matter.
func sameAllocation(a, b ledger.Claim) bool {
	a.Affinity, b.Affinity = nil, nil
	a.Memory, b.Memory = undivided(a.Memory), undivided(b.Memory)
	a.Devices, b.Devices = bare(a.Devices), bare(b.Devices)
	return reflect.DeepEqual(a, b)
}

func undivided(blocks []ledger.Block) (out []ledger.Block) {
	for _, b := range blocks {
		out = append(out, ledger.Block{Nodes: b.Nodes, Bytes: b.Bytes})
	}
	return out
}

// bare returns devices with only the data that a kubelet's file has.
func bare(d *ledger.Devices) *ledger.Devices {
	if d == nil {
		return nil
	}
	out := &ledger.Devices{Devices: slices.Clone(d.Devices)}
	for i := range out.Devices {
		out.Devices[i].Topology = !out.Devices[i].Nodes.IsEmpty()
	}
	return out
}

// claimText describes the content of a claim.
func claimText(c ledger.Claim) string {
	if c.CPUs != nil {
		return fmt.Sprintf("CPUs %s (%s)", c.CPUs.Set, c.CPUs.Use)
	}
	if len(c.Memory) > 0 {
		b := c.Memory[0]
		return kubelet.MemoryBlock{Nodes: b.Nodes, Resource: c.Resource, Bytes: b.Bytes}.String()
	}
	if c.Devices != nil {
		return c.Resource + " " + strings.Join(c.Devices.IDs(), ", ")
	}
	return "other " + c.Resource
}

// trace describes the source of the claims.
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

// extended is the trace of a pod's last admission, with the claims that this file adds. A kubelet has a file for each kind of claims.
func (i *importing) extended(have *ledger.Pod, missing []ledger.Claim) *ledger.Trace {
	before, known := i.view.TraceOfPod(have.UID())
	if !known || !before.Admitted {
		before = have.Trace
	}
	more := i.trace(&have.Pod, i.engine.NewID(), missing)
	if before == nil {
		return more
	}
	out := *more
	out.Steps = slices.Clone(before.Steps)
	for _, s := range more.Steps {
		if s.Kind != ledger.StepNoted {
			out.Add(s)
			continue
		}
		if notes := slices.IndexFunc(out.Steps, func(o ledger.Step) bool { return o.Kind != ledger.StepNoted }); notes < 0 {
			out.Add(s)
		} else if !slices.ContainsFunc(out.Steps[:notes], func(o ledger.Step) bool { return o.Text == s.Text }) {
			out.Steps = slices.Insert(out.Steps, notes, s)
		}
	}
	return &out
}

// noteOthers notes requested devices that this file does not contain. The pod counts as
// admitted after the import, so they will not be allocated.
func (i *importing) noteOthers(record *ledger.Pod) {
	for _, c := range record.Pod.Walk() {
		for name, n := range c.Limits.Sorted() {
			if _, held := record.Claim(c.Name, string(name)); name.IsExtended() && n > 0 && !held {
				i.out.Facts.Notes = append(i.out.Facts.Notes, fmt.Sprintf(
					"%s/%s requests %s, which this file does not have: import its kind too", record.UID(), c.Name, name))
			}
		}
	}
}

// check refuses contradictory facts, and reports facts that the rules or a validator would
// not allow.
func (i *importing) check(ctx context.Context, outcomes map[string]string) error {
	// The reservations of the pods in the file already count for them.
	own := slices.Collect(maps.Keys(i.given))
	before := check.View(i.engine.WithReservations(i.view, own...))
	var conflicts errdefs.Violations
	for _, f := range check.View(i.engine.WithReservations(i.draft.View(), own...)) {
		switch {
		case slices.ContainsFunc(before, f.Same):
		case f.Kind == check.Structural, !i.Force:
			conflicts.Addf(f.Owner.String(), "%s", f.Text)
		default:
			i.out.Findings = append(i.out.Findings, f)
		}
	}
	if len(conflicts) > 0 {
		return conflicts.Precondition("").Coded(errdefs.ImportContradicts)
	}
	bus, _ := i.engine.Managers(i.view)
	if bus == nil {
		return fmt.Errorf("the policy or the machine has changed meanwhile: %w", ledger.ErrStale)
	}
	for _, uid := range slices.Sorted(maps.Keys(outcomes)) {
		if outcomes[uid] == Known {
			continue
		}
		pod, _ := i.draft.View().Pod(uid)
		trace := pod.Trace
		if outcomes[uid] != New {
			trace = &ledger.Trace{} // the pod's own trace is committed, and describes its admission
		}
		err := bus.Validate(ctx, i.draft.View(), hint.Request{Pod: &pod.Pod, Container: -1, Running: true}, trace)
		switch {
		case err != nil && errdefs.ClassOf(err) == errdefs.Refused:
			i.out.Findings = append(i.out.Findings, check.Finding{
				Kind: check.Policy, Rule: check.RuleValidator, Owner: ledger.Owner{Pod: uid}, Text: err.Error(),
			})
		case err != nil:
			return err
		}
	}
	return nil
}
