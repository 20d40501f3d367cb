package bench

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/topology"
)

// mergeCase is a number of resources whose answers are merged.
type mergeCase struct {
	operation string
	resources int
	nodes     []int
	// answer is that for the i-th resource.
	answer func(universe numa.Mask, i int) hint.Answer
	// preferred: all resources can have what they prefer.
	preferred bool
}

var mergeCases = []mergeCase{
	{"3 lists, preferred", 3, []int{2, 4, 8}, listed(false), true},
	{"5 lists, preferred", 5, []int{2, 4, 8}, listed(false), true},
	{"3 lists, not preferred", 3, []int{2, 4, 8}, listed(true), false},
	{"5 lists, not preferred", 5, []int{2, 4, 8}, listed(true), false},
	{"5 rules, equal weights, preferred", 5, []int{2, 4, 8, 16, 32, 64}, ruled(false), true},
	{"5 rules, equal weights, not preferred", 5, []int{2, 4, 8, 16, 32, 64}, ruled(true), false},
	{"5 rules, unlike weights, not preferred", 5, []int{2, 4, 8, 16, 32, 64}, unlike, false},
	{"5 rules, half the nodes used, not preferred", 5, []int{2, 4, 8, 16, 32, 64}, used, false},
	{"CPUs of 2 nodes, memory of 34, preferred", 3, []int{34}, accelerated(1), true},
	{"CPUs of 2 nodes, memory of 34, not preferred", 3, []int{34}, accelerated(2), false},
	{"memory of 34 nodes, not preferred", 1, []int{34},
		func(universe numa.Mask, _ int) hint.Answer { return accelerated(2)(universe, 1) }, false},
}

// exact are the most nodes on which a merge is exact for every request.
const exact = 12

// listed lists every set of nodes; apart, the resources prefer one node and two by
// turns, so that nothing is preferred by all.
func listed(apart bool) func(numa.Mask, int) hint.Answer {
	return func(universe numa.Mask, i int) hint.Answer {
		size := 1
		if apart {
			size += i % 2
		}
		a := hint.Answer{Kind: hint.Options}
		for m := range numa.Subsets(universe) {
			a.Hints = append(a.Hints, hint.Hint{Nodes: m, Preferred: m.Len() == size})
		}
		return a
	}
}

// ruled wants as much as two nodes have; apart, one is preferred, which is not
// enough.
func ruled(apart bool) func(numa.Mask, int) hint.Answer {
	return func(universe numa.Mask, _ int) hint.Answer {
		r := &hint.Rule{Universe: universe, Need: 16, PreferredSize: 2}
		if apart {
			r.PreferredSize = 1
		}
		for node := range universe.All() {
			r.Weights[node] = 8
		}
		return hint.Answer{Kind: hint.ByRule, Rule: r}
	}
}

// unlike wants about as much as two nodes have, and no two of five nodes have the
// same.
func unlike(universe numa.Mask, i int) hint.Answer {
	a := ruled(true)(universe, i)
	for node := range universe.All() {
		a.Rule.Weights[node] += uint64((node + i) % 5)
	}
	a.Rule.Need = 20
	return a
}

// used is about memory and huge pages of a machine of which every second node is
// used by itself. A node that is not used has half of the requested memory, and
// all of the huge pages.
func used(universe numa.Mask, i int) hint.Answer {
	a := ruled(true)(universe, i)
	pages := hint.Threshold{Resource: "hugepages-2Mi", Need: 2}
	for node := range universe.All() {
		pages.Weights[node] = 3
		if node%2 != 0 {
			a.Rule.Universe = a.Rule.Universe.Without(node)
			a.Hints = append(a.Hints, hint.Hint{Nodes: numa.Of(node), Preferred: i > 0})
		}
	}
	a.Rule.Also = []hint.Threshold{pages}
	return a
}

// accelerated is about the CPUs of two nodes, and about memory and huge pages of a
// machine on which the memory of accelerators makes nodes too. The nodes with CPUs
// have more memory and all huge pages. Needed is what so many nodes with CPUs have;
// one is preferred.
func accelerated(sockets uint64) func(numa.Mask, int) hint.Answer {
	return func(universe numa.Mask, i int) hint.Answer {
		r := &hint.Rule{Universe: universe, PreferredSize: 1}
		switch i {
		case 0:
			r.Universe, r.Need = numa.Of(0, 1), 72*sockets
			r.Weights[0], r.Weights[1] = 72, 72
		default:
			memory := hint.Threshold{Resource: "memory", Need: 400 * sockets}
			pages := hint.Threshold{Resource: "hugepages-2Mi", Need: 64 * sockets}
			for node := range universe.All() {
				memory.Weights[node] = 96
			}
			memory.Weights[0], memory.Weights[1] = 400, 400
			pages.Weights[0], pages.Weights[1] = 64, 64
			if i > 1 {
				memory, pages = pages, memory
			}
			r.Weights, r.Need, r.Also = memory.Weights, memory.Need, []hint.Threshold{pages}
		}
		return hint.Answer{Kind: hint.ByRule, Rule: r}
	}
}

// on makes the manager and the replies for a machine of so many nodes.
func (c mergeCase) on(t testing.TB, nodes int) (*topology.Manager, []hint.Reply) {
	t.Helper()
	m := machinetest.Build(fmt.Sprintf("1s%dn1c", nodes))
	manager, err := topology.New(topology.Config{Policy: topology.BestEffort, Scope: hint.ContainerScope}, m.NodeMask(), m.Distances())
	if err != nil {
		t.Fatal(err)
	}
	var replies []hint.Reply
	for i := range c.resources {
		replies = append(replies, hint.Reply{
			Provider: strconv.Itoa(i), Answers: []hint.ResourceAnswer{{Resource: "example.com/r", Answer: c.answer(m.NodeMask(), i)}},
		})
	}
	return manager, replies
}

// TestMergeAnswers keeps the benchmark honest: results marked as preferred are preferred, and
// nothing is approximate that must not be.
func TestMergeAnswers(t *testing.T) {
	t.Parallel()
	for _, c := range mergeCases {
		for _, nodes := range c.nodes {
			manager, replies := c.on(t, nodes)
			r := manager.Merge(replies)
			approximate := r.Approximate && (nodes <= exact || nodes == 34)
			if !r.Admit || r.Affinity.Preferred != c.preferred || approximate {
				t.Errorf("%s on %d nodes: %+v", c.operation, nodes, r.Affinity)
			}
		}
	}
}

func BenchmarkMerge(b *testing.B) {
	for _, c := range mergeCases {
		for _, nodes := range c.nodes {
			b.Run(c.operation+"/"+strconv.Itoa(nodes)+"/berth", func(b *testing.B) {
				manager, replies := c.on(b, nodes)
				measure(b, func() error { sinkMask = manager.Merge(replies).Affinity.Nodes; return nil })
			})
		}
	}
}
