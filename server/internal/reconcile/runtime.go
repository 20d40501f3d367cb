package reconcile

import (
	"slices"
	"strings"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/ledger"
)

// runtimeContainer is a bound container created by a runtime.
type runtimeContainer struct {
	id    string
	owner ledger.Owner
	// name is nil if the runtime does not report it.
	name   cgroup.Name
	values cgroup.Values
	// runs means that it has a process, and that its cgroup can be read.
	runs bool
}

// runtimeContainers are those of a view; the zero value is empty.
type runtimeContainers struct {
	all []runtimeContainer
	// running are the indexes of those that run, by the name of their cgroup.
	running map[string]int
}

func (g *runtimeContainers) add(c runtimeContainer) {
	if c.runs {
		if g.running == nil {
			g.running = map[string]int{}
		}
		g.running[c.name.String()] = len(g.all)
	}
	g.all = append(g.all, c)
}

// nodes returns the cgroups of the running ones.
func (g *runtimeContainers) nodes() []cgroup.Node {
	var out []cgroup.Node
	for _, c := range g.all {
		if c.runs {
			out = append(out, cgroup.Node{Name: c.name, Values: c.values})
		}
	}
	return out
}

// at returns the one that runs in a cgroup.
func (g *runtimeContainers) at(name string) (runtimeContainer, bool) {
	i, ok := g.running[name]
	if !ok {
		return runtimeContainer{}, false
	}
	return g.all[i], true
}

// present removes nodes of these containers that were not observed: the container has just
// exited, or is in another cgroup than the runtime reports. Then it counts as not running.
// berth does not repair a runtime's cgroup, so it counts as valid. The nodes share their
// array with the result.
func (g *runtimeContainers) present(nodes []cgroup.Node, seen *cgroup.Snapshot) []cgroup.Node {
	if len(g.running) == 0 {
		return nodes
	}
	there := make(map[string]bool, len(g.running))
	for i := range seen.Nodes {
		o := &seen.Nodes[i]
		key := o.Name.String()
		if _, ok := g.running[key]; ok && o.State != cgroup.Absent {
			there[key], o.State = true, cgroup.Valid
		}
	}
	return slices.DeleteFunc(nodes, func(n cgroup.Node) bool {
		key := n.Name.String()
		i, ok := g.running[key]
		if !ok || there[key] {
			return false
		}
		g.all[i].runs = false
		delete(g.running, key)
		return true
	})
}

// isCalled returns whether a cgroup is named after a container in one of the runtimes'
// ways: ID, PREFIX-ID or PREFIX-ID.scope. The cgroup of conmon, CRI-O's monitor of a
// container, has a similar name that does not match.
func isCalled(name cgroup.Name, id string) bool {
	prefix, ok := strings.CutSuffix(strings.TrimSuffix(name.Base(), ".scope"), id)
	return ok && (prefix == "" || strings.HasSuffix(prefix, "-") && !strings.HasSuffix(prefix, "-conmon-"))
}
