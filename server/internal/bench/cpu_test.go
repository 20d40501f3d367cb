package bench

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/workload"
)

// coresPerNode makes machines of 64 to 4,096 CPUs: 2 sockets of 4 NUMA nodes, 2
// threads a core, a last level cache for every 16 CPUs.
var coresPerNode = []int{4, 8, 16, 32, 64, 128, 256}

func serverOf(cores int) *machine.Topology {
	return machinetest.Build(fmt.Sprintf("2s4n%dl%dc2t", max(cores/8, 1), min(cores, 8)))
}

// cpuCase is a CPU manager with a request of a container on a machine that is
// empty or half full.
type cpuCase struct {
	operation string
	options   map[string]string
	half      bool
	// request is the number of CPUs on 512 CPUs; scaled grows with the machine.
	request int
	scaled  bool
	hints   bool
}

var cpuCases = []cpuCase{
	{operation: "hints, empty, request 8", hints: true, request: 8},
	{operation: "hints, half, request 4", hints: true, half: true, request: 4},
	{operation: "packed, empty, request 8", request: 8},
	{operation: "packed, half, request 16", half: true, request: 16},
	{operation: "by caches, half, request 16", half: true, request: 16, options: map[string]string{cpu.PreferUncores: "true"}},
	{operation: "distributed, half, a quarter", half: true, request: 130, scaled: true,
		options: map[string]string{cpu.DistributeAcrossNUMA: "true"}},
}

// cpuBench is a case on one machine.
type cpuBench struct {
	manager *cpu.Manager
	view    *ledger.View
	request hint.Request
	n       int
}

func (c cpuCase) on(t ledgertest.T, topo *machine.Topology) cpuBench {
	t.Helper()
	m, err := cpu.New(cpu.Config{
		Policy: cpu.PolicyStatic, Options: c.options, ReservedCPUs: cpuset.Of(0),
		Features: cpu.Features{AlphaOptions: true, BetaOptions: true},
	}, topo)
	if err != nil {
		t.Fatalf("%v", err)
	}
	draft := ledger.NewDraft(ledgertest.New(t, ledger.Rules{Machine: topo, ReservedCPUs: m.Reserved()}).View())
	if c.half {
		// Every second core is taken: there are many gaps to look at.
		var busy cpuset.Builder
		for i := 1; i < topo.ByCore().Len(); i += 2 {
			busy.AddSet(topo.ByCore().CPUs(i))
		}
		draft.PutPod(ledgertest.With(ledgertest.Pod("busy", "c"), ledgertest.Exclusive("c", busy.Set().String())))
	}
	n := c.request
	if c.scaled {
		n = max(n*topo.NumCPUs()/512, 1)
	}
	q := workload.Quantities{workload.CPU: int64(n) * 1000, workload.Memory: 1 << 30}
	pod := &workload.Pod{UID: "p", Containers: []workload.Container{{Name: "c", Requests: q, Limits: q}}}
	return cpuBench{m, draft.View(), hint.Request{Pod: pod, Container: 0}, n}
}

// run plans once and returns the chosen CPUs.
func (b *cpuBench) run(hints bool) (cpuset.Set, error) {
	if hints {
		answers, err := b.manager.Hints(context.Background(), b.view, b.request)
		if err == nil && len(answers) == 0 {
			err = fmt.Errorf("no hints")
		}
		return cpuset.Set{}, err
	}
	claims, err := b.manager.Plan(context.Background(), b.view, b.request, hint.Hint{Any: true})
	if err != nil {
		return cpuset.Set{}, err
	}
	return claims[0].CPUs.Set, nil
}

// TestCPUAnswers keeps the benchmark honest: on every machine the choice is of the
// right size and out of what is free.
func TestCPUAnswers(t *testing.T) {
	t.Parallel()
	for _, cores := range coresPerNode {
		topo := serverOf(cores)
		if topo.NumCPUs() != cores*16 {
			t.Errorf("%d cores a node make %d CPUs", cores, topo.NumCPUs())
		}
		for _, c := range cpuCases {
			b := c.on(t, topo)
			set, err := b.run(c.hints)
			if err != nil {
				t.Errorf("%s on %d CPUs: %v", c.operation, topo.NumCPUs(), err)
			}
			free := b.view.SharedCPUs().Minus(b.manager.Reserved())
			if !c.hints && (set.Len() != b.n || !set.IsSubsetOf(free)) {
				t.Errorf("%s on %d CPUs: %s of the free %s", c.operation, topo.NumCPUs(), set, free)
			}
		}
	}
}

func BenchmarkCPU(b *testing.B) {
	for _, c := range cpuCases {
		for _, cores := range coresPerNode {
			topo := serverOf(cores)
			b.Run(c.operation+"/"+strconv.Itoa(topo.NumCPUs())+"/berth", func(b *testing.B) {
				bench := c.on(b, topo)
				measure(b, func() (err error) { sinkSet, err = bench.run(c.hints); return err })
			})
		}
	}
}
