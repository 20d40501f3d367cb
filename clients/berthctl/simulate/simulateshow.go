package simulate

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/sentences"
	"github.com/berthd/berth/clients/berthctl/get"
	"github.com/berthd/berth/clients/berthctl/pods"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/table"
	"github.com/berthd/berth/managers/cpuset"
)

// showSimulation prints the allocations, the reasons of rejections, and the use of the machine.
// known are the names of pods that were admitted before.
func showSimulation(c *command.Ctl, w io.Writer, s *admissionv1.Simulation, known command.Names, explain bool) {
	scope := ""
	if s.GetTopologyPolicy() != "none" {
		scope = ", " + s.GetTopologyScope() + " scope"
	}
	// The machine of a bundle has no name.
	machine := cmp.Or(s.GetMachine(), "with "+table.Count(len(s.GetNodes()), "NUMA node"))
	fmt.Fprintf(w, "machine %s; topology policy %s%s; CPU policy %s\n", machine, s.GetTopologyPolicy(), scope, s.GetCpuPolicy())
	if len(s.GetPods()) > 0 {
		fmt.Fprintf(w, "\n%v", simulatedPods(c, s))
	}
	for _, p := range s.GetPods() {
		known[p.GetUid()] = p.GetNamespace() + "/" + p.GetName()
	}
	for _, ch := range s.GetChanges() {
		fmt.Fprintf(w, "\nthen %s: %s\n", command.OneLine(ch.GetEvent()), cmp.Or(ch.GetChange(), "nothing changes"))
		for _, f := range ch.GetFindings() {
			fmt.Fprintf(w, "  %s: %s\n", cmp.Or(known[f.GetPodUid()], f.GetPodUid(), "the machine"), command.OneLine(f.GetText()))
		}
	}
	fmt.Fprintf(w, "\n%v", nodeUses(s.GetNodes()))
	for _, p := range s.GetPods() {
		if v := p.GetVerdict(); explain || v.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
			fmt.Fprintf(w, "\n%s/%s %s\n", p.GetNamespace(), p.GetName(), pods.VerdictText(v))
			get.ExplainAll(c, w, v.GetTrace())
		}
	}
	showRoom(w, s.GetRoom())
}

// simulatedPods has a row for each container of an admitted pod, and one for each other pod.
func simulatedPods(c *command.Ctl, s *admissionv1.Simulation) *table.Table {
	t := table.New("POD", "VERDICT", "CONTAINER", "CPUS", "OWN", "NUMA", "DEVICES", "MEMORY").Wide(c.Wide(), "ROLE", "UID")
	for _, p := range s.GetPods() {
		name := p.GetNamespace() + "/" + p.GetName()
		if p.GetVerdict().GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
			t.Row(name, p.GetVerdict().GetReason(), "", "", "", "", "", "", "", p.GetUid())
			continue
		}
		c.Shared = p.GetVerdict().GetSharedCpus()
		for _, a := range p.GetVerdict().GetAllocations() {
			t.Row(name, "admitted", a.GetContainerName(), c.CPUs(a), command.YesNo(a.GetExclusiveCpus()), sentences.Hint(a.GetAffinity()),
				command.DeviceCounts(a.GetClaims()), command.Memory(a.GetClaims()), convert.Word(a.GetRole()), p.GetUid())
		}
	}
	return t
}

// nodeUses has a row for each node and a column for each resource that any node has.
func nodeUses(nodes []*admissionv1.NodeUse) *table.Table {
	resources := resourceNames(nodes)
	t := table.New(resourceHeaders(resources, "NODE", "TAKEN-CPUS")...)
	cells := func(n *admissionv1.NodeUse) []string {
		return append([]string{n.GetTakenCpus().GetList()}, resourceCells(n, resources, "", func(r *admissionv1.ResourceUse) string {
			return pair(r.GetResource(), r.GetAllocatable()-min(r.GetTaken(), r.GetAllocatable()), r.GetAllocatable())
		})...)
	}
	var ids cpuset.Builder
	for i, n := range nodes {
		row := cells(n)
		// Unused nodes have equal lines, and there may be many.
		ids.Add(int(n.GetNumaNode()))
		if i+1 < len(nodes) && slices.Equal(row, cells(nodes[i+1])) {
			continue
		}
		list := ids.Set()
		name := list.String()
		if list.Len() > 1 && strings.Join(row, "") != "" {
			name += " each"
		}
		t.Row(slices.Insert(row, 0, name)...)
		ids = cpuset.Builder{}
	}
	return t
}

// showRoom prints how many more copies of a pod fit, and the limiting resource.
func showRoom(w io.Writer, r *admissionv1.Room) {
	name := r.GetNamespace() + "/" + r.GetName()
	switch {
	case r == nil:
		return
	case r.GetAtLeast():
		fmt.Fprintf(w, "\n%d or more %s would fit\n", r.GetPods(), name)
		return
	case r.GetPods() == 0:
		fmt.Fprintf(w, "\nno %s would fit\n", name)
	default:
		fmt.Fprintf(w, "\n%d more %s would fit\n", r.GetPods(), name)
	}
	fmt.Fprintf(w, "one more would be %s\n", pods.VerdictText(r.GetRefusal()))
	for _, text := range r.GetRefusal().GetTrace().GetMissing() {
		fmt.Fprintf(w, "  %s\n", command.OneLine(text))
	}
}
