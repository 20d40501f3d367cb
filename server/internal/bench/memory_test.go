package bench

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// memoryNodes are the machines: NUMA nodes of 64 GiB with huge pages of two sizes.
var memoryNodes = []int{2, 4, 8, 16, 32, 64}

// memoryCase is a memory manager with a request of a container with memory and
// huge pages of two sizes, on a machine that is empty, or of which a pod has 24 GiB
// of every second node.
type memoryCase struct {
	operation   string
	half, hints bool
}

var memoryCases = []memoryCase{
	{operation: "hints, empty", hints: true},
	{operation: "hints, half", hints: true, half: true},
	{operation: "plan, empty"},
	{operation: "plan, half", half: true},
}

// memoryBench is a case on one machine.
type memoryBench struct {
	manager *memory.Manager
	view    *ledger.View
	request hint.Request
}

const gi = 1 << 30

func (c memoryCase) on(t ledgertest.T, nodes int) memoryBench {
	t.Helper()
	topo := machinetest.Build(fmt.Sprintf("1s%dn2c,mem=64Gi,huge=2Mi:1024,huge=1Gi:8", nodes))
	m, err := memory.New(memory.Config{Policy: memory.PolicyStatic, AllowUnreserved: true}, topo)
	if err != nil {
		t.Fatalf("%v", err)
	}
	draft := ledger.NewDraft(ledgertest.New(t, ledger.Rules{Machine: topo, Memory: m.Baseline()}).View())
	for node := 0; c.half && node < nodes; node += 2 {
		pod := ledgertest.Pod("busy"+strconv.Itoa(node), "c")
		draft.PutPod(ledgertest.With(pod, ledgertest.Memory("c", "memory", strconv.Itoa(node), 24*gi)))
	}
	q := workload.Quantities{workload.CPU: 1000, workload.Memory: 16 * gi, "hugepages-2Mi": 256 << 20, "hugepages-1Gi": gi}
	pod := &workload.Pod{UID: "p", Containers: []workload.Container{{Name: "c", Requests: q, Limits: q}}}
	return memoryBench{m, draft.View(), hint.Request{Pod: pod, Container: 0}}
}

// run calls it once and returns the answers or the claims.
func (b *memoryBench) run(hints bool) ([]hint.ResourceAnswer, []ledger.Claim, error) {
	if hints {
		answers, err := b.manager.Hints(context.Background(), b.view, b.request)
		return answers, nil, err
	}
	claims, err := b.manager.Plan(context.Background(), b.view, b.request, hint.Hint{Any: true})
	return nil, claims, err
}

// TestMemoryAnswers keeps the benchmark honest: any one node can serve the request,
// and the lowest does.
func TestMemoryAnswers(t *testing.T) {
	t.Parallel()
	for _, nodes := range memoryNodes {
		for _, c := range memoryCases {
			b := c.on(t, nodes)
			answers, claims, err := b.run(c.hints)
			if err != nil || len(answers)+len(claims) != 3 {
				t.Fatalf("%s on %d nodes: %v, %v, %v", c.operation, nodes, answers, claims, err)
			}
			for _, claim := range claims {
				if len(claim.Memory) != 1 || claim.Memory[0].Nodes != numa.Of(0) {
					t.Errorf("%s on %d nodes: %+v", c.operation, nodes, claim)
				}
			}
			for _, a := range answers {
				if !servedBy(a, nodes) {
					t.Errorf("%s on %d nodes: %+v", c.operation, nodes, a)
				}
			}
		}
	}
}

// servedBy reports whether every single node of a machine, and no other set, is
// preferred by an answer.
func servedBy(a hint.ResourceAnswer, nodes int) bool {
	preferred := 0
	if a.Kind == hint.ByRule {
		for id := range a.Rule.Universe.All() {
			if a.Rule.PreferredSize == 1 && a.Rule.Allows(numa.Of(id)) {
				preferred++
			}
		}
	}
	for _, h := range a.Hints {
		if h.Preferred != (h.Nodes.Len() == 1) {
			return false
		}
		if h.Preferred {
			preferred++
		}
	}
	return preferred == nodes
}

func BenchmarkMemory(b *testing.B) {
	for _, c := range memoryCases {
		for _, nodes := range memoryNodes {
			b.Run(c.operation+"/"+strconv.Itoa(nodes)+"/berth", func(b *testing.B) {
				bench := c.on(b, nodes)
				measure(b, func() (err error) { _, _, err = bench.run(c.hints); return err })
			})
		}
	}
}
