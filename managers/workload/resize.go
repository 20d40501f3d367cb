package workload

import (
	"maps"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
)

// RestartContainer is the resize policy by which a change takes effect when the container starts again.
const RestartContainer = "RestartContainer"

// resizable are the resources that may change while a pod lives.
var resizable = []Resource{CPU, Memory}

// CheckResize returns the violations of changing old into wanted in place (KEP-1287, KEP-5419): only the cpu and memory of
// containers, and of the pod as a whole, may change; an ordinary init container cannot restart for it; what is requested
// or limited stays requested or limited; the class stays. Both went through Defaulted, and wanted is valid.
func CheckResize(old, wanted *Pod, f Features) errdefs.Violations {
	var vs errdefs.Violations
	if a, err := fixed(old).Digest(); err != nil {
		vs.Addf(specPath, "%v", err)
	} else if b, err := fixed(wanted).Digest(); err != nil || a != b {
		vs.Addf(specPath, "differs from the admitted pod in more than cpu and memory of its containers")
		return vs
	}
	paths := wanted.ContainerPaths()
	for i := range wanted.Containers {
		have, want := &old.Containers[i], &wanted.Containers[i]
		if want.Role == Init && len(changed(have, want)) > 0 && slices.Contains(slices.Collect(maps.Values(want.ResizePolicy)),
			RestartContainer) {
			vs.Addf(paths[i]+".resources", "an ordinary init container whose resizePolicy is %s cannot be resized in place",
				RestartContainer)
			continue
		}
		keeps(&vs, QuantityPath(paths[i], Requests), have.Requests, want.Requests)
		keeps(&vs, QuantityPath(paths[i], Limits), have.Limits, want.Limits)
	}
	if old.Resources != nil && wanted.Resources != nil {
		keeps(&vs, QuantityPath(specPath, Requests), old.Resources.Requests, wanted.Resources.Requests)
		keeps(&vs, QuantityPath(specPath, Limits), old.Resources.Limits, wanted.Resources.Limits)
	}
	if have, want := old.QoSClass(f), wanted.QoSClass(f); have != want {
		vs.Addf(specPath, "the class may not change as a result of resizing: it was %s and would be %s", have, want)
	}
	return vs
}

// keeps notes amounts that would vanish.
func keeps(vs *errdefs.Violations, path func(Resource) string, old, wanted Quantities) {
	for _, r := range resizable {
		_, had := old[r]
		if _, has := wanted[r]; had && !has {
			vs.Addf(path(r), "may be changed in place but not removed")
		}
	}
}

// fixed gives a copy of p without what may change.
func fixed(p *Pod) *Pod {
	out := *p
	out.QoS, out.Excess = "", out.Excess.fixed()
	out.Containers = slices.Clone(p.Containers)
	for i := range out.Containers {
		c := &out.Containers[i]
		c.Requests, c.Limits, c.Excess = c.Requests.fixed(), c.Limits.fixed(), c.Excess.fixed()
	}
	if p.Resources != nil {
		out.Resources = &Resources{Requests: p.Resources.Requests.fixed(), Limits: p.Resources.Limits.fixed()}
	}
	return &out
}

func (q Quantities) fixed() Quantities {
	out := maps.Clone(q)
	for _, r := range resizable {
		delete(out, r)
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

func (e *Excess) fixed() *Excess {
	if e == nil {
		return nil
	}
	out := Excess{Requests: e.Requests.fixed(), Limits: e.Limits.fixed(), Overhead: e.Overhead}
	if len(out.Requests)+len(out.Limits)+len(out.Overhead) == 0 {
		return nil
	}
	return &out
}

// changed lists the resources of which a container requests other amounts.
func changed(old, wanted *Container) (out []Resource) {
	for _, r := range resizable {
		if !sameAmount(old.Requests, wanted.Requests, r) || !sameAmount(old.Limits, wanted.Limits, r) {
			out = append(out, r)
		}
	}
	return out
}

func sameAmount(a, b Quantities, r Resource) bool {
	x, inA := a[r]
	y, inB := b[r]
	return inA == inB && x == y
}

// RequestsChange reports whether a resize changes what any container, or the pod as a whole, requests of a resource.
func RequestsChange(old, wanted *Pod, r Resource) bool {
	for i := range wanted.Containers {
		have := old.Container(wanted.Containers[i].Name)
		if have == nil || !sameAmount(have.Requests, wanted.Containers[i].Requests, r) {
			return true
		}
	}
	if (old.Resources == nil) != (wanted.Resources == nil) {
		return true
	}
	return old.Resources != nil && !sameAmount(old.Resources.Requests, wanted.Resources.Requests, r)
}

// Restarts lists, in order, the containers that a resize restarts by their resize policy.
func Restarts(old, wanted *Pod) (names []string) {
	for i := range wanted.Containers {
		c := &wanted.Containers[i]
		have := old.Container(c.Name)
		if have == nil {
			continue
		}
		if slices.ContainsFunc(changed(have, c), func(r Resource) bool { return c.ResizePolicy[r] == RestartContainer }) {
			names = append(names, c.Name)
		}
	}
	return names
}
