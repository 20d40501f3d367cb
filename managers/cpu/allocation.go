package cpu

import (
	"slices"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// allocation is what a pod requests and holds, and what is available to it. A plan for
// several containers continues in it, one after the other.
type allocation struct {
	demand
	view      *ledger.View
	available cpuset.Set
	// claims by index of the container; nil where it has none.
	claims []*ledger.CPUs
	// podCPUs is what the pod holds as a whole; nil if nothing.
	podCPUs *ledger.CPUs
}

// Available returns the CPUs that containers can still get for themselves: those that are neither
// reserved nor offline and that no pod has. Under the policy none they can get none of them.
func (m *Manager) Available(view *ledger.View) cpuset.Set {
	free := m.allocatable.Minus(view.ExclusiveCPUs())
	if m.claims && m.options.fullCores {
		free = free.Minus(m.part[core].Cover(m.topo.CPUs().Minus(free)))
	}
	return free
}

func (m *Manager) allocation(view *ledger.View, pod *workload.Pod) *allocation {
	h := &allocation{
		demand:    m.demand(pod),
		view:      view,
		available: m.Available(view),
		claims:    make([]*ledger.CPUs, len(pod.Containers)),
	}
	record, ok := view.Pod(pod.UID)
	if !ok {
		return h
	}
	names := pod.Names()
	for i := range record.Claims {
		c := &record.Claims[i]
		if c.Provider != Name || c.CPUs == nil {
			continue
		}
		if c.Owner.Container == "" {
			h.podCPUs = c.CPUs
			continue
		}
		if at := names.At(c.Owner.Container); at >= 0 {
			h.claims[at] = c.CPUs
		}
	}
	return h
}

// reusable is what container i may take over from finished init containers.
func (h *allocation) reusable(i int) cpuset.Set {
	return workload.Reusable(h.Pod, h.Pod.Containers[i].Name, h.heldAt, cpuset.Set.Union, cpuset.Set.Minus)
}

// loan is what the init container of a request may take of its pod's CPUs, if the others are planned already.
func (h *allocation) loan(req hint.Request) cpuset.Set {
	if req.Below != "" {
		return h.held(req.Below)
	}
	return workload.Borrowable(h.Pod, h.Pod.Containers[req.Container].Name, h.heldAt, cpuset.Set.Union, cpuset.Set.Union,
		cpuset.Set.Minus)
}

// held are the CPUs of the container called name.
func (h *allocation) held(name string) cpuset.Set {
	at := slices.IndexFunc(h.Pod.Containers, func(o workload.Container) bool { return o.Name == name })
	if at < 0 {
		return cpuset.Set{}
	}
	return h.heldAt(at)
}

// heldAt are the CPUs of the container with an index.
func (h *allocation) heldAt(at int) cpuset.Set {
	if h.claims[at] == nil {
		return cpuset.Set{}
	}
	return h.claims[at].Set
}

// claim notes that container i now holds a set, and returns that as a fact.
func (h *allocation) claim(i int, set cpuset.Set, use ledger.CPUUse, affinity hint.Hint) ledger.Claim {
	h.claims[i] = &ledger.CPUs{Set: set, Use: use}
	h.available = h.available.Minus(set)
	owner := ledger.Owner{Pod: h.Pod.UID, Container: h.Pod.Containers[i].Name}
	return ledger.Claim{Owner: owner, Provider: Name, Resource: Resource, Affinity: &affinity, CPUs: h.claims[i]}
}
