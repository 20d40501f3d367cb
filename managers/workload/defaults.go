package workload

import (
	"slices"
	"strings"
)

// Defaulted gives a copy of p in which a request that is missing where a limit is given equals the limit, as the API server
// would have stored it, and one note for each list that was completed. For pod-level resources (KEP-2837), with the feature on:
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
	d.pod.Containers = slices.Clone(d.pod.Containers)
	for i := range d.pod.Containers {
		c := &d.pod.Containers[i]
		requests := d.fill(c.requests(), c.limits(), "requests that container "+c.Name+" leaves out", "its limits", nil)
		c.Requests, c.Excess = requests.amounts, excess(requests, c.limits(), list{})
	}
}

func (d *defaulting) podLevel() {
	requests, limits, overhead := d.pod.podLevel()
	limits = d.fill(limits, totals(&d.pod, (*Container).limits, nil).list(), "limits that the pod leaves out", "its containers",
		func(r Resource) bool {
			_, requested := requests.amounts[r]
			return r.IsHugePages() && !requested
		})
	if len(limits.amounts) > 0 {
		requests = d.fill(requests, totals(&d.pod, (*Container).requests, nil).list(), "requests that the pod leaves out", "its containers",
			func(r Resource) bool { return r == CPU || r == Memory })
		requests = d.fill(requests, limits, "requests that the pod leaves out", "its limits", Resource.PodLevel)
	}
	d.pod.Resources = &Resources{Requests: requests.amounts, Limits: limits.amounts}
	d.pod.Excess = excess(requests, limits, overhead)
}

// fill gives to with the amounts of from that it lacks and that want accepts (nil accepts all); to itself stays as it is. The
// note describes what is taken from which source.
func (d *defaulting) fill(to, from list, what, source string, want func(Resource) bool) list {
	filled := to
	var added []string
	for r, amount := range from.amounts.Sorted() {
		if _, present := to.amounts[r]; present || want != nil && !want(r) {
			continue
		}
		if added == nil {
			filled = to.copied()
		}
		filled.set(r, from.at(r))
		added = append(added, string(r)+" "+r.Text(amount))
	}
	if added != nil {
		d.notes = append(d.notes, what+" are taken from "+source+": "+strings.Join(added, ", "))
	}
	return filled
}

// excess gives what belongs next to three lists, nil where nothing was rounded.
func excess(requests, limits, overhead list) *Excess {
	if len(requests.excess)+len(limits.excess)+len(overhead.excess) == 0 {
		return nil
	}
	return &Excess{Requests: requests.excess, Limits: limits.excess, Overhead: overhead.excess}
}
