package fit

import (
	"iter"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// ExclusivePods yields the pods of an agent that run with exclusive resources; with an empty owner
// those of all agents. onNodes reports whether an extended resource is on NUMA nodes: devices that
// may be anywhere make no pod exclusive. Init containers do not count, because they have ended when
// the pod runs.
func ExclusivePods(view *ledger.View, owner string, onNodes func(resource string) bool) iter.Seq[*ledger.Pod] {
	return func(yield func(*ledger.Pod) bool) {
		for p := range view.Pods() {
			if p.Pod.ResourceClaim == nil && (owner == "" || p.Agent() == owner) && exclusive(p, onNodes) && !yield(p) {
				return
			}
		}
	}
}

func exclusive(p *ledger.Pod, onNodes func(string) bool) bool {
	for range ExclusiveContainers(p, onNodes) {
		return true
	}
	return false
}

// ExclusiveContainers yields the names of a pod's containers that have exclusive resources while the pod runs, so no init containers.
func ExclusiveContainers(p *ledger.Pod, onNodes func(resource string) bool) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, c := range p.Pod.Walk() {
			if c.Role != workload.Init && isExclusive(p.QoS, c.Requests, onNodes) && !yield(c.Name) {
				return
			}
		}
	}
}

func isExclusive(qos workload.QoSClass, requests workload.Quantities, onNodes func(string) bool) bool {
	for name, amount := range requests {
		switch {
		case amount <= 0:
		case name.IsExtended():
			if onNodes(string(name)) {
				return true
			}
		case qos != workload.Guaranteed:
		case name == workload.CPU && amount%1000 == 0, name == workload.Memory, name.IsHugePages():
			return true
		}
	}
	return false
}
