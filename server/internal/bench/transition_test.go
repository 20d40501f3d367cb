package bench

import (
	"fmt"
	"testing"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/transition"
)

// transitionPods have two exclusive CPUs and memory each on 8 NUMA nodes with 512 CPUs, and all move
// to the next node.
const transitionPods = 200

func transitionBench(t ledgertest.T) (*ledger.View, []transition.Change) {
	t.Helper()
	topo := serverOf(coresPerNode[3])
	rules := ledger.Rules{Machine: topo, ReservedCPUs: cpuset.Of(0)}
	nodes := topo.NodeMask().IDs()
	free := make([][]int, len(nodes))
	for i, id := range nodes {
		rules.Memory = append(rules.Memory, ledger.NodeMemory{Node: id, Resource: "memory", Total: 64 << 30, Allocatable: 64 << 30})
		free[i] = topo.CPUsInNodes(numa.Of(id)).Minus(cpuset.Of(0)).IDs()
	}
	take := func(uid string, i int) []ledger.Claim {
		cpus := free[i][:2]
		free[i] = free[i][2:]
		return ledgertest.With(ledgertest.Pod(uid), ledgertest.Exclusive("c", cpuset.Of(cpus...).String()),
			ledgertest.Memory("c", "memory", numa.Of(nodes[i]).String(), 1<<30)).Claims
	}
	d := ledger.NewDraft(ledgertest.New(t, rules).View())
	var changes []transition.Change
	for i := range transitionPods {
		uid := fmt.Sprintf("pod-%03d", i)
		p := ledgertest.Pod(uid, "c")
		p.Claims = take(uid, i%len(nodes))
		d.PutPod(p)
	}
	view := d.View()
	for i := range transitionPods {
		uid := fmt.Sprintf("pod-%03d", i)
		home := (i + 1) % len(nodes)
		var claims []ledger.Claim
		if len(free[home]) >= 2 {
			claims = take(uid, home)
		} else { // those of the pod that leaves
			p, _ := view.Pod(fmt.Sprintf("pod-%03d", (i+1)%transitionPods))
			for _, c := range p.Claims {
				c.Owner.Pod = uid
				claims = append(claims, c)
			}
		}
		c, err := transition.To(view, uid, claims)
		if err != nil {
			t.Fatalf("%v", err)
		}
		changes = append(changes, c)
	}
	return view, changes
}

// TestTransitionBench: every pod of the benchmark arrives.
func TestTransitionBench(t *testing.T) {
	t.Parallel()
	view, changes := transitionBench(t)
	plan, err := transition.New(view, changes)
	if err != nil || plan.Cost.Containers != transitionPods || plan.Cost.CPUs != 2*transitionPods || plan.Cost.Bytes != transitionPods<<30 {
		t.Fatalf("%+v, %v", plan, err)
	}
}

func BenchmarkTransition(b *testing.B) {
	view, changes := transitionBench(b)
	b.Run(fmt.Sprintf("plan, %d pods move/512/berth", transitionPods), func(b *testing.B) {
		measure(b, func() error {
			_, err := transition.New(view, changes)
			return err
		})
	})
}
