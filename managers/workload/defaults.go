package workload

import (
	"fmt"
	"slices"
)

// Defaulted gives a copy of p in which a request that is missing where a limit is given equals the limit, as the API server
// would have stored it, and one note for each value filled in. For pod-level resources (KEP-2837), with the feature on:
//
//   - a huge page limit that is missing becomes the total of the containers' limits, unless a pod-level request for the same
//     resource is there;
//   - if any pod-level limit is given, a cpu or memory request that is missing becomes the total of the containers' requests,
//     and, where no container has one, the pod-level limit; a huge page request becomes the limit.
//
// A pod from an API server has all of this already: it comes back unchanged and without notes.
func Defaulted(p Pod, f Features) (Pod, []string) {
	d := defaulting{pod: p}
	d.containers()
	if f.PodLevelResources && p.Resources != nil && len(p.Resources.Requests)+len(p.Resources.Limits) > 0 {
		d.podLevel()
	}
	return d.pod, d.notes
}

// defaulting is one run of Defaulted; pod shares with the original what has not been changed.
type defaulting struct {
	pod   Pod
	notes []string
}

func (d *defaulting) containers() {
	paths := d.pod.ContainerPaths()
	d.pod.Containers = slices.Clone(d.pod.Containers)
	for i := range d.pod.Containers {
		c := &d.pod.Containers[i]
		requests := d.fill(c.requests(), c.limits(), QuantityPath(paths[i], Requests), "the limit", nil)
		c.Requests, c.Excess = requests.amounts, excess(requests, c.limits(), list{})
	}
}

func (d *defaulting) podLevel() {
	requests, limits, overhead := d.pod.podLevel()
	requestPath, limitPath := QuantityPath(specPath, Requests), QuantityPath(specPath, Limits)
	limits = d.fill(limits, totals(&d.pod, (*Container).limits), limitPath, "the containers' limits", func(r Resource) bool {
		_, requested := requests.amounts[r]
		return r.IsHugePages() && !requested
	})
	if len(limits.amounts) > 0 {
		requests = d.fill(requests, totals(&d.pod, (*Container).requests), requestPath, "the containers' requests",
			func(r Resource) bool { return r == CPU || r == Memory })
		requests = d.fill(requests, limits, requestPath, "the pod-level limit", Resource.PodLevel)
	}
	d.pod.Resources = &Resources{Requests: requests.amounts, Limits: limits.amounts}
	d.pod.Excess = excess(requests, limits, overhead)
}

// fill gives to with the amounts of from that it lacks and that want accepts (nil accepts all); to itself stays as it is.
func (d *defaulting) fill(to, from list, path func(Resource) string, source string, want func(Resource) bool) list {
	filled, touched := to, false
	for r, amount := range from.amounts.Sorted() {
		if _, present := to.amounts[r]; present || want != nil && !want(r) {
			continue
		}
		if !touched {
			filled, touched = to.copied(), true
		}
		filled.set(r, from.at(r))
		d.notes = append(d.notes, fmt.Sprintf("%s was not set and takes %s: %d", path(r), source, amount))
	}
	return filled
}

// excess gives what belongs beside three lists, nil where nothing was rounded.
func excess(requests, limits, overhead list) *Excess {
	if len(requests.excess)+len(limits.excess)+len(overhead.excess) == 0 {
		return nil
	}
	return &Excess{Requests: requests.excess, Limits: limits.excess, Overhead: overhead.excess}
}
