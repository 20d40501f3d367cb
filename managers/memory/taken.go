package memory

import (
	"cmp"
	"fmt"
	"maps"
	"math/bits"
	"slices"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// PodPages counts the huge pages that pods are known to use, in bytes.
type PodPages struct {
	// Of returns what the cgroup of a pod uses of a resource, and All what the cgroup of all pods uses; false if the kernel does
	// not say it. Then pods count with everything that they may use, so that pages of a pod are never taken for those of others.
	Of  func(uid string, resource workload.Resource) (uint64, bool)
	All func(resource workload.Resource) (uint64, bool)
	// Features decide what a pod requests.
	Features workload.Features
	// System is what is reserved for the system, by node and resource. The system may use it.
	System map[int]map[workload.Resource]uint64
}

// TakenPages returns the huge pages that pods cannot have, of those that the kernel has in use. A page in use is a pod's if memory of
// its node was allocated to the pod. The kernel does not say on which nodes a pod uses how many pages: its cgroup has a sum, and the
// amounts by node do not follow pages that move. So pages are attributed to pods with memory of a single node first, and then to those with
// memory of several, from the lowest node up. The sum over the nodes of a pod is exact, and no decision depends on more.
func (m *Manager) TakenPages(view *ledger.View, inUse []Pool, pods PodPages) (out []ledger.TakenPages) {
	used := map[workload.Resource]*amounts{}
	for _, k := range inUse {
		if k.Node < 0 || k.Node >= numa.MaxNodes {
			continue
		}
		hi, bytes := bits.Mul64(k.Pages, min(k.SizeKiB, maxBytes/1024)*1024)
		if hi != 0 {
			bytes = maxBytes
		}
		r := workload.Resource(hugePages(k.SizeKiB))
		if used[r] == nil {
			used[r] = &amounts{}
		}
		used[r][k.Node] = int64(min(bytes, maxBytes))
	}
	for _, r := range slices.Sorted(maps.Keys(used)) {
		out = append(out, m.takenFrom(view, r, used[r], pods)...)
	}
	return out
}

// takenFrom is TakenPages of one resource. used is what is in use by node.
func (m *Manager) takenFrom(view *ledger.View, r workload.Resource, used *amounts, pods PodPages) (out []ledger.TakenPages) {
	outside := used.sum(^numa.Mask(0)) - int64(min(usedByPods(view, r, pods), maxBytes))
	left := *used
	if m.policy == PolicyStatic {
		for _, u := range usesOf(view, r, pods) {
			for id := range u.nodes.All() {
				n := min(left[id], u.bytes)
				left[id], u.bytes = left[id]-n, u.bytes-n
			}
		}
	}
	for id := range numa.MaxNodes {
		system := min(left[id], int64(min(pods.System[id][r], maxBytes)))
		left[id] -= system
		outside -= system
	}
	for id, bytes := range left {
		t := ledger.TakenPages{Node: id, Resource: string(r), Bytes: uint64(bytes), Outside: uint64(max(0, min(bytes, outside)))}
		outside -= int64(t.Outside)
		if m.policy == PolicyNone { // no pod has memory of a node
			t.Bytes = t.Outside
		}
		if t.Bytes > 0 {
			out = append(out, t)
		}
	}
	return out
}

// usedByPods is what all pods use, or may use.
func usedByPods(view *ledger.View, r workload.Resource, pods PodPages) uint64 {
	if bytes, ok := pods.All(r); ok {
		return bytes
	}
	requested, _ := view.Requests(pods.Features, "")
	sum := uint64(max(0, requested[r]))
	for _, bytes := range view.ResourceClaimMemory().Held(string(r)) {
		sum += bytes
	}
	return sum
}

// podUse is an amount that a pod uses on some nodes.
type podUse struct {
	nodes numa.Mask
	bytes int64
}

// usesOf lists what pods use of the memory of nodes that was allocated to them, those on the fewest nodes first.
func usesOf(view *ledger.View, r workload.Resource, pods PodPages) (out []podUse) {
	for p := range view.Pods() {
		var nodes numa.Mask
		for i := range p.Claims {
			if c := &p.Claims[i]; c.Resource == string(r) && c.Provider == Name {
				for _, b := range c.Memory {
					nodes = nodes.Union(b.Nodes)
				}
			}
		}
		if nodes.IsEmpty() {
			continue
		}
		held := heldByPod(view, p, r)
		if bytes, ok := pods.Of(p.UID(), r); ok && p.Pod.ResourceClaim == nil {
			held = min(held, bytes) // it may also use pages of resource claims
		}
		out = append(out, podUse{nodes, int64(min(held, maxBytes))})
	}
	slices.SortStableFunc(out, func(a, b podUse) int { return cmp.Compare(a.nodes.Len(), b.nodes.Len()) })
	return out
}

// heldByPod is what a pod holds of a resource on all nodes.
func heldByPod(view *ledger.View, p *ledger.Pod, r workload.Resource) (sum uint64) {
	record := *p
	record.Claims = slices.Clone(p.Claims)
	alone := ledger.NewDraft(ledger.Empty(view.Rules()))
	alone.PutPod(&record)
	use := alone.View().MemoryUse()
	if p.Pod.ResourceClaim != nil {
		use = alone.View().ResourceClaimMemory()
	}
	for _, bytes := range use.Held(string(r)) {
		sum += bytes
	}
	return sum
}

// TakenFindings returns a finding for each node with huge pages that no pod uses and that are not free.
func TakenFindings(view *ledger.View) (out []check.Finding) {
	for _, t := range view.Rules().TakenPages {
		if t.Outside == 0 {
			continue
		}
		out = append(out, check.Finding{Kind: kindTaken, Rule: ruleTaken, Resource: t.Resource, Text: fmt.Sprintf(
			"%s of %s on NUMA node %d are in use outside of pods, so new pods cannot have them: end the processes that use them (HugetlbPages in /proc/PID/status), remove their files in hugetlbfs, or reserve the pages (memory.reserved)",
			quantity(t.Outside), t.Resource, t.Node)})
	}
	return out
}

// The kind and the rule of the findings: the kernel has the huge pages free that no pod uses.
const (
	kindTaken check.Kind = "kernel"
	ruleTaken check.Rule = "huge-pages"
)
