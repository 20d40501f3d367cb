package main

import (
	"slices"
	"strconv"

	"github.com/berthd/berth/hack/conformance/vector"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/topology"
)

// partChoice is a partial choice of one hint from each list.
type partChoice struct {
	nodes numa.Mask
	// raw are the nodes that the hints name, if they all name the same.
	raw       numa.Mask
	named     bool
	preferred bool
}

// byDefinition merges by the definition of a choice and of the order of candidates,
// with distances by the position of a node in the list of nodes. It shares no code
// with berth's merge.
func (in mergeCase) byDefinition() mergeResult {
	machine := numa.Of(in.NUMANodes...)
	single := in.Policy == string(topology.SingleNUMANode)
	least := 0 // of each list the smallest mask, of these the largest
	choices := map[partChoice]bool{{nodes: machine, preferred: true}: true}
	for _, list := range in.lists() {
		smallest := -1
		next := map[partChoice]bool{}
		for _, h := range list {
			raw, named := h.NUMA.Mask, h.NUMA.Named
			if single && (!h.Preferred || named && raw.Len() != 1) {
				continue
			}
			if named && (smallest < 0 || raw.Len() < smallest) {
				smallest = raw.Len()
			}
			for c := range choices {
				c.preferred = c.preferred && h.Preferred && (!named || !c.named || raw == c.raw)
				if named {
					c.nodes, c.raw, c.named = c.nodes&raw, raw, true
				}
				next[c] = true
			}
		}
		least, choices = max(least, smallest), next
	}
	result := mergeResult{Hint: vector.Affinity{NUMA: vector.MaskOf(in.NUMANodes...)}}
	var best []int
	for c := range choices {
		if c.nodes == 0 {
			continue
		}
		if key := in.key(c, least, single); best == nil || slices.Compare(key, best) < 0 {
			best, result.Hint = key, vector.Affinity{NUMA: vector.Mask{Mask: c.nodes, Named: true}, Preferred: c.preferred}
		}
	}
	if single && result.Hint.NUMA.Mask == machine {
		result.Hint.NUMA = vector.Mask{}
	}
	result.Admit = in.Policy == string(topology.BestEffort) || result.Hint.Preferred
	return result
}

// lists are the hints of every provider and resource.
func (in mergeCase) lists() (lists [][]vector.Affinity) {
	anywhere := []vector.Affinity{{Preferred: true}}
	for _, p := range in.Providers {
		if len(p) == 0 {
			lists = append(lists, anywhere)
		}
		for _, list := range p {
			switch {
			case list == nil:
				list = anywhere
			case len(list) == 0:
				list = []vector.Affinity{{}}
			}
			lists = append(lists, list)
		}
	}
	return lists
}

// key orders candidates, the smallest first.
func (in mergeCase) key(c partChoice, least int, single bool) []int {
	size := c.nodes.Len()
	distance := 0
	if closest, _ := strconv.ParseBool(in.Options[topology.OptionPreferClosest]); closest && !single {
		for _, i := range c.nodes.IDs() {
			for position, j := range in.NUMANodes {
				if c.nodes.Contains(j) {
					distance += in.Distances[strconv.Itoa(i)][position]
				}
			}
		}
	}
	switch {
	case c.preferred:
		return []int{0, size, distance, int(c.nodes)}
	case size <= least:
		return []int{1, -size, distance, int(c.nodes)}
	}
	return []int{2, size, distance, int(c.nodes)}
}
