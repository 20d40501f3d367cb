package moves

import (
	"slices"
	"sync"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/numa"
)

// This file is about containers whose cgroups berthd does not read. Beside a kubelet, berthd has no access to the
// kernel's cgroups, and needs none: berth-nri has it, changes the memory nodes, and reports where the memory is.
// Reports are kept in memory only. After a start of berthd a move goes on when the agent has reported again.

// MaxNodeBytes is the most memory of a NUMA node in a report. The sum over all nodes does not overflow.
const MaxNodeBytes = 1 << 57

// Report tells where an agent has seen the memory of a container.
type Report struct {
	// Revision is one that the agent knew before it read the kernel's files.
	Revision uint64
	// Nodes are the NUMA nodes that the container may use memory of, and Bytes the memory by node that its processes have
	// mapped and that is of no file on a disk.
	Nodes numa.Mask
	Bytes map[int]uint64
	// Immovable is why the memory cannot move, or cannot be seen; empty if it can.
	Immovable string
}

// memoryReports are the last reports, by container id.
type memoryReports struct {
	mu   sync.Mutex
	byID map[string]Report
}

func (m *memoryReports) of(id string) (Report, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.byID[id]
	return r, ok
}

func (m *memoryReports) forget(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.byID, id)
}

// Committed forgets the reports of containers that are not bound any more. It follows the ledger.
func (m *Moves) Committed(old, new *ledger.View) {
	if old.LastUnbound() == new.LastUnbound() {
		return
	}
	for _, c := range ledger.Changes(old, new) {
		if c.Kind == ledger.Unbound {
			m.reports.forget(c.Binding.ID)
		}
	}
}

// ReportMemory stores the report of a container. found is false if the id is not bound, used is false if berthd reads the cgroup
// itself, and news is true if the report may allow a move that was refused before. It does not wait for a turn.
func (m *Moves) ReportMemory(id string, r Report) (found, used, news bool) {
	m.reports.mu.Lock()
	defer m.reports.mu.Unlock()
	// The view is read under the lock: a report that is stored is forgotten when the id is unbound.
	b, found := m.Loop.View().Binding(id)
	if !found || !m.reported(b) {
		return found, false, false
	}
	before, known := m.reports.byID[id]
	if m.reports.byID == nil {
		m.reports.byID = map[string]Report{}
	}
	m.reports.byID[id] = r
	return true, true, !known || before.Immovable != r.Immovable
}

// reported returns whether only reports show the memory of a container.
func (m *Moves) reported(b ledger.Binding) bool { return m.Reported || !b.Own && m.Loop.Runtime == nil }

// reportsNoMove is staysBecause for a container with reports.
func (m *Moves) reportsNoMove(pod *ledger.Pod, b ledger.Binding) string {
	if pod.MemoryNodes(b.Owner.Container).IsEmpty() {
		return "" // it may use all nodes, before and after
	}
	switch r, known := m.reports.of(b.ID); {
	case !known:
		return "its agent has not reported where its memory is (ReportMemory); berth-nri reports it as soon as berth-nri is connected to berthd and the runtime"
	case r.Immovable != "":
		return r.Immovable
	case hasHugePages(pod, b.Owner):
		return "it has huge pages, whose NUMA nodes its agent does not report"
	}
	return ""
}

// reportsSettled is Settled for the memory of the containers with reports. A report that the agent made before the
// last step does not count.
func (m *Moves) reportsSettled(view *ledger.View, pod *ledger.Pod) error {
	if pod.Move == nil {
		return nil
	}
	for b := range view.BindingsOf(pod.UID()) {
		if !m.reported(b) || !leavesNodes(pod, b.Owner) {
			continue
		}
		if err := m.reportSettled(view, pod, b); err != nil {
			return err
		}
	}
	return nil
}

func (m *Moves) reportSettled(view *ledger.View, pod *ledger.Pod, b ledger.Binding) error {
	want := cgroup.ContainerCpuset(view, b.Owner).Mems
	if want.IsEmpty() {
		return nil
	}
	r, known := m.reports.of(b.ID)
	switch least := view.RevisionOf(pod.ChangedGeneration); {
	case !known || r.Revision < least:
		return errdefs.Unavailablef("the agent of container %s has not reported where its memory is at revision %d", b.Owner, least)
	case r.Immovable != "":
		return errdefs.Unavailablef("the memory of container %s cannot be seen to move: %s", b.Owner, r.Immovable)
	case r.Nodes != want:
		return errdefs.Unavailablef("container %s may use memory of NUMA nodes %s, and not of %s only", b.Owner, r.Nodes, want)
	case !slices.Contains(pod.Move.Migrating, b.Owner.Container):
		return nil
	}
	var elsewhere, all uint64
	for id, bytes := range r.Bytes {
		if all += bytes; !want.Contains(id) {
			elsewhere += bytes
		}
	}
	if !cgroup.Arrived(elsewhere, all) {
		return errdefs.Unavailablef("%d of %d bytes of container %s are not on NUMA nodes %s: pages that a device has pinned cannot move",
			elsewhere, all, b.Owner, want)
	}
	return nil
}

// leavesNodes returns whether a move takes NUMA nodes of its memory from a container.
func leavesNodes(pod *ledger.Pod, owner ledger.Owner) bool {
	nodes := func(claims []ledger.Claim) numa.Mask {
		return (&ledger.Pod{Claims: claims}).MemoryNodes(owner.Container)
	}
	return !nodes(pod.Move.From).IsSubsetOf(nodes(pod.Move.To))
}

// addReported adds the memory of a pod's containers with reports to what the pod uses.
// An agent may report for each of many containers what only a whole machine has.
func (m *Moves) addReported(view *ledger.View, uid string, to *live.PodUse) {
	for b := range view.BindingsOf(uid) {
		if r, known := m.reports.of(b.ID); known && m.reported(b) {
			for id, bytes := range r.Bytes {
				if to.NodeBytes == nil {
					to.NodeBytes = map[int]uint64{}
				}
				to.NodeBytes[id] = min(to.NodeBytes[id]+bytes, MaxNodeBytes)
			}
		}
	}
}
