package cpu

import (
	"maps"
	"strconv"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/workload"
)

// The policies, as the kubelet's cpuManagerPolicy names them.
const (
	// PolicyNone gives no exclusive CPUs and no hints.
	PolicyNone = "none"
	// PolicyStatic gives CPUs to containers of Guaranteed pods that request a
	// whole number of them.
	PolicyStatic = "static"
)

// singleNUMANode is the topology policy that rules align-by-socket out.
const singleNUMANode = "single-numa-node"

// Config configures the manager.
type Config struct {
	// Policy is PolicyNone, PolicyStatic, or empty for none.
	Policy string
	// Options of the static policy by name, with their values as written
	// ("true", "false"). The policy none takes no options.
	Options map[string]string
	// ReservedCPUs is the explicit list (reservedSystemCPUs); empty where only a
	// number is given.
	ReservedCPUs cpuset.Set
	// ReservedMilliCPU is what system and node agents are given together
	// (systemReserved and kubeReserved), rounded up to whole CPUs. 0 means the
	// size of the explicit list; the static policy insists on more than zero.
	ReservedMilliCPU int64
	// AlsoReserved are CPUs that are reserved in addition to the list or the amount, such as those that
	// the kernel isolates. CPUs that the machine lacks are ignored.
	AlsoReserved cpuset.Set
	// KeptReserved are the CPUs that were reserved by the same configuration on an earlier state
	// of this machine. As long as one of them is online, all of them stay reserved, also those
	// that the machine does not have now, and only CPUs that are lacking to ReservedMilliCPU are
	// added. CPUs of ReservedCPUs among them may be gone from the machine.
	KeptReserved cpuset.Set
	// AllowUnreserved lets the static policy run without any reserved CPU, where
	// the system is kept off the pods' CPUs by other means.
	AllowUnreserved bool
	// TopologyPolicy is the topology manager's policy, which some options do not
	// go with.
	TopologyPolicy string
	Features       Features
	// AsKubelet chooses CPUs exactly as the kubelet does, also where berth's choice is better: rows
	// C19, C20 and C21 of docs/deviations.md.
	AsKubelet bool
}

// Features selects what the kubelet puts behind feature gates. In Kubernetes
// 1.37 BetaOptions and PodLevelResources are on, the others off.
type Features struct {
	// AlphaOptions and BetaOptions allow the options of these levels.
	AlphaOptions, BetaOptions bool
	workload.Features
	// ResizeExclusiveCPUs lets a resize in place change the number of exclusive CPUs (KEP-5554).
	ResizeExclusiveCPUs bool
}

// New checks the configuration against the machine and builds the manager. All
// errors are of class Invalid and name the fields of the kubelet's
// configuration: an unknown policy; an unknown option, a value that is no
// boolean, an option of a level that is not enabled, options that exclude each
// other or do not suit the machine; no reservation, an explicit list with CPUs
// that the machine lacks or of another size than the reservation, a reservation
// larger than the machine.
func New(cfg Config, topo *machine.Topology) (*Manager, error) {
	var bad errdefs.Violations
	m := &Manager{table: newTable(topo), features: cfg.Features, given: maps.Clone(cfg.Options), withheld: notForPods,
		asKubelet: cfg.AsKubelet}
	switch cfg.Policy {
	case PolicyNone, "":
		m.policy = PolicyNone
		if len(cfg.Options) > 0 {
			bad.Addf("cpuManagerPolicyOptions", "the policy %s takes no options, got %v", PolicyNone, cfg.Options)
			return nil, bad.Err(invalidObject)
		}
		return m, nil
	case PolicyStatic:
		m.policy = PolicyStatic
	default:
		bad.Addf("cpuManagerPolicy", "expected %s or %s, got %q", PolicyNone, PolicyStatic, cfg.Policy)
		return nil, bad.Err(invalidObject)
	}
	m.options = parseOptions(cfg.Options, cfg.Features, &bad)
	m.options.check(cfg.TopologyPolicy, topo, &bad)
	if err := bad.Err(invalidObject); err != nil {
		return nil, err
	}
	m.reserve(cfg, &bad)
	if err := bad.Err(invalidObject); err != nil {
		return nil, err
	}
	return m, nil
}

const invalidObject = "the configuration of the CPU manager"

// reserve finds the reserved CPUs: the explicit list, or those that the
// configured algorithm takes first.
func (m *Manager) reserve(cfg Config, bad *errdefs.Violations) {
	all := m.topo.CPUs()
	count := wholeCPUs(cfg.ReservedMilliCPU)
	if cfg.ReservedMilliCPU == 0 {
		count = cfg.ReservedCPUs.Len()
	}
	present := all.Union(m.topo.Offline()) // an offline CPU may come back
	kept := cfg.KeptReserved
	known := present.Union(kept)
	if !kept.Overlaps(all) {
		kept = cpuset.Set{}
	}
	m.reserved = cfg.ReservedCPUs.Union(kept)
	switch {
	case count < 0 || count == 0 && !cfg.AllowUnreserved:
		bad.Addf("kubeReserved",
			"the static policy needs reserved CPUs: --reserved-cpus (reservedSystemCPUs) names them, systemReserved.cpu and kubeReserved.cpu reserve an amount, and --reserve-one-if-none (reserved.oneIfNone) one core")
	case !cfg.ReservedCPUs.IsSubsetOf(known):
		bad.Addf("reservedSystemCPUs", "the machine has no CPUs %q; its CPUs are %s", cfg.ReservedCPUs.Minus(known), all)
	case !cfg.ReservedCPUs.IsEmpty() && cfg.ReservedCPUs.Len() != count:
		bad.Addf("reservedSystemCPUs", "expected %d CPUs as reserved for the system, got the %d of %s", count, cfg.ReservedCPUs.Len(),
			cfg.ReservedCPUs)
	case m.reserved.IsEmpty() && count > all.Len():
		bad.Addf("kubeReserved", "cannot reserve %d CPUs: the machine has %d", count, all.Len())
	case m.reserved.Len() < count:
		free := all.Minus(m.reserved)
		// A node that changes from the kubelet to berth keeps its reserved CPUs.
		kubelet := *m
		kubelet.asKubelet = true
		set, err := kubelet.choose(free, min(count-m.reserved.Len(), free.Len()))
		if err != nil {
			bad.Addf("kubeReserved", "reserve %s CPUs: %v", strconv.Itoa(count), err)
			return
		}
		m.reserved = m.reserved.Union(set)
	}
	m.reserved = m.reserved.Union(cfg.AlsoReserved.Intersect(present))
	m.allocatable = all.Minus(m.reserved)
	m.physical = all.Minus(m.part[core].Cover(m.reserved.Intersect(all)))
}

// wholeCPUs rounds thousandths of CPUs up.
func wholeCPUs(milli int64) int { return int((milli + 999) / 1000) }
