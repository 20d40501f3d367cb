package simulation

import (
	"context"
	"fmt"
	"strings"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/machine"
)

// Event changes the machine, or a pod, after the pods were admitted.
type Event struct {
	// Text returns the event, as ParseEvent reads it.
	Text string
	// Offline and Online are CPUs that go offline or come back.
	Offline, Online cpuset.Set
	// Machine replaces the machine; nil for the other events.
	Machine *machine.Topology
	// Resize changes a pod; nil for the other events.
	Resize *Resize
}

// ParseEvent reads "offline=CPUS", "online=CPUS", "machine=FILE|SHAPE" or
// "resize=NAMESPACE/POD/CONTAINER:cpu=AMOUNT,memory=AMOUNT"; find returns a machine. Errors are of class Invalid.
func ParseEvent(text string, find func(fileOrShape string) (*machine.Topology, error)) (e Event, err error) {
	kind, value, _ := strings.Cut(text, "=")
	e.Text = text
	switch kind {
	case "offline":
		e.Offline, err = cpuset.Parse(value)
	case "online":
		e.Online, err = cpuset.Parse(value)
	case "machine":
		e.Machine, err = find(value)
	case "resize":
		e.Resize, err = parseResize(value)
	default:
		return e, errdefs.Invalidf("%q: expected offline=CPUS, online=CPUS, machine=FILE|SHAPE or resize=NAMESPACE/POD/CONTAINER:cpu=AMOUNT", text)
	}
	if err != nil {
		return e, errdefs.Invalidf("%q: %w", text, err)
	}
	if e.Resize == nil && e.Machine == nil && e.Offline.IsEmpty() && e.Online.IsEmpty() {
		return e, errdefs.Invalidf("%q: expected CPUs, such as %s=2-3", text, kind)
	}
	return e, nil
}

// follow changes the machine of a stage and its pods, as a running berthd does: pods keep what they hold, unless the
// configuration replaces what they lose, and reserved CPUs stay reserved if the configuration says so.
func (s *stage) follow(ctx context.Context, view *ledger.View, events []Event) (*stage, *ledger.View, []*admissionv1.SimulatedChange,
	error) {
	var out []*admissionv1.SimulatedChange
	whole, offline := s.Machine, cpuset.Set{}
	for _, e := range events {
		if e.Resize != nil {
			text, next, err := s.resize(ctx, view, e.Resize)
			if err != nil {
				return nil, nil, nil, errdefs.Invalidf("%s: %w", e.Text, err)
			}
			view = next
			out = append(out, &admissionv1.SimulatedChange{Event: e.Text, Change: text})
			continue
		}
		if e.Machine != nil {
			whole, offline = e.Machine, cpuset.Set{}
		}
		all := whole.CPUs().Union(offline)
		if strange := e.Offline.Union(e.Online).Minus(all); !strange.IsEmpty() {
			return nil, nil, nil, errdefs.Invalidf("%s: the machine has no CPUs %s", e.Text, strange)
		}
		offline = offline.Union(e.Offline).Minus(e.Online)
		now, err := whole.Without(offline)
		if err != nil {
			return nil, nil, nil, errdefs.Invalidf("%s: %w", e.Text, err)
		}
		before := s.Machine
		next := s.Scene
		next.Machine = now
		if s, err = next.buildKeeping(next.Config.KeptReserved(view.Rules().ReservedCPUs)); err != nil {
			return nil, nil, nil, errdefs.Invalidf("%s: the configuration does not fit the changed machine: %w", e.Text, err)
		}
		view = view.Under(s.managerSet.Rules)
		change := &admissionv1.SimulatedChange{Event: e.Text, Change: machine.Compare(before, now).String()}
		if s.Config.Hotplug.OnLost == config.LostReplace {
			trial := s.trial(view, -1)
			replaced, err := trial.Replace(ctx)
			if err != nil {
				return nil, nil, nil, errdefs.Invalidf("%s: %w", e.Text, err)
			}
			for _, r := range replaced {
				if r.Refused == nil {
					pod, _ := view.Pod(r.UID)
					change.Change += fmt.Sprintf("; pod %s/%s moves", pod.Pod.Namespace, pod.Pod.Name)
				}
			}
			view = trial.View()
		}
		for _, f := range check.View(view) {
			change.Findings = append(change.Findings, &admissionv1.SimulatedFinding{PodUid: f.Owner.Pod, Text: f.Text})
		}
		out = append(out, change)
	}
	return s, view, out, nil
}

// On returns the scene with the machine of a placement, which events may have changed.
func (s Scene) On(p Placement) Scene {
	s.Machine = p.View.Machine()
	return s
}
