package simulation_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/simulation"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/topology"
)

// of makes a pod with a container of each number of CPUs; those before the last one are init containers if early.
func of(uid string, early bool, cpus ...int) *typesv1.Pod {
	out := guaranteed(uid, 1, 0)
	out.Spec.Containers = nil
	for i, n := range cpus {
		c := guaranteed(uid, n, 0).GetSpec().GetContainers()[0]
		c.Name = fmt.Sprintf("c%d", i)
		if early && i+1 < len(cpus) {
			out.Spec.InitContainers = append(out.Spec.InitContainers, c)
		} else {
			out.Spec.Containers = append(out.Spec.Containers, c)
		}
	}
	return out
}

// withMemory gives the containers other amounts of memory, init containers first.
func withMemory(p *typesv1.Pod, amounts ...string) *typesv1.Pod {
	for i, c := range slices.Concat(p.GetSpec().GetInitContainers(), p.GetSpec().GetContainers()) {
		c.Resources.Requests["memory"], c.Resources.Limits["memory"] = amounts[i], amounts[i]
	}
	return p
}

// TestCompare: what becomes of pods under each planning and policy. Texts are the outcomes of a row in the order of the pods, and its free
// CPUs: all, of one node, scattered.
func TestCompare(t *testing.T) {
	t.Parallel()
	const kubelet, berth = topology.ByContainer, topology.ByPod
	const tooMany = "unsupported on machines with more than 8 NUMA Nodes"
	for name, row := range map[string]struct {
		shape, devices string
		policy         topology.Policy
		pods           []*typesv1.Pod
		change         func(*simulation.Scene)
		fewest         string
		want           map[topology.Planning]map[topology.Policy]string
	}{
		"an init container keeps the app off the node that has room": {
			shape: "1s2n4c", policy: topology.SingleNUMANode, pods: []*typesv1.Pod{of("warm", true, 1, 4)}, fewest: "[1]",
			want: map[topology.Planning]map[topology.Policy]string{
				kubelet: {
					topology.SingleNUMANode: "TopologyAffinityError; 7 4 0", topology.Restricted: "TopologyAffinityError; 7 4 0",
					topology.BestEffort: "aligned on 1; 2 2 0", // the init container's CPU on the other node stays the pod's
				},
				berth: {
					topology.SingleNUMANode: "aligned on 1; 3 3 0", topology.Restricted: "aligned on 1; 3 3 0",
					topology.BestEffort: "aligned on 1; 3 3 0", topology.None: "aligned on 1; 3 3 0",
				},
			},
		},
		"containers of a pod on different nodes": {
			shape: "1s2n4c", policy: topology.Restricted, pods: []*typesv1.Pod{of("two", false, 2, 2)}, fewest: "[1]",
			want: map[topology.Planning]map[topology.Policy]string{
				kubelet: {topology.Restricted: "on 0-1; 3 2 1"}, berth: {topology.Restricted: "on 0-1; 3 2 1"},
			},
		},
		"the same with pod scope": {
			shape: "1s2n4c", policy: topology.Restricted, pods: []*typesv1.Pod{of("two", false, 2, 2)}, fewest: "[1]",
			change: func(s *simulation.Scene) { s.Config.Topology.Scope = "pod" },
			want: map[topology.Planning]map[topology.Policy]string{
				kubelet: {topology.Restricted: "aligned on 1; 3 3 0"}, berth: {topology.Restricted: "aligned on 1; 3 3 0"},
			},
		},
		"a pod that no single node can hold": {
			shape: "1s2n4c", policy: topology.BestEffort, pods: []*typesv1.Pod{guaranteed("wide", 6, 0)}, fewest: "[2]",
			want: map[topology.Planning]map[topology.Policy]string{
				kubelet: {
					topology.BestEffort: "aligned on 0-1; 1 1 0", topology.Restricted: "aligned on 0-1; 1 1 0",
					topology.SingleNUMANode: "TopologyAffinityError; 7 4 0",
				},
			},
		},
		"free CPUs on two nodes": {
			shape: "1s2n8c", policy: topology.SingleNUMANode, pods: []*typesv1.Pod{guaranteed("a", 4, 0), guaranteed("b", 5, 0)},
			fewest: "[1 1]",
			want: map[topology.Planning]map[topology.Policy]string{
				kubelet: {topology.SingleNUMANode: "aligned on 0, aligned on 1; 6 3 3"},
			},
		},
		"a device on the other node": {
			shape: "1s2n4c", devices: "gpu@1", policy: topology.None, pods: []*typesv1.Pod{guaranteed("a", 1, 1)}, fewest: "[1]",
			want: map[topology.Planning]map[topology.Policy]string{
				kubelet: {topology.None: "on 0-1; 6 4 0", topology.BestEffort: "aligned on 1; 6 3 1"},
			},
		},
		// The kubelet frees what the init container had when the app starts, so the third pod has room (docs/deviations.md, T9).
		"memory of an ended init container": {
			shape: "1s2n4c", policy: topology.SingleNUMANode, fewest: "[1 1 1]",
			pods: []*typesv1.Pod{
				withMemory(of("warm", true, 1, 1), "60Gi", "1Gi"), withMemory(of("b", false, 1), "10Gi"),
				withMemory(of("c", false, 1), "55Gi"),
			},
			change: func(s *simulation.Scene) {
				s.Config.Memory.Policy, s.Config.Memory.AllowUnreserved = "Static", true
				s.Config.Reserved.EvictionHard = map[string]string{}
			},
			want: map[topology.Planning]map[topology.Policy]string{
				kubelet: {topology.SingleNUMANode: "aligned on 0, aligned on 0, aligned on 1; 4 3 1"},
				berth:   {topology.SingleNUMANode: "aligned on 0, aligned on 1, UnexpectedAdmissionError; 5 3 1"},
			},
		},
		"nothing on certain nodes": {
			shape: "1s2n4c", policy: topology.None, pods: []*typesv1.Pod{guaranteed("a", 1, 0)}, fewest: "[0]",
			change: func(s *simulation.Scene) { s.Config.CPU.Policy = "none" },
			want: map[topology.Planning]map[topology.Policy]string{
				kubelet: {topology.None: "anywhere; 0 0 0", topology.Restricted: "anywhere; 0 0 0"},
			},
		},
		"more nodes than a kubelet accepts": {
			shape: "1s9n2c", policy: topology.None, pods: []*typesv1.Pod{guaranteed("a", 3, 0)}, fewest: "[2]",
			change: func(s *simulation.Scene) { s.Config.Topology.MaxNodes = topology.ReferenceMaxNodes },
			want: map[topology.Planning]map[topology.Policy]string{
				kubelet: {
					topology.Restricted: tooMany, topology.None: "aligned on 0-1; 14 2 0",
				},
				berth: {topology.SingleNUMANode: tooMany},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := scene(t, row.shape, row.policy, row.devices)
			if row.change != nil {
				row.change(&s)
			}
			found, err := s.Compare(t.Context(), row.pods)
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(found.Fewest); got != row.fewest {
				t.Errorf("fewest %s, want %s", got, row.fewest)
			}
			got := map[topology.Planning]map[topology.Policy]string{kubelet: {}, berth: {}}
			for _, r := range found.Rows {
				got[r.Planning][r.Policy] = rowText(r)
			}
			for planning, policies := range row.want {
				for policy, want := range policies {
					if text := got[planning][policy]; text != want {
						t.Errorf("%s, %s: got %q, want %q", planning, policy, text, want)
					}
				}
			}
		})
	}
}

func rowText(r simulation.Compared) string {
	if r.Refused != nil {
		return r.Refused.Error()
	}
	var out []string
	for _, o := range r.Outcomes {
		switch {
		case !o.Admitted:
			out = append(out, o.Reason)
		case o.Aligned:
			out = append(out, "aligned on "+o.Nodes.String())
		case !o.Nodes.IsEmpty():
			out = append(out, "on "+o.Nodes.String())
		default:
			out = append(out, "anywhere")
		}
	}
	return fmt.Sprintf("%s; %d %d %d", strings.Join(out, ", "), r.CPUs.All, r.CPUs.OneNode, r.CPUs.Scattered)
}

// TestCompareRows: the kubelet's planning is first, and in each planning the policy of the scene. Pods that nothing decides about are an
// error.
func TestCompareRows(t *testing.T) {
	t.Parallel()
	s := scene(t, "1s2n4c", topology.Restricted, "")
	found, err := s.Compare(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range found.Rows {
		got = append(got, string(r.Planning)+" "+string(r.Policy))
	}
	var want []string
	for _, planning := range []string{"container", "pod"} {
		for _, policy := range []string{"restricted", "none", "best-effort", "single-numa-node"} {
			want = append(want, planning+" "+policy)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	s.Config.Topology.Scope = "node"
	if _, err := s.Compare(t.Context(), nil); errdefs.ClassOf(err) != errdefs.Invalid {
		t.Errorf("a scene that nothing decides on: %v", err)
	}
	s.Config.Topology.Scope = "container"
	twice := []*typesv1.Pod{guaranteed("a", 1, 0), guaranteed("a", 1, 0)}
	if _, err := s.Compare(t.Context(), twice); errdefs.ClassOf(err) != errdefs.Invalid {
		t.Errorf("a pod twice: %v", err)
	}
}
