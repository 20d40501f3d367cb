package reconcile

import (
	"sync"

	"github.com/berthd/berth/managers/cgroup"
)

// endings are cgroups that are being removed, or were until recently. A removal freezes
// them and kills their processes; that is not drift, and must not be undone.
type endings struct {
	mu sync.Mutex
	// names are the cgroups with the number of removals of each; guarded by mu. An entry
	// stays at least until the next pass begins.
	names map[string]ending
}

type ending struct {
	name     cgroup.Name
	removers int
}

func (e *endings) add(name cgroup.Name) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.names == nil {
		e.names = map[string]ending{}
	}
	key := name.String()
	e.names[key] = ending{name, e.names[key].removers + 1}
}

// end ends a removal. A cgroup that was not removed may be written again.
func (e *endings) end(name cgroup.Name, removed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := name.String()
	one := ending{name, e.names[key].removers - 1}
	if e.names[key] = one; !removed && one.removers == 0 {
		delete(e.names, key)
	}
}

// forget drops ended removals. A pass calls it before it reads the tree.
func (e *endings) forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, one := range e.names {
		if one.removers == 0 {
			delete(e.names, key)
		}
	}
}

// revoke makes a cgroup writable again, because it is needed.
func (e *endings) revoke(name cgroup.Name) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if key := name.String(); e.names[key].removers == 0 {
		delete(e.names, key)
	}
}

// has returns whether a cgroup is being removed or is below such a cgroup.
func (e *endings) has(name cgroup.Name) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.within(name)
}

// confine reduces existing nodes that a removal may have changed since forget to their CPUs
// and memory nodes, because their processes may outlive the removal. The result shares its
// array with nodes.
func (e *endings) confine(nodes []cgroup.Node, seen *cgroup.Snapshot) []cgroup.Node {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.names) == 0 {
		return nodes
	}
	out := nodes[:0]
	for _, n := range nodes {
		if e.within(n.Name) {
			if seen.Find(n.Name).State != cgroup.Valid {
				continue
			}
			n = cgroup.Node{Name: n.Name, Values: cgroup.Values{Cpuset: n.Values.Cpuset}}
		}
		out = append(out, n)
	}
	return out
}

// within is has with mu held.
func (e *endings) within(name cgroup.Name) bool {
	for _, one := range e.names {
		if name.Within(one.name) {
			return true
		}
	}
	return false
}
