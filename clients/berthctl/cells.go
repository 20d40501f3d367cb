package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/clients/berthctl/table"
	"github.com/berthd/berth/managers/cpuset"
)

// set reads CPUs that berthd sent; an unreadable set counts as empty.
func set(m *typesv1.CPUSet) cpuset.Set {
	s, err := cpuset.Parse(m.GetList())
	if err != nil {
		return cpuset.Set{}
	}
	return s
}

// nodes spells NUMA nodes as a list; empty for none.
func nodes(m *typesv1.NUMANodeSet) string {
	// The kernel's list format is the same for nodes and for CPUs.
	var ids cpuset.Builder
	for _, id := range m.GetIds() {
		if id < cpuset.MaxCPUs {
			ids.Add(int(id))
		}
	}
	return ids.Set().String()
}

// health spells the health of a device as the kubelet does; empty if unknown.
func health(h typesv1.Health) string {
	text := convert.Word(h)
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// hintText spells a placement: the nodes, or any.
func hintText(h *typesv1.TopologyHint) string {
	switch {
	case h == nil:
		return ""
	case h.GetNumaNodes() == nil:
		return "any"
	}
	return nodes(h.GetNumaNodes())
}

// word spells a value of an enum: PREFIX_MOVE_CPUS is move-cpus; empty if it is not specified.
func word(value fmt.Stringer, prefix string) string {
	name := strings.TrimPrefix(value.String(), prefix)
	if name == "UNSPECIFIED" {
		return ""
	}
	return strings.ReplaceAll(strings.ToLower(name), "_", "-")
}

// deviceCounts spells how many devices of each resource claims hold.
func deviceCounts(claims []*typesv1.Claim) string {
	counts := make(map[string]int)
	for _, c := range claims {
		if c.GetDevice() != nil {
			counts[c.GetResource()] += len(c.GetDevice().GetDevices())
		}
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		out = append(out, name+"="+strconv.Itoa(counts[name]))
	}
	return strings.Join(out, ",")
}

// memory spells the memory that claims hold, for a cell.
func memory(claims []*typesv1.Claim) string {
	var out []string
	for _, c := range claims {
		for _, b := range c.GetMemory().GetBlocks() {
			out = append(out, fmt.Sprintf("%s=%s@%s", c.GetResource(), table.Bytes(b.GetBytes()), nodes(b.GetNumaNodes())))
		}
	}
	return strings.Join(out, ",")
}

// claimText spells what one claim holds.
func claimText(c *typesv1.Claim) string {
	switch {
	case c.GetCpu() != nil:
		return fmt.Sprintf("%s (%s)", cpuNoun(c.GetCpu().GetCpus().GetList()), convert.Word(c.GetCpu().GetSharing()))
	case c.GetDevice() != nil:
		var ids []string
		for _, d := range c.GetDevice().GetDevices() {
			ids = append(ids, d.GetId()+onNodes(d.GetNumaNodes()))
		}
		return c.GetResource() + " " + strings.Join(ids, ", ")
	case c.GetMemory() != nil:
		var blocks []string
		for _, b := range c.GetMemory().GetBlocks() {
			blocks = append(blocks, table.Bytes(b.GetBytes())+onNodes(b.GetNumaNodes()))
		}
		return c.GetResource() + " " + strings.Join(blocks, ", ")
	}
	return fmt.Sprintf("%s (%s of %s)", c.GetResource(), table.Count(len(c.GetOpaque()), "byte"), c.GetProvider())
}

// onNodes names the nodes of a device; empty if its plugin does not report them.
func onNodes(m *typesv1.NUMANodeSet) string {
	if len(m.GetIds()) == 0 {
		return ""
	}
	return " on " + nodeNoun(nodes(m))
}

// nodeNoun puts the noun before a list of nodes.
func nodeNoun(list string) string {
	if strings.ContainsAny(list, "-,") {
		return "nodes " + list
	}
	return "node " + list
}

// cpuNoun puts the noun before a list of CPUs.
func cpuNoun(list string) string {
	if strings.ContainsAny(list, "-,") {
		return "CPUs " + list
	}
	return "CPU " + list
}

// claimTexts spells what claims hold, one each.
func claimTexts(claims []*typesv1.Claim) []string {
	var out []string
	for _, c := range claims {
		out = append(out, claimText(c))
	}
	return out
}

// yesNo spells a truth.
func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// joined puts texts into one cell.
func joined(texts []string) string { return strings.Join(texts, ",") }

// maxNames bounds the names in a cell of names that the authors of pods choose: each row of a table is as wide as its widest one.
const maxNames = 3

// some puts names into one cell, and the number of the further ones.
func some(names []string) string {
	if len(names) <= maxNames {
		return joined(names)
	}
	return fmt.Sprintf("%s and %d more", joined(names[:maxNames]), len(names)-maxNames)
}
