package workload

import (
	"fmt"
	"maps"
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
// What a pod from an API server needs is there already, so it comes back unchanged and without notes.
func Defaulted(p Pod, f Features) (Pod, []string) {
	d := defaulting{pod: p}
	d.pod.Containers = slices.Clone(p.Containers)
	for i := range d.pod.Containers {
		c := &d.pod.Containers[i]
		c.Requests = d.fill(c.Requests, c.Limits, QuantityPath(p.ContainerPath(i), Requests), "the limit", nil)
	}
	if f.PodLevelResources && p.Resources != nil {
		d.podLevel()
	}
	return d.pod, d.notes
}

// defaulting is one run of Defaulted.
type defaulting struct {
	pod   Pod
	notes []string
}

func (d *defaulting) podLevel() {
	given := *d.pod.Resources
	if len(given.Requests) == 0 && len(given.Limits) == 0 {
		return
	}
	limitsPath, requestsPath := QuantityPath(specPath, Limits), QuantityPath(specPath, Requests)
	given.Limits = d.fill(given.Limits, totals(&d.pod, func(c *Container) Quantities { return c.Limits }), limitsPath,
		"the containers' limits", func(r Resource) bool {
			_, requested := given.Requests[r]
			return r.IsHugePages() && !requested
		})
	if len(given.Limits) > 0 {
		given.Requests = d.fill(given.Requests, totals(&d.pod, func(c *Container) Quantities { return c.Requests }), requestsPath,
			"the containers' requests", func(r Resource) bool { return r == CPU || r == Memory })
		given.Requests = d.fill(given.Requests, given.Limits, requestsPath, "the pod-level limit", Resource.PodLevel)
	}
	d.pod.Resources = &given
}

// fill gives to with the amounts of from that it lacks and that want accepts (nil accepts all); to itself stays as it is.
func (d *defaulting) fill(to, from Quantities, path func(Resource) string, source string, want func(Resource) bool) Quantities {
	filled := to
	for r, amount := range from.Sorted() {
		if _, present := to[r]; present || want != nil && !want(r) {
			continue
		}
		if len(filled) == len(to) {
			filled = maps.Clone(to)
			if filled == nil {
				filled = Quantities{}
			}
		}
		filled[r] = amount
		d.notes = append(d.notes, fmt.Sprintf("%s was not set and takes %s: %d", path(r), source, amount))
	}
	return filled
}
