package drawing

import (
	"context"
	"fmt"
	"maps"
	"slices"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/clients/berthctl/nodemap"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/table"
	"github.com/berthd/berth/clients/simulation"
)

// SimulatedState returns what a map shows after a simulation.
func SimulatedState(scene simulation.Scene, placed simulation.Placement) nodemap.State {
	state := nodemap.State{
		Machine: scene.Machine, Offline: scene.Machine.Offline().Union(placed.View.Machine().Offline()), Reserved: placed.Reserved,
		Shared: placed.View.SharedCPUs(),
	}
	holder := map[[2]string]string{}
	for p := range placed.View.Pods() {
		pod := nodemap.Pod{UID: p.UID(), Name: p.Pod.Namespace + "/" + p.Pod.Name}
		for _, c := range p.Claims {
			if c.CPUs != nil {
				pod.CPUs = pod.CPUs.Union(c.CPUs.Set)
			}
			for _, b := range c.Memory {
				pod.Blocks = append(pod.Blocks, nodemap.Block{Resource: c.Resource, Nodes: b.Nodes, Bytes: b.Bytes})
			}
			if c.Devices != nil {
				for _, id := range c.Devices.IDs() {
					holder[[2]string{c.Resource, id}] = p.UID()
				}
			}
		}
		state.Pods = append(state.Pods, pod)
	}
	for _, n := range placed.Memory {
		for _, r := range n.Resources {
			state.Memory = append(state.Memory, nodemap.Memory{
				Node: n.Node, Resource: r.Resource, Reserved: r.SystemReserved + r.Taken,
				Allocatable: r.Allocatable - r.Taken, Held: r.Held,
			})
		}
	}
	byNodeAndResource(state.Memory)
	for _, resource := range slices.Sorted(maps.Keys(scene.Devices)) {
		for _, d := range scene.Devices[resource] {
			state.Devices = append(state.Devices, nodemap.Device{
				Resource: resource, ID: d.ID, Nodes: d.Nodes, Healthy: d.Healthy, Pod: holder[[2]string{resource, d.ID}],
			})
		}
	}
	escape(&state)
	return state
}

// ShowPlanned draws the machine with a pod where a dry run would put it, or without it if it
// was not admitted.
func ShowPlanned(ctx context.Context, s *command.Session, pod *typesv1.Pod, answer *admissionv1.AdmitResponse, o nodemap.Options) error {
	state, err := MapState(ctx, s, s.Now())
	if err != nil {
		return err
	}
	meta := pod.GetMetadata()
	if answer.GetVerdict() == admissionv1.Verdict_VERDICT_ADMITTED {
		addPlanned(&state, meta.GetUid(), meta.GetNamespace()+"/"+meta.GetName(), answer.GetTrace())
		fmt.Fprintf(s.Out, "\nthe machine with %s on it:\n\n", command.OneLine(meta.GetNamespace()+"/"+meta.GetName()))
	} else {
		fmt.Fprint(s.Out, "\nthe machine now:\n\n")
	}
	return ShowMap(s.Ctl, state, o)
}

// addPlanned puts the planned claims of a pod on the machine.
func addPlanned(state *nodemap.State, uid, name string, trace *typesv1.Trace) {
	var claims []*typesv1.Claim
	for _, step := range trace.GetSteps() {
		switch step.GetKind() {
		case typesv1.TraceStepKind_TRACE_STEP_KIND_REPLANNED:
			claims = nil
		case typesv1.TraceStepKind_TRACE_STEP_KIND_PLANNED:
			claims = append(claims, step.GetClaim())
		}
	}
	Add(state, uid, name, claims)
}

// Add puts a pod with its claims on the machine. A pod that is there already stays as it is.
func Add(state *nodemap.State, uid, name string, claims []*typesv1.Claim) {
	pod := MapPod(uid, name, claims, nil)
	if slices.ContainsFunc(state.Pods, func(p nodemap.Pod) bool { return p.UID == pod.UID }) {
		return
	}
	pod.New = true
	state.Pods = append(slices.Clone(state.Pods), pod)
	state.Shared = state.Shared.Minus(pod.CPUs)
	state.Memory, state.Devices = slices.Clone(state.Memory), slices.Clone(state.Devices)
	for _, b := range pod.Blocks {
		Hold(state.Memory, b)
	}
	for _, c := range claims {
		for _, d := range c.GetDevice().GetDevices() {
			for i := range state.Devices {
				if at := &state.Devices[i]; at.Resource == table.Printable(c.GetResource()) && at.ID == table.Printable(d.GetId()) {
					at.Pod = pod.UID
				}
			}
		}
	}
}

// ShowExplained draws the NUMA nodes on which a decision missed something, or the whole
// machine if nodes did not matter.
func ShowExplained(ctx context.Context, s *command.Session, t *typesv1.Trace, o nodemap.Options) error {
	state, err := MapState(ctx, s, s.Now())
	if err != nil {
		return err
	}
	for _, step := range t.GetSteps() {
		for _, short := range step.GetShortages() {
			o.Nodes = o.Nodes.Union(convert.Nodes(short.GetNumaNodes()))
		}
	}
	o.Nodes = o.Nodes.Intersect(state.Machine.NodeMask())
	when := ""
	if state.Revision != t.GetRevision() {
		when = fmt.Sprintf(" (revision %d; the decision was made on revision %d)", state.Revision, t.GetRevision())
	}
	fmt.Fprintf(s.Out, "\nthe machine now%s:\n\n", when)
	return ShowMap(s.Ctl, state, o)
}

// Hold adds a block to what is held of the memory of its nodes.
func Hold(memory []nodemap.Memory, b nodemap.Block) {
	left := b.Bytes
	for i := range memory {
		if m := &memory[i]; m.Resource == b.Resource && b.Nodes.Contains(m.Node) {
			add := min(left, m.Allocatable-min(m.Allocatable, m.Held))
			m.Held += add
			left -= add
		}
	}
}
