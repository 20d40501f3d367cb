package memory

import (
	"cmp"
	"slices"

	"github.com/berthd/berth/managers/workload"
)

// want is an amount of one resource that a request is about.
type want struct {
	resource string
	bytes    int64
}

// demand answers how much memory of certain nodes a pod and its containers get.
type demand struct {
	workload.Share
	asKubelet bool
}

func (m *Manager) demand(pod *workload.Pod) demand { return demand{pod.Share(m.features), m.asKubelet} }

// of is what a container requests by itself, zero amounts included, by resource.
// A container of a pod with pod-level resources must be Guaranteed by itself for
// that (KEP-5526).
func (d *demand) of(c *workload.Container) []want {
	if !d.Apart(c) {
		return nil
	}
	return wants(c.Requests, 0)
}

// wants returns the memory resources of which at least so much is requested.
func wants(requests workload.Quantities, least int64) []want {
	var out []want
	for r, n := range requests {
		if n = max(n, 0); isMemory(r) && n >= least {
			out = append(out, want{string(r), n})
		}
	}
	slices.SortFunc(out, func(a, b want) int { return cmp.Compare(a.resource, b.resource) })
	return out
}

// total is what the pod holds at its busiest moment, of the resources that it
// names as a whole, or else of those that some container requests. The kubelet leaves
// out what only init containers and sidecars request (kubernetes#140814).
func (d *demand) total() []want {
	if d.Whole {
		return wants(d.Pod.Resources.Requests, 1)
	}
	var out []want
	for _, c := range d.Pod.Walk() {
		if d.asKubelet && c.Role != workload.App {
			continue
		}
		for _, w := range wants(c.Requests, 0) {
			if !slices.ContainsFunc(out, func(o want) bool { return o.resource == w.resource }) {
				out = append(out, want{resource: w.resource})
			}
		}
	}
	for i := range out {
		r := workload.Resource(out[i].resource)
		out[i].bytes = workload.PodTotal(d.Pod, func(c *workload.Container) int64 { return max(c.Requests[r], 0) })
	}
	slices.SortFunc(out, func(a, b want) int { return cmp.Compare(a.resource, b.resource) })
	return out
}

// amount is the amount of a resource in a list.
func amount(list []want, resource string) int64 {
	for _, w := range list {
		if w.resource == resource {
			return w.bytes
		}
	}
	return 0
}

// starved names the resource, if there is one, of which the containers with
// memory of their own use up what a pod has as a whole, while a container shares
// the rest. early means that it is an init container that shares.
func (d *demand) starved(total []want) (resource string, early bool) {
	amounts := func(list []want) (out []int64) {
		for _, w := range total {
			out = append(out, amount(list, w.resource))
		}
		return out
	}
	at, early := d.Starved(amounts(total), func(c *workload.Container) []int64 {
		if own := d.of(c); own != nil {
			return amounts(own)
		}
		return nil
	})
	if at < 0 {
		return "", false
	}
	return total[at].resource, early
}
