package decisions

import (
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/transition"
)

var moveSteps = map[transition.Kind]typesv1.MoveStepKind{
	transition.Widen:    typesv1.MoveStepKind_MOVE_STEP_KIND_WIDEN,
	transition.Migrate:  typesv1.MoveStepKind_MOVE_STEP_KIND_MIGRATE,
	transition.HandOver: typesv1.MoveStepKind_MOVE_STEP_KIND_HAND_OVER,
	transition.Narrow:   typesv1.MoveStepKind_MOVE_STEP_KIND_NARROW,
}

// MovePlan returns the message form of a plan; nil for none.
func MovePlan(p *transition.Plan) *typesv1.MovePlan {
	if p == nil {
		return nil
	}
	out := &typesv1.MovePlan{ContainerCount: uint32(p.Cost.Containers), CpuCount: uint32(p.Cost.CPUs), Bytes: p.Cost.Bytes}
	for i := range p.Steps {
		s := &p.Steps[i]
		before, after := transition.Placed(s.Before), transition.Placed(s.After)
		if s.Kind == transition.Migrate {
			after.Nodes = s.To
		}
		out.Steps = append(out.Steps, &typesv1.MoveStep{
			Kind: moveSteps[s.Kind], PodUid: s.Owner.Pod, ContainerName: s.Owner.Container,
			CpusBefore: convert.SomeCPUs(before.CPUs), CpusAfter: convert.SomeCPUs(after.CPUs),
			MemoryNodesBefore: convert.SomeNodes(before.Nodes), MemoryNodesAfter: convert.SomeNodes(after.Nodes), Bytes: s.Bytes,
		})
	}
	for _, change := range p.Changes {
		for i := range change.To {
			out.Claims = append(out.Claims, convert.Claim(&change.To[i]))
		}
	}
	return out
}
