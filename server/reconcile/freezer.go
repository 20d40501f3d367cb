package reconcile

import (
	"context"
	"fmt"
	"sync"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
)

// endings are cgroups that are being removed, or were a moment ago: a removal freezes
// them and takes their processes away, which is nobody's drift and not to be undone.
type endings struct {
	mu sync.Mutex
	// names are theirs, with how many remove each; guarded by mu. None of them has
	// ended since the last pass began to look.
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
	e.names[name.String()] = ending{name, e.names[name.String()].removers + 1}
}

// end ends a removal. What is not removed may be made as before.
func (e *endings) end(name cgroup.Name, removed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	one := ending{name, e.names[name.String()].removers - 1}
	if e.names[name.String()] = one; !removed && one.removers == 0 {
		delete(e.names, name.String())
	}
}

// forget drops those that nobody removes any more. A pass calls it before it looks.
func (e *endings) forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, one := range e.names {
		if one.removers == 0 {
			delete(e.names, key)
		}
	}
}

// revoke ends that a cgroup is not made again: it is wanted once more.
func (e *endings) revoke(name cgroup.Name) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.names[name.String()].removers == 0 {
		delete(e.names, name.String())
	}
}

// has tells whether a cgroup is one of them or lies in one.
func (e *endings) has(name cgroup.Name) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.within(name)
}

// confine leaves of the nodes that a removal may have changed since forget the CPUs and
// memory nodes of those that are there: their processes may outlive the removal. The
// result shares its array with nodes.
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

// within tells whether a cgroup is one of them or lies in one. mu is held.
func (e *endings) within(name cgroup.Name) bool {
	for _, one := range e.names {
		if name.Within(one.name) {
			return true
		}
	}
	return false
}

// revive gives a cgroup that was there before what it lacks: it may be left of a
// removal that was cut off. The caller holds mu.
func (l *Loop) revive(ctx context.Context, node cgroup.Node) error {
	seen, err := l.Tree.Observe(ctx, node.Name, 0)
	if err != nil {
		return err
	}
	return cgroup.Apply(ctx, l.Tree, cgroup.Diff([]cgroup.Node{node}, seen))
}

// thawed makes sure that what is put into a cgroup of a pod runs: those up to the
// pod's own are thawed; one above is an error of class Precondition. The caller holds
// mu.
func (l *Loop) thawed(ctx context.Context, pod, name cgroup.Name) error {
	var by cgroup.Name
	for range len(name) - len(pod) + 2 {
		var err error
		if by, err = l.Tree.Frozen(ctx, name); err != nil || by == nil {
			return err
		}
		if !by.Within(pod) {
			break
		}
		frozen := false
		if _, err := l.Tree.Ensure(ctx, cgroup.Node{Name: by, Values: cgroup.Values{Frozen: &frozen}}); err != nil {
			return err
		}
	}
	return errdefs.Preconditionf("cgroup %s is frozen, so no process in it runs: thaw it", l.spelt(by))
}

// frozenAbove finds out whether somebody has frozen the cgroups that pods lie in.
// Pods' own cgroups are what Diff thaws. The caller holds mu.
func (l *Loop) frozenAbove(ctx context.Context, tiers []cgroup.Node) ([]ledger.Finding, error) {
	var out []ledger.Finding
	var last cgroup.Name
	for _, tier := range tiers {
		by, err := l.Tree.Frozen(ctx, tier.Name)
		if err != nil {
			return nil, err
		}
		if by == nil || by.Equal(last) {
			continue
		}
		last = by
		out = append(out, ledger.Finding{Kind: ledger.Kernel, Rule: ledger.RuleFrozen, Text: fmt.Sprintf(
			"cgroup %s is frozen, so no pod in it runs, and none is started: thaw it", l.spelt(by))})
	}
	return out, nil
}

// spelt gives the path of a cgroup below the mount point.
func (l *Loop) spelt(name cgroup.Name) string {
	literal, err := l.Layout.Literal(name)
	if err != nil {
		return name.String() // somebody else's, which has no name of berth's
	}
	return literal
}
