package simulation

import (
	"context"
	"slices"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/fit"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// policies are the topology policies that are compared.
var policies = []topology.Policy{topology.None, topology.BestEffort, topology.Restricted, topology.SingleNUMANode}

// Comparison shows what becomes of the same pods, in the same order, under several plannings and topology policies.
type Comparison struct {
	// Rows have the planning by container first, and the scene's policy first in each planning.
	Rows []Compared
	// Fewest are the NUMA nodes of each pod alone on the machine, as few as it can have; 0 if it has nothing on certain nodes.
	Fewest []int
}

// Compared shows what becomes of the pods under one planning and one policy.
type Compared struct {
	Planning topology.Planning
	Policy   topology.Policy
	// Refused is why nothing decides with the policy on this machine; nil if something does. There are no outcomes then.
	Refused error
	// Outcomes in the order of the pods.
	Outcomes []Outcome
	CPUs     FreeCPUs
}

// Outcome tells what becomes of a pod.
type Outcome struct {
	Admitted bool
	// Reason is empty for an admitted pod.
	Reason string
	// Nodes are those of the pod's own CPUs, memory and devices while it runs, so without those of init containers, which have ended then.
	// Aligned means that there are some, and no more than alone on the machine.
	Nodes   numa.Mask
	Aligned bool
}

// FreeCPUs are the CPUs that a pod can still get for itself, after the last pod.
type FreeCPUs struct {
	All int
	// OneNode is the most that a container can get on one NUMA node. Scattered is how much more it would be if the same number of free CPUs
	// was together, as far as they can be on one node.
	OneNode, Scattered int
}

// Compare decides about the pods in their order with each planning and each topology policy, each time from an empty machine. A pod has
// started before the next one comes. Errors are those of Run.
func (s Scene) Compare(ctx context.Context, pods []*typesv1.Pod) (*Comparison, error) {
	out := &Comparison{}
	var err error
	if out.Fewest, err = s.fewest(ctx, pods); err != nil {
		return nil, err
	}
	order := slices.Clone(policies)
	slices.SortStableFunc(order, func(a, b topology.Policy) int { return s.rank(a) - s.rank(b) })
	for _, planning := range []topology.Planning{topology.ByContainer, topology.ByPod} {
		for _, policy := range order {
			with := s
			with.Config.Topology.Planning, with.Config.Topology.Policy = planning, policy
			row, err := with.compared(ctx, pods, out.Fewest)
			if len(out.Rows) == 0 && row.Refused != nil {
				err = row.Refused // the scene itself
			}
			if err != nil {
				return nil, err
			}
			out.Rows = append(out.Rows, row)
		}
	}
	return out, nil
}

// rank orders the scene's policy before the others.
func (s Scene) rank(p topology.Policy) int {
	if p == s.Config.Topology.Policy {
		return 0
	}
	return 1
}

// compared decides about the pods with the scene's planning and policy.
func (s Scene) compared(ctx context.Context, pods []*typesv1.Pod, fewest []int) (Compared, error) {
	out := Compared{Planning: s.Config.Topology.Planning, Policy: s.Config.Topology.Policy}
	st, err := s.build()
	if errdefs.ClassOf(err) == errdefs.Invalid {
		out.Refused = err
		return out, nil
	}
	if err != nil {
		return out, err
	}
	trial := st.trial(st.begin(nil), -1)
	for i, m := range pods {
		_, v, err := st.decide(ctx, trial, m)
		if err != nil {
			return out, err
		}
		o := st.outcome(v)
		if o.Admitted {
			if err := trial.Start(v.Pod); err != nil {
				return out, err
			}
		}
		o.Aligned = !o.Nodes.IsEmpty() && o.Nodes.Len() <= fewest[i]
		out.Outcomes = append(out.Outcomes, o)
	}
	out.CPUs = st.freeCPUs(trial.View())
	return out, nil
}

// fewest decides about each pod alone, as a whole, on the fewest NUMA nodes that it can have.
func (s Scene) fewest(ctx context.Context, pods []*typesv1.Pod) (out []int, err error) {
	s.Config.Topology = config.Topology{Policy: topology.BestEffort, Scope: "pod", Planning: topology.ByPod}
	st, err := s.build()
	if err != nil {
		return nil, err
	}
	begin := st.begin(nil)
	for _, m := range pods {
		_, v, err := st.decide(ctx, st.trial(begin, -1), m)
		if err != nil {
			return nil, err
		}
		out = append(out, st.outcome(v).Nodes.Len())
	}
	return out, nil
}

// outcome is a verdict's, without Aligned.
func (s *stage) outcome(v admission.Verdict) (o Outcome) {
	if o.Admitted = v.Outcome == admission.Admitted; !o.Admitted {
		o.Reason = string(v.Reason)
		return o
	}
	for i := range v.Pod.Claims {
		claim := &v.Pod.Claims[i]
		if c := v.Pod.Pod.Container(claim.Owner.Container); c == nil || c.Role != workload.Init { // a claim of the pod has no container
			o.Nodes = o.Nodes.Union(claim.NUMANodes(s.Machine))
		}
	}
	return o
}

// freeCPUs counts the CPUs that pods can have for themselves. Under the CPU policy none there are no such CPUs.
func (s *stage) freeCPUs(view *ledger.View) (out FreeCPUs) {
	largest := 0
	for _, node := range fit.Nodes(view, s.managerSet, s.devices) {
		for _, r := range node.Resources {
			if r.Name == string(workload.CPU) && r.Aligned {
				out.All += int(r.Available)
				out.OneNode = max(out.OneNode, int(r.Available))
				largest = max(largest, int(r.Allocatable))
			}
		}
	}
	out.Scattered = min(out.All, largest) - out.OneNode
	return out
}
