package workload

import (
	"fmt"
	"iter"
	"slices"
)

// Role tells when a container runs relative to the others of its pod.
type Role int

const (
	// App containers run together, after all init containers have finished and all sidecars have started.
	App Role = iota
	// Init containers run one at a time, each to its end, before the app containers.
	Init
	// Sidecar is an init container with restart policy Always: it starts in its turn and runs as long as the pod (KEP-753).
	Sidecar
)

var roleNames = [...]string{App: "app", Init: "init", Sidecar: "sidecar"}

// String gives app, init or sidecar.
func (r Role) String() string {
	if r < 0 || int(r) >= len(roleNames) {
		return fmt.Sprintf("role(%d)", int(r))
	}
	return roleNames[r]
}

// MarshalText gives the same as String; a number that is no role is an error.
func (r Role) MarshalText() ([]byte, error) {
	if r < 0 || int(r) >= len(roleNames) {
		return nil, fmt.Errorf("%d is no container role", int(r))
	}
	return []byte(roleNames[r]), nil
}

// UnmarshalText reads what MarshalText wrote.
func (r *Role) UnmarshalText(text []byte) error {
	for i, name := range roleNames {
		if name == string(text) {
			*r = Role(i)
			return nil
		}
	}
	return fmt.Errorf("%q is no container role: expected app, init or sidecar", text)
}

// Feeds reports whether containers of this role leave their exclusive units (CPUs, memory, devices) to later containers of
// the pod. Only an ordinary init container does: it has finished when the next one starts. A sidecar runs on, so what it
// holds is never handed on, although it may itself take what an earlier init container left.
func (r Role) Feeds() bool { return r == Init }

// Walk yields the containers in admission order with their index in Containers. The pointers lead into the pod; callers must not
// write through them.
func (p *Pod) Walk() iter.Seq2[int, *Container] {
	return func(yield func(int, *Container) bool) {
		for i := range p.Containers {
			if !yield(i, &p.Containers[i]) {
				return
			}
		}
	}
}

// Reusable gives the units that the container called name may take over from earlier containers of its pod: those that
// init containers before it held, without those that a sidecar (or app container) before it has taken since. In a pod that
// runs, later containers have some, too: a sidecar or an app container gets none of those. held gives
// the units of one other container, by its index in Containers; union and minus are the operations of S, whose zero value must be the
// empty set. For CPU sets:
//
//	Reusable(p, "main", held, cpuset.Set.Union, cpuset.Set.Minus)
//
// The rule is the same for CPUs, memory and devices, and this is its only home.
func Reusable[S any](p *Pod, name string, held func(at int) S, union, minus func(S, S) S) S {
	var free S
	reached := false
	for i, c := range p.Walk() {
		switch {
		case c.Name == name && c.Role.Feeds():
			return free
		case c.Name == name:
			reached = true
		case !reached && c.Role.Feeds():
			free = union(free, held(i))
		default:
			free = minus(free, held(i))
		}
	}
	return free
}

// Borrowable gives the units that the init container called name may use, if the containers that run for the pod's life are
// planned before it: what those after it hold, and what other init containers have, without what a sidecar before it holds,
// because that one runs. plus adds what containers hold that run together; the rest is as for Reusable.
func Borrowable[S any](p *Pod, name string, held func(at int) S, union, plus, minus func(S, S) S) S {
	var kept, later S
	reached := false
	for i, c := range p.Walk() {
		switch {
		case c.Name == name:
			reached = true
		case c.Role.Feeds():
			kept = union(kept, held(i))
		case reached:
			later = plus(later, held(i))
		default:
			kept = minus(kept, held(i))
		}
	}
	return union(kept, later)
}

// HasInit reports whether the pod has an init container that ends before others start.
func (p *Pod) HasInit() bool {
	return slices.ContainsFunc(p.Containers, func(c Container) bool { return c.Role.Feeds() })
}

// PodTotal gives the amount that the pod needs at its busiest moment, where n gives the amount of one container. While
// init containers run, that is the largest of them together with the sidecars started before it; afterwards it is all app
// containers together with all sidecars (KEP-753). The formula serves CPUs, memory and devices alike.
func PodTotal(p *Pod, n func(*Container) int64) int64 {
	var t total
	for _, c := range p.Walk() {
		t = t.with(c.Role, Exact{Whole: n(c)})
	}
	return t.amount().Whole
}

// total is the state of PodTotal's sum for one resource: fed container by container in the order of the walk. Containers
// that want nothing may be left out.
type total struct {
	apps, sidecars Exact
	peak           Exact // the most that was in use while an init container ran
}

func (t total) with(role Role, amount Exact) total {
	switch role {
	case Sidecar:
		t.sidecars = t.sidecars.Plus(amount)
	case Init:
		t.peak = t.peak.larger(t.sidecars.Plus(amount))
	default:
		t.apps = t.apps.Plus(amount)
	}
	return t
}

func (t total) amount() Exact { return t.peak.larger(t.apps.Plus(t.sidecars)) }
