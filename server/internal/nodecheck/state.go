package nodecheck

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/workload"
)

// leftCPUs finds CPUs of pods that do not exist.
func leftCPUs(n *node) (out []found) {
	entries := map[string][]string{}
	for uid, containers := range n.CPU.Containers {
		entries[uid] = nil
		for _, name := range slices.Sorted(maps.Keys(containers)) {
			entries[uid] = append(entries[uid], fmt.Sprintf("container %s: CPUs %s", kubelet.Printable(name), containers[name]))
		}
	}
	for uid, set := range n.CPU.Pods {
		entries[uid] = append(entries[uid], fmt.Sprintf("the pod as a whole: CPUs %s", set))
	}
	return n.left(entries, "CPUs")
}

// leftMemory finds memory of pods that do not exist.
func leftMemory(n *node) []found {
	entries := map[string][]string{}
	for uid, containers := range n.Memory.Containers {
		entries[uid] = nil
		for _, name := range slices.Sorted(maps.Keys(containers)) {
			for _, b := range containers[name] {
				entries[uid] = append(entries[uid], fmt.Sprintf("container %s: %s", kubelet.Printable(name), b))
			}
		}
	}
	for uid, blocks := range n.Memory.Pods {
		for _, b := range blocks {
			entries[uid] = append(entries[uid], fmt.Sprintf("the pod as a whole: %s", b))
		}
	}
	return n.left(entries, "memory")
}

// leftDevices finds devices of pods that do not exist.
func leftDevices(n *node) []found {
	entries := map[string][]string{}
	for _, e := range n.Devices.Entries {
		entries[e.Pod] = append(entries[e.Pod], fmt.Sprintf("container %s: %s of %s", kubelet.Printable(e.Container),
			strings.Join(deviceIDs(e), ", "), kubelet.Printable(e.Resource)))
	}
	return n.left(entries, "devices")
}

// leftClaims finds claims of pods that do not exist.
func leftClaims(n *node) []found {
	if n.Claims == nil {
		return nil
	}
	entries := map[string][]string{}
	for _, c := range n.Claims.Claims {
		for _, uid := range c.Pods {
			entries[uid] = append(entries[uid], "claim "+c.String())
		}
	}
	return n.left(entries, "claims")
}

// left are the entries of pods that do not exist, by uid.
func (n *node) left(entries map[string][]string, what string) (out []found) {
	for _, uid := range slices.Sorted(maps.Keys(entries)) {
		if n.pods[uid] == nil {
			out = append(out, found{n.owner(uid, ""), "the pod has ended or is not on the node, and the state file still has " + what + " of it", entries[uid]})
		}
	}
	return out
}

// lostCPUs finds CPUs that nobody has.
func lostCPUs(n *node) []found {
	if !n.static() {
		return nil
	}
	all := n.Machine.CPUs()
	if n.cpus.StrictReservation() {
		all = all.Minus(n.cpus.Reserved())
	}
	known := n.CPU.Shared.Union(owned(n.CPU))
	lost := all.Minus(known)
	if lost.IsEmpty() {
		return nil
	}
	return []found{{"CPUs " + lost.String(),
		"the CPUs are in no set of the state file: no container can use them, and the kubelet does not start the next time",
		[]string{fmt.Sprintf("the machine has CPUs %s online", n.Machine.CPUs()), fmt.Sprintf("defaultCpuSet is %s", n.CPU.Shared),
			fmt.Sprintf("containers and pods have CPUs %s", owned(n.CPU))}}}
}

// sharedOwned finds exclusive CPUs that are in the shared pool, too.
func sharedOwned(n *node) (out []found) {
	for _, h := range n.holders() {
		if both := h.set.Intersect(n.CPU.Shared); !both.IsEmpty() {
			out = append(out, found{n.owner(h.pod, h.container), "its exclusive CPUs " + both.String() +
				" are in the shared pool, too: other containers run there, and the kubelet does not start the next time",
				[]string{fmt.Sprintf("it has CPUs %s", h.set), fmt.Sprintf("defaultCpuSet is %s", n.CPU.Shared)}})
		}
	}
	return out
}

// holder has CPUs. It is a pod as a whole if there is no container.
type holder struct {
	pod, container string
	set            cpuset.Set
}

// holders are the owners of CPUs. The containers of a pod that has CPUs as a whole divide these.
func (n *node) holders() (out []holder) {
	for _, uid := range slices.Sorted(maps.Keys(n.CPU.Pods)) {
		out = append(out, holder{pod: uid, set: n.CPU.Pods[uid]})
	}
	for _, uid := range slices.Sorted(maps.Keys(n.CPU.Containers)) {
		if _, whole := n.CPU.Pods[uid]; whole {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(n.CPU.Containers[uid])) {
			out = append(out, holder{uid, name, n.CPU.Containers[uid][name]})
		}
	}
	return out
}

// twice finds CPUs that two containers have at the same time.
func twice(n *node) (out []found) {
	holders := n.holders()
	for i, a := range holders {
		for _, b := range holders[i+1:] {
			both := a.set.Intersect(b.set)
			if both.IsEmpty() || a.pod == b.pod && !n.together(a, b) {
				continue
			}
			out = append(out, found{n.owner(a.pod, a.container), fmt.Sprintf("its exclusive CPUs %s are those of %s, too", both,
				n.owner(b.pod, b.container)), []string{fmt.Sprintf("%s has CPUs %s", n.owner(a.pod, a.container), a.set),
				fmt.Sprintf("%s has CPUs %s", n.owner(b.pod, b.container), b.set)}})
		}
	}
	return out
}

// together reports whether two containers of a pod run at the same time: the one that the pod lists first runs for the pod's life. An
// init container leaves its CPUs to the ones after it. Nothing is known about containers of a pod that is not known.
func (n *node) together(a, b holder) bool {
	pod := n.pods[a.pod]
	if pod == nil || pod.Container(a.container) == nil || pod.Container(b.container) == nil {
		return false
	}
	for _, c := range pod.Walk() {
		if c.Name == a.container || c.Name == b.container {
			return !c.Role.Feeds()
		}
	}
	return false
}

// belowZero finds amounts of memory from which more was taken than there was.
func belowZero(n *node) (out []found) {
	for _, id := range slices.Sorted(maps.Keys(n.Memory.Nodes)) {
		for _, resource := range slices.Sorted(maps.Keys(n.Memory.Nodes[id].Tables)) {
			t := n.Memory.Nodes[id].Tables[resource]
			for _, amount := range []struct {
				name  string
				bytes uint64
			}{{"allocatable", t.Allocatable}, {"free", t.Free}} {
				if amount.bytes > math.MaxInt64 {
					out = append(out, found{fmt.Sprintf("%s of NUMA node %d", kubelet.Printable(resource), id),
						fmt.Sprintf("the amount %s is below zero, which the kubelet takes for nearly 2^64 bytes: every pod fits there", amount.name),
						[]string{fmt.Sprintf("%s is %d", amount.name, amount.bytes),
							fmt.Sprintf("total is %s, systemReserved %s", bytesText(t.Total), bytesText(t.SystemReserved))}})
					break
				}
			}
		}
	}
	return out
}

func bytesText(n uint64) string { return workload.Memory.Text(int64(min(n, math.MaxInt64))) }
