package managerset_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// onePool is a configuration in which pods and claims have 7 CPUs and 15 GiB of each node, and the huge pages.
func onePool(t failing, change func(*managerset.Config)) *managerset.Set {
	t.Helper()
	set, err := divided(dividedMachine(), func(c *managerset.Config) {
		c.CPU.ReservedCPUs = cpuset.Of(0, 4)
		c.Memory.Reserved = []memory.Reservation{{Node: 0, Resource: workload.Memory, Bytes: gibi},
			{Node: 1, Resource: workload.Memory, Bytes: gibi}}
		c.Memory.SystemReserved = map[workload.Resource]uint64{workload.Memory: 2 * gibi}
		c.Claims = &managerset.Claims{OnePool: true}
		c.Digest = "one pool"
		if change != nil {
			change(c)
		}
	})
	if err != nil {
		t.Errorf("%v", err)
		return nil
	}
	return set
}

// classic is a Guaranteed pod.
func classic(uid string, cpus int, bytes int64) *workload.Pod {
	p := claim(uid, 0, cpus, bytes)
	p.ResourceClaim = nil
	return p
}

// amountsOf is what claims may have of a node: CPUs, and the sizes of memory and huge pages in GiB.
func amountsOf(set *managerset.Set, view *ledger.View) string {
	var out []string
	for _, n := range set.ClaimNodes(view) {
		out = append(out, fmt.Sprintf("%d: %d %d %d", n.Node, n.CPUs.Len(), n.Memory[workload.Memory]/gibi, n.Memory["hugepages-1Gi"]/gibi))
	}
	return strings.Join(out, ", ")
}

func remove(trial *live.Trial, uid string) {
	draft := ledger.NewDraft(trial.View())
	draft.RemovePod(uid)
	trial.On(draft.View(), time.Time{})
}

// TestOnePool: claims may have what pods leave, and the other way round; what is left follows.
func TestOnePool(t *testing.T) {
	t.Parallel()
	set := onePool(t, func(c *managerset.Config) { c.Topology.Policy = topology.SingleNUMANode })
	if set == nil {
		return
	}
	if only := set.ClaimAmounts(); len(only) != 0 {
		t.Errorf("only claims can have %v, want nothing", only)
	}
	trial := onTrial(t, set)
	paged := claim("paged", 0, 1, gibi)
	paged.Containers[0].Requests["hugepages-1Gi"] = gibi
	pagedPod := classic("paged-pod", 1, gibi)
	pagedPod.Containers[0].Requests["hugepages-1Gi"] = 2 * gibi
	for _, row := range []struct {
		pod  *workload.Pod
		fits bool
		left string // for claims, afterwards
	}{
		{classic("a", 4, 4*gibi), true, "0: 3 9 2, 1: 7 15 0"}, // node 0, without the memory of its huge pages
		{claim("b", 0, 4, gibi), false, "0: 3 9 2, 1: 7 15 0"},
		{claim("c", 0, 3, 8*gibi), true, "0: 3 9 2, 1: 7 15 0"}, // claims are in what is left
		{classic("d", 6, gibi), true, "0: 3 9 2, 1: 1 14 0"},
		{classic("e", 2, gibi), false, "0: 3 9 2, 1: 1 14 0"},
		{claim("f", 1, 1, 15*gibi), false, "0: 3 9 2, 1: 1 14 0"},
		{claim("g", 1, 1, 14*gibi), true, "0: 3 9 2, 1: 1 14 0"},
	} {
		v, err := trial.Admit(t.Context(), row.pod)
		if err != nil {
			t.Fatal(err)
		}
		if got := amountsOf(set, trial.View()); (v.Outcome == admission.Admitted) != row.fits || got != row.left {
			t.Errorf("%s: %v %s; left %s, want %t %s", row.pod.UID, v.Outcome, v.Message, got, row.fits, row.left)
		}
		if row.fits && row.pod.ResourceClaim != nil {
			checkClaim(t, set, v.Pod)
		}
	}
	for _, uid := range []string{"a", "c"} {
		remove(trial, uid)
	}
	// Huge pages are one pool, too.
	for _, row := range []struct {
		pod  *workload.Pod
		fits bool
	}{{paged, true}, {pagedPod, false}} {
		if v, err := trial.Admit(t.Context(), row.pod); err != nil || (v.Outcome == admission.Admitted) != row.fits {
			t.Errorf("%s: %v %s, %v", row.pod.UID, v.Outcome, v.Message, err)
		}
	}
	if found := check.View(trial.View()); len(found) > 0 {
		t.Error(found)
	}
}

// TestNothingOfOnePoolIsGivenTwice: pods and claims come and go, and each claim that fits into what is left on its node is
// admitted, and no larger one.
func TestNothingOfOnePoolIsGivenTwice(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		whole := rapid.Bool().Draw(t, "full-pcpus-only")
		set := onePool(t, func(c *managerset.Config) {
			c.Topology.Policy = rapid.SampledFrom([]topology.Policy{topology.None, topology.BestEffort,
				topology.SingleNUMANode}).Draw(t, "policy")
			if whole {
				c.CPU.Options = map[string]string{cpu.FullPCPUsOnly: "true"}
			}
		})
		if set == nil {
			return
		}
		trial := live.NewTrial(admission.Config{}, ledger.Empty(set.Rules), set.Bus, set.Topology).ForClaims(set.For)
		for i := range rapid.IntRange(1, 25).Draw(t, "steps") {
			uid, node := fmt.Sprintf("p%d", i), rapid.IntRange(0, 1).Draw(t, "node")
			cpus, bytes := rapid.IntRange(1, 8).Draw(t, "cpus"), rapid.Int64Range(1, 16).Draw(t, "GiB")*gibi
			pages := rapid.Int64Range(0, 3).Draw(t, "pages")
			switch rapid.IntRange(0, 2).Draw(t, "kind") {
			case 0:
				if view := trial.View(); view.NumPods() > 0 {
					var uids []string
					for p := range view.Pods() {
						uids = append(uids, p.UID())
					}
					remove(trial, rapid.SampledFrom(uids).Draw(t, "uid"))
				}
			case 1:
				p := classic(uid, cpus, bytes)
				if pages > 0 {
					p.Containers[0].Requests["hugepages-1Gi"] = pages * gibi
				}
				if _, err := trial.Admit(t.Context(), p); err != nil {
					t.Fatal(err)
				}
			case 2:
				left := leftFor(set, trial.View(), node)
				p := claim(uid, node, cpus, bytes)
				fits := int64(cpus) <= left[workload.CPU] && bytes <= left[workload.Memory] && (!whole || cpus%2 == 0)
				if pages > 0 {
					p.Containers[0].Requests["hugepages-1Gi"] = pages * gibi
					fits = fits && pages*gibi <= left["hugepages-1Gi"]
				}
				v, err := trial.Admit(t.Context(), p)
				if err != nil || (v.Outcome == admission.Admitted) != fits {
					t.Fatalf("claim on %d CPUs, %d and %d pages of node %d: %v %s %v; %v is left", cpus, bytes, pages, node, v.Outcome,
						v.Message, err, left)
				}
				if fits {
					checkClaim(t, set, v.Pod)
				}
			}
			found := slices.DeleteFunc(check.View(trial.View()), func(f check.Finding) bool { return f.Rule == check.RuleShared })
			if len(found) > 0 {
				t.Fatal(found)
			}
			for _, n := range trial.View().Rules().ClaimMemory {
				if held := trial.View().MemoryUse().Held(n.Resource)[n.Node]; set.Topology.Policy() == topology.SingleNUMANode &&
					held > n.Allocatable {
					t.Fatalf("%d of %s are held on node %d, which has %d", held, n.Resource, n.Node, n.Allocatable)
				}
			}
		}
	})
}

// leftFor is what a scheduler counts as free for claims of a node: what is published, without what claims have.
func leftFor(set *managerset.Set, view *ledger.View, node int) workload.Quantities {
	out := workload.Quantities{}
	for _, n := range set.ClaimNodes(view) {
		if n.Node == node {
			out[workload.CPU] = int64(n.CPUs.Minus(view.ResourceClaimCPUs()).Len())
			for r, bytes := range n.Memory {
				out[r] = bytes - int64(view.ResourceClaimMemory().Held(string(r))[node])
			}
		}
	}
	return out
}

// TestOnePoolIsExplained: a refused claim names the pod that has the CPUs, and does not name dra.cpus.
func TestOnePoolIsExplained(t *testing.T) {
	t.Parallel()
	set := onePool(t, nil)
	if set == nil {
		return
	}
	trial := onTrial(t, set)
	for _, p := range []*workload.Pod{classic("pod", 6, gibi), claim("claim", 0, 4, gibi)} {
		v, err := trial.Admit(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		if p.UID == "pod" {
			continue
		}
		text := ""
		for _, step := range v.Trace.Steps {
			for _, s := range step.Shortages {
				text += fmt.Sprint(s.Resource, " ", s.Why, " ", s.Holders)
			}
		}
		if v.Outcome != admission.Rejected || !strings.Contains(text, "cpu reserved") || !strings.Contains(text, "pod") {
			t.Errorf("%v %s: %s", v.Outcome, v.Message, text)
		}
	}
}

// TestOnePoolNeedsStaticPolicies: what pods do not get exclusively, claims do not get either.
func TestOnePoolNeedsStaticPolicies(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(c *managerset.Config){
		"dra.from: claims get the CPUs": func(c *managerset.Config) { c.CPU = cpu.Config{Policy: cpu.PolicyNone} },
		"set memory.policy to Static":   func(c *managerset.Config) { c.Memory = memory.Config{Policy: memory.PolicyNone} },
	} {
		_, err := divided(dividedMachine(), func(c *managerset.Config) {
			c.Claims = &managerset.Claims{OnePool: true}
			change(c)
		})
		if errdefs.ClassOf(err) != errdefs.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
