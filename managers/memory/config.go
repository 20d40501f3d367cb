package memory

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// The policies, as the kubelet's memoryManagerPolicy names them.
const (
	// PolicyNone pins nothing and has no opinion on nodes.
	PolicyNone = "None"
	// PolicyStatic gives memory of certain nodes to Guaranteed pods.
	PolicyStatic = "Static"
	// policyBestEffort is for Windows, which berth does not run on.
	policyBestEffort = "BestEffort"
)

// Config configures the manager.
type Config struct {
	// Policy is PolicyNone, PolicyStatic, or empty for none.
	Policy string
	// Reserved are the amounts of each node that are kept for the system (reservedMemory).
	Reserved []Reservation
	// SystemReserved, KubeReserved and HardEviction are the node's reservations in
	// bytes by resource: systemReserved, kubeReserved and evictionHard, the last
	// with its percentages worked out. Under the static policy Reserved must add
	// up to exactly their sum, resource by resource. Other resources than memory
	// and huge pages are ignored.
	SystemReserved, KubeReserved, HardEviction map[workload.Resource]uint64
	// AllowUnreserved lets the static policy run without any reserved memory,
	// where the system is kept off the pods' memory by other means.
	AllowUnreserved bool
	// DisjointNUMAGroups keeps a container that is placed on one node off the nodes of a
	// group, and widens its node set to the group instead. The kubelet lets it in,
	// and then the node belongs to two groups (kubernetes#113035).
	DisjointNUMAGroups bool
	Features           workload.Features
	// ResizePinned lets a resize in place change pinned memory (KEP-5554).
	ResizePinned bool
	// AsKubelet decides exactly as the kubelet does, also where berth's decision is better: row N14 of
	// docs/deviations.md.
	AsKubelet bool
}

// Reservation is an amount of a resource that is kept for the system on a node.
type Reservation struct {
	Node     int
	Resource workload.Resource
	Bytes    uint64
}

const invalidObject = "the configuration of the memory manager"

// New checks the configuration against the machine and builds the manager. All
// errors are of class Invalid and name the fields of the kubelet's
// configuration: an unknown policy; a reservation of anything but memory and
// huge pages, of nothing, twice for a node and resource, or on a node that the
// machine lacks; under the static policy, reservations that do not add up to the
// node's (the error shows both sums), and no reservation of memory at all.
func New(cfg Config, topo *machine.Topology) (*Manager, error) {
	var bad errdefs.Violations
	switch cfg.Policy {
	case "":
		cfg.Policy = PolicyNone
	case PolicyNone, PolicyStatic:
	case policyBestEffort:
		bad.Addf("memoryManagerPolicy", "policy %q is for Windows only; expected %s or %s", cfg.Policy, PolicyNone, PolicyStatic)
	default:
		bad.Addf("memoryManagerPolicy", "unknown policy %q; expected %s or %s", cfg.Policy, PolicyNone, PolicyStatic)
	}
	checkEntries(cfg.Reserved, &bad)
	if cfg.Policy == PolicyStatic && len(bad) == 0 {
		checkNodes(cfg.Reserved, topo.NodeMask(), &bad)
		if len(bad) == 0 {
			cfg.checkSums(&bad)
		}
	}
	if err := bad.Err(invalidObject); err != nil {
		return nil, err
	}
	m := &Manager{policy: cfg.Policy, apart: cfg.DisjointNUMAGroups, features: cfg.Features, resizes: cfg.ResizePinned,
		asKubelet: cfg.AsKubelet, nodes: topo.NodeMask()}
	if m.policy == PolicyStatic {
		m.measure(topo, cfg.Reserved)
	}
	return m, nil
}

// checkEntries checks each entry by itself, under every policy.
func checkEntries(reserved []Reservation, bad *errdefs.Violations) {
	type place struct {
		node     int
		resource workload.Resource
	}
	seen := map[place]bool{}
	for i, r := range reserved {
		field := fmt.Sprintf("reservedMemory[%d]", i)
		at := place{r.Node, r.Resource}
		switch {
		case !isMemory(r.Resource):
			bad.Addf(field, "%q of NUMA node %d cannot be reserved, only memory and hugepages-<size> can", r.Resource, r.Node)
		case r.Bytes == 0:
			bad.Addf(field, "the reservation of %s on NUMA node %d may not be zero", r.Resource, r.Node)
		case seen[at]:
			bad.Addf(field, "%s of NUMA node %d is reserved twice", r.Resource, r.Node)
		}
		seen[at] = true
	}
}

func checkNodes(reserved []Reservation, nodes numa.Mask, bad *errdefs.Violations) {
	for i, r := range reserved {
		if !nodes.Contains(r.Node) {
			bad.Addf(fmt.Sprintf("reservedMemory[%d]", i), "NUMA node %d does not exist on this machine, which has nodes %s", r.Node, nodes)
		}
	}
}

// checkSums holds the reservations by node against those of the whole machine.
func (cfg *Config) checkSums(bad *errdefs.Violations) {
	resources := map[workload.Resource]bool{}
	for _, r := range cfg.Reserved {
		resources[r.Resource] = true
	}
	for _, whole := range cfg.ofAll() {
		for r, bytes := range whole.bytes {
			if bytes > 0 && isMemory(r) {
				resources[r] = true
			}
		}
	}
	for _, r := range slices.Sorted(maps.Keys(resources)) {
		left, leftText := cfg.byNode(r)
		right, rightText := cfg.ofMachine(r)
		if left != right {
			bad.Addf("reservedMemory", "the reservations of %s by NUMA node are not equal to those of the machine: %s, but %s", r,
				leftText, rightText)
		}
	}
	if memory, _ := cfg.byNode(workload.Memory); memory == 0 && len(*bad) == 0 && !cfg.AllowUnreserved {
		bad.Addf("reservedMemory",
			"the policy %s needs memory to be reserved for the system: on some NUMA node, and the same amount in systemReserved, kubeReserved or evictionHard", PolicyStatic)
	}
}

// byNode adds up what is reserved of a resource node by node, and shows the sum.
func (cfg *Config) byNode(r workload.Resource) (uint64, string) {
	var sum uint64
	var terms []string
	for _, e := range cfg.Reserved {
		if e.Resource == r {
			sum += e.Bytes
			terms = append(terms, fmt.Sprintf("node %d: %s", e.Node, quantity(e.Bytes)))
		}
	}
	return sum, equation(terms, sum)
}

// reservations are one of the node's reservations.
type reservations struct {
	name  string
	bytes map[workload.Resource]uint64
}

func (cfg *Config) ofAll() []reservations {
	return []reservations{
		{"systemReserved", cfg.SystemReserved},
		{"kubeReserved", cfg.KubeReserved},
		{"evictionHard", cfg.HardEviction},
	}
}

// ofMachine adds up what is reserved of a resource as a whole, and shows the sum.
func (cfg *Config) ofMachine(r workload.Resource) (uint64, string) {
	var sum uint64
	var terms []string
	for _, w := range cfg.ofAll() {
		if bytes := w.bytes[r]; bytes > 0 {
			sum += bytes
			terms = append(terms, w.name+": "+quantity(bytes))
		}
	}
	return sum, equation(terms, sum)
}

func equation(terms []string, sum uint64) string {
	if len(terms) == 0 {
		return "nothing = 0"
	}
	return strings.Join(terms, " + ") + " = " + quantity(sum)
}
