package topology

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/numa"
)

// Policy defines which merge results admit a request.
type Policy string

const (
	// None calls no provider and admits everything.
	None Policy = "none"
	// BestEffort merges, and admits every result.
	BestEffort Policy = "best-effort"
	// Restricted admits only preferred results.
	Restricted Policy = "restricted"
	// SingleNUMANode admits only preferred results on one node.
	SingleNUMANode Policy = "single-numa-node"
)

// NoScope is the scope of a manager whose policy is None.
const NoScope hint.Scope = "none"

// Planning is the order in which the containers of a pod are planned.
type Planning string

const (
	// ByContainer plans in the pod's order, as the kubelet does. An init container then decides on which NUMA nodes the app is.
	ByContainer Planning = "container"
	// ByPod plans the containers that run for the pod's life first. Init containers then run on what these have.
	ByPod Planning = "pod"
)

// The policy options, with the values that the kubelet accepts (KEP-3545, KEP-4622).
const (
	// OptionPreferClosest compares sets of equal size by distance. Its value is a boolean.
	OptionPreferClosest = "prefer-closest-numa-nodes"
	// OptionMaxNodes is the largest number of nodes that a machine may have. Its value is
	// an integer of at least ReferenceMaxNodes.
	OptionMaxNodes = "max-allowable-numa-nodes"
)

// ReferenceMaxNodes is the kubelet's limit of NUMA nodes, unless OptionMaxNodes raises it.
const ReferenceMaxNodes = 8

// Config is the operator's choice. The zero value is not valid; the kubelet's defaults are
// None and hint.ContainerScope.
type Config struct {
	Policy Policy
	Scope  hint.Scope
	// Planning is ByContainer if it is empty. It also holds under the policy None.
	Planning Planning
	// Options have the kubelet's names and values.
	Options map[string]string
	// MaxNodes is the largest number of nodes that a machine may have if OptionMaxNodes is
	// absent; 0 means numa.MaxNodes, the limit of a merge. For a kubelet's own
	// configuration it is ReferenceMaxNodes, so that berth refuses the machines that the
	// kubelet refuses.
	MaxNodes int
}

// Manager merges hints under one configuration on one machine. It is immutable, so
// goroutines may share it.
type Manager struct {
	policy Policy
	scope  hint.Scope
	// byPod is Planning ByPod.
	byPod bool
	// closest has no effect under single-numa-node, because sets of one node are compared
	// by id.
	closest bool
	nodes   numa.Mask
	// distances are used only if closest is set.
	distances numa.Distances
	// exact is the number of nodes up to which every merge is exact.
	exact int
}

// New checks a configuration against a machine, in the kubelet's order. With policy None it
// checks nothing else. Otherwise it checks the options, the distances if they are needed,
// the number of nodes, policy and scope. Errors are of class Invalid and have the kubelet's
// words. If several options are bad, New reports the first by name; the kubelet reports a
// random one.
func New(c Config, nodes numa.Mask, distances numa.Distances) (*Manager, error) {
	if c.Planning != "" && c.Planning != ByContainer && c.Planning != ByPod {
		return nil, errdefs.Invalidf("unknown planning: %q; expected %s or %s", c.Planning, ByPod, ByContainer)
	}
	byPod := c.Planning == ByPod
	if c.Policy == None {
		return &Manager{policy: None, scope: NoScope, byPod: byPod, nodes: nodes}, nil
	}
	closest, limit, err := c.options()
	if err != nil {
		return nil, err
	}
	if closest && !distances.Has(nodes) {
		return nil, errdefs.Invalidf("cannot discover NUMA topology: error getting NUMA distances from cadvisor")
	}
	if nodes.Len() > limit {
		return nil, errdefs.Invalidf("unsupported on machines with more than %d NUMA Nodes", limit)
	}
	if c.Policy != BestEffort && c.Policy != Restricted && c.Policy != SingleNUMANode {
		return nil, errdefs.Invalidf("unknown policy: %q", c.Policy)
	}
	if c.Scope != hint.ContainerScope && c.Scope != hint.PodScope {
		return nil, errdefs.Invalidf("unknown scope: %q", c.Scope)
	}
	return &Manager{policy: c.Policy, scope: c.Scope, byPod: byPod,
		closest: closest, nodes: nodes, distances: distances, exact: maxExact}, nil
}

// options parses the policy options.
func (c Config) options() (closest bool, limit int, err error) {
	if limit = c.MaxNodes; limit == 0 {
		limit = numa.MaxNodes
	}
	for _, name := range slices.Sorted(maps.Keys(c.Options)) {
		value := c.Options[name]
		switch name {
		case OptionPreferClosest:
			if closest, err = strconv.ParseBool(value); err != nil {
				return false, 0, errdefs.Invalidf("bad value for option %q: %w", name, err)
			}
		case OptionMaxNodes:
			if limit, err = strconv.Atoi(value); err != nil {
				return false, 0, errdefs.Invalidf("unable to convert policy option to integer %q: %w", name, err)
			}
			if limit < ReferenceMaxNodes {
				return false, 0, errdefs.Invalidf("the minimum value of %q should not be less than %d", name, ReferenceMaxNodes)
			}
		default:
			return false, 0, errdefs.Invalidf("unknown Topology Manager Policy option: %q; known are %s", name,
				strings.Join(OptionNames(), ", "))
		}
	}
	return closest, limit, nil
}

// OptionNames returns the options of the policies.
func OptionNames() []string { return []string{OptionPreferClosest, OptionMaxNodes} }

// Policy returns the policy in force.
func (m *Manager) Policy() Policy { return m.policy }

// Scope returns the scope in force, NoScope under policy None.
func (m *Manager) Scope() hint.Scope { return m.scope }

// Planning returns the planning in force.
func (m *Manager) Planning() Planning {
	if m.byPod {
		return ByPod
	}
	return ByContainer
}

// String names policy and scope, as in "restricted, pod scope".
func (m *Manager) String() string { return fmt.Sprintf("%s, %s scope", m.policy, m.scope) }

// Alternatives returns managers that differ in one setting and may admit a request that
// this one refuses. First comes the other scope, then looser policies, the strictest first.
// Policy None has no alternatives.
func (m *Manager) Alternatives() []*Manager {
	if m.policy == None {
		return nil
	}
	other := *m
	other.scope = hint.PodScope
	if m.scope == hint.PodScope {
		other.scope = hint.ContainerScope
	}
	list := []*Manager{&other}
	strict := []Policy{SingleNUMANode, Restricted, BestEffort}
	for _, policy := range strict[slices.Index(strict, m.policy)+1:] {
		looser := *m
		looser.policy = policy
		list = append(list, &looser)
	}
	return append(list, &Manager{policy: None, scope: NoScope, byPod: m.byPod, nodes: m.nodes})
}
