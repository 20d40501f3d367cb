package fits

import (
	"fmt"
	"maps"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/berthd/berth/managers/fit"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/numa"
)

// containerPlacement encodes which NUMA node each container with exclusive resources is on, in the format numaplacement v001 of
// NodeResourceTopology: the containers have numbers in the order of their digests, and a node's vector has those of its containers. The
// node with the most containers has no vector; of several it is the one with the lowest id. Both results are empty if the node of a
// container is not known: who reads them has the list of containers from elsewhere, and refuses another number of them.
func containerPlacement(m *machine.Topology, pods []*ledger.Pod, onNodes func(string) bool) (metadata string, vectors map[int]string) {
	on := map[uint64]int{}
	for _, p := range pods {
		for name := range fit.ExclusiveContainers(p, onNodes) {
			node, known := nodeOf(m, p, name)
			if !known {
				return "", nil
			}
			on[digest(p.Pod.Namespace, nameOf(p), name)] = node
		}
	}
	numbers := map[int][]int{}
	for number, sum := range slices.Sorted(maps.Keys(on)) {
		numbers[on[sum]] = append(numbers[on[sum]], number)
	}
	nodes, busiest := 0, 0
	for _, n := range m.Nodes() {
		nodes = max(nodes, n.ID+1)
		if len(numbers[n.ID]) > len(numbers[busiest]) {
			busiest = n.ID
		}
	}
	vectors = map[int]string{}
	for node, list := range numbers {
		if node != busiest {
			vectors[node] = vector(list)
		}
	}
	return fmt.Sprintf("npv0v001::ve=leb89::cc=%d::nn=%d::bn=%d", len(on), nodes, busiest), vectors
}

func digest(namespace, pod, container string) uint64 {
	return xxhash.Sum64String(namespace + "\x00" + pod + "\x00" + container)
}

// nodeOf returns the NUMA node that a container is on, from its CPUs and memory, else from the merge result for its devices.
func nodeOf(m *machine.Topology, p *ledger.Pod, container string) (node int, known bool) {
	var nodes numa.Mask
	for i := range p.Claims {
		if c := &p.Claims[i]; c.Owner.Container == container {
			if c.CPUs != nil {
				nodes = nodes.Union(m.NodesOf(c.CPUs.Set))
			}
			nodes = nodes.Union(ledger.NodesOf(c.Memory))
		}
	}
	if a := p.Affinity(container); nodes.IsEmpty() && a != nil && !a.Any {
		nodes = a.Nodes
	}
	node, _ = nodes.Lowest()
	return node, nodes.Len() == 1
}

// The digits of a vector are the printable ASCII characters without the space and those that JSON escapes. The first 64 end a number,
// the other 25 are followed by another digit.
const (
	last = 64
	more = 25
)

var digits = func() (out []byte) {
	for c := byte('!'); c <= '~'; c++ {
		if !slices.Contains([]byte(`"&<>\`), c) {
			out = append(out, c)
		}
	}
	return out
}()

// vector encodes ascending numbers: the first one, and how much larger each of the others is than the one before it.
func vector(numbers []int) string {
	var out []byte
	before := 0
	for _, n := range numbers {
		out = appendNumber(out, n-before)
		before = n
	}
	return string(out)
}

// appendNumber encodes a number: those of 64 and more lose 64 first, and have digits of base 25 before the last one, of base 64.
func appendNumber(out []byte, n int) []byte {
	if n < last {
		return append(out, digits[n])
	}
	n -= last
	at := len(out)
	out = append(out, digits[n%last])
	for n /= last; ; n /= more {
		out = slices.Insert(out, at, digits[last+n%more])
		if n < more {
			return out
		}
	}
}
