package reconcile

import (
	"fmt"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/machine"
)

// confinements are the cgroups to which the kernel granted less in the last pass, with what it did. Guarded by Loop.mu.
type confinements map[string]string

// above returns findings for cgroups with processes to which the kernel grants other CPUs or memory nodes than their own files
// say: a cgroup above them, or a cpuset partition next to them, does not leave them enough. With cgroup v2 a write of such CPUs
// succeeds, and the processes run on those of the parent. What the last pass did not find, too, may be a change in progress.
func (cs *confinements) above(m *machine.Topology, ns names, seen *cgroup.Snapshot) (found []check.Finding) {
	now := confinements{}
	for i := range seen.Nodes {
		o := &seen.Nodes[i]
		if o.State != cgroup.Valid || !o.Populated {
			continue
		}
		have, granted, text := o.Values.Cpuset, o.Effective, ""
		// Without an online CPU or node of its own, a cgroup has those of its parent. That is a finding of the ledger.
		if there := have.CPUs.Intersect(m.CPUs()); !there.IsEmpty() &&
			(!granted.CPUs.IsSubsetOf(have.CPUs) || !there.IsSubsetOf(granted.CPUs)) {
			text = fmt.Sprintf("its processes run on CPUs %s, and not on %s", granted.CPUs, there)
		} else if there := have.Mems.Intersect(m.MemoryNodeMask()); !there.IsEmpty() &&
			(!granted.Mems.IsSubsetOf(have.Mems) || !there.IsSubsetOf(granted.Mems)) {
			text = fmt.Sprintf("its processes use memory of NUMA nodes %s, and not of %s", granted.Mems, there)
		}
		if text == "" {
			continue
		}
		key := o.Name.String()
		now[key] = text
		if (*cs)[key] == text {
			found = append(found, check.Finding{
				Kind: kindKernel, Rule: ruleConfined, Owner: ledger.Owner{Pod: ns.inPod(o.Name)},
				Text: fmt.Sprintf("cgroup %s: %s, because a cgroup above it, or a cpuset partition, leaves it no others", ns.pathOf(o.Name),
					text),
			})
		}
	}
	*cs = now
	return found
}
