// Package sentences has the words in which people read a decision: its outcome, its steps, and what claims hold. berthctl
// prints them, and the page shows them.
//
// Words: a step is an event of an admission (berth.types.v1.TraceStep); an owner is what a step is about, the pod or one of its
// containers. What was missing and what would help is already in words in the trace.
//
// Invariants: a text may have names that anybody has chosen, as they are: who shows it escapes it.
package sentences

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/workload"
)

// Nodes returns NUMA nodes as a list; empty for none.
func Nodes(m *typesv1.NUMANodeSet) string { return IDs(m.GetIds()) }

// IDs returns the ids of CPUs or NUMA nodes as a list, in the kernel's format.
func IDs[N uint32 | int64](ids []N) string {
	var b cpuset.Builder
	for _, id := range ids {
		if id >= 0 && id < cpuset.MaxCPUs {
			b.Add(int(id))
		}
	}
	return b.Set().String()
}

// Hint returns a placement: the nodes, or any.
func Hint(h *typesv1.TopologyHint) string {
	switch {
	case h == nil:
		return ""
	case h.GetNumaNodes() == nil:
		return "any"
	}
	return Nodes(h.GetNumaNodes())
}

// Claim returns what one claim holds.
func Claim(c *typesv1.Claim) string {
	switch {
	case c.GetCpu() != nil:
		return fmt.Sprintf("%s (%s)", CPUNoun(c.GetCpu().GetCpus().GetList()), convert.Word(c.GetCpu().GetSharing()))
	case c.GetDevice() != nil:
		var ids []string
		for _, d := range c.GetDevice().GetDevices() {
			ids = append(ids, d.GetId()+onNodes(d.GetNumaNodes()))
		}
		return c.GetResource() + " " + strings.Join(ids, ", ")
	case c.GetMemory() != nil:
		var blocks []string
		for _, b := range c.GetMemory().GetBlocks() {
			blocks = append(blocks, workload.Bytes(b.GetBytes())+onNodes(b.GetNumaNodes()))
		}
		return c.GetResource() + " " + strings.Join(blocks, ", ")
	}
	return fmt.Sprintf("%s (%d bytes of %s)", c.GetResource(), len(c.GetOpaque()), c.GetProvider())
}

// onNodes names the nodes of a device; empty if its plugin does not report them.
func onNodes(m *typesv1.NUMANodeSet) string {
	if len(m.GetIds()) == 0 {
		return ""
	}
	return " on " + NodeNoun(Nodes(m))
}

// NodeNoun puts the noun before a list of nodes.
func NodeNoun(list string) string { return withNoun("node", list) }

// CPUNoun puts the noun before a list of CPUs.
func CPUNoun(list string) string { return withNoun("CPU", list) }

func withNoun(noun, list string) string {
	if strings.ContainsAny(list, "-,") {
		noun += "s"
	}
	return noun + " " + list
}

// Claims returns what claims hold, one each.
func Claims(claims []*typesv1.Claim) []string {
	var out []string
	for _, c := range claims {
		out = append(out, Claim(c))
	}
	return out
}

// Caller names a process that made a call; empty for berthd itself, and for a caller that is not known.
func Caller(c *inspectv1.HistoryCaller) string {
	if c == nil {
		return ""
	}
	name := cmp.Or(c.GetName(), "pid "+strconv.Itoa(int(c.GetPid())))
	if c.GetName() != "" && strings.ContainsAny(name, ` ()"'`) {
		name = strconv.Quote(name) // a process chooses its name, also one with the uid of another user
	}
	return fmt.Sprintf("%s (uid %d)", name, c.GetUid())
}
