package node

import (
	"fmt"
	"maps"
	"strings"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/workload"
)

// Resources of the node that no container can request.
const (
	// PIDs is the number of processes.
	PIDs workload.Resource = "pid"
	// Pods is the number of pods.
	Pods workload.Resource = "pods"
)

// Facts describe what the node is made of.
type Facts struct {
	Machine *machine.Topology
	// MaxPIDs is how many processes the kernel can have: the smaller one of
	// kernel.pid_max and kernel.threads-max; 0 if unknown.
	MaxPIDs int64
	// StorageBytes is the size of the file system that ephemeral storage comes
	// from; 0 if that is not counted.
	StorageBytes int64
}

// Config of the node. The names in comments are those of a KubeletConfiguration.
type Config struct {
	Features workload.Features
	// SystemReserved and KubeReserved keep amounts of cpu, memory,
	// ephemeral-storage and pid.
	SystemReserved, KubeReserved workload.Quantities
	// SystemExcess and KubeExcess are the amounts by which these were rounded up, as
	// workload.Excess does: the kubelet adds and subtracts exact quantities and
	// rounds what comes out.
	SystemExcess, KubeExcess workload.Quantities
	// ReservedPages are the huge pages that are reserved of NUMA nodes. Pods do not get them, and they count as the system's. A
	// KubeletConfiguration cannot reserve any.
	ReservedPages workload.Quantities
	// ReservedCPUs is reservedSystemCPUs: the number of those online, which the capacity
	// counts, stands in place of the cpu amounts.
	ReservedCPUs cpuset.Set
	// ReservedByDefault means that no one has configured ReservedCPUs: there is no reservation of CPUs, and the managers need one.
	ReservedByDefault bool
	// EvictionHard are evictionHard's thresholds; see ParseEviction.
	EvictionHard Thresholds
	// Enforce is enforceNodeAllocatable.
	Enforce Enforcement
	// SystemReservedCgroup and KubeReservedCgroup name the reserved cgroups as the
	// cgroup driver writes them.
	SystemReservedCgroup, KubeReservedCgroup string
	// NoPodCgroups is cgroupsPerQOS, switched off: pods have no cgroups that could be
	// limited together.
	NoPodCgroups bool
	// MaxPods and PodsPerCore are the fields of these names; 0 is no bound.
	MaxPods, PodsPerCore int64
	// AllCPUs writes the machine's CPUs into the cgroups, which keeps systemd from
	// taking the cpuset controller from them. The kubelet does so under the CPU
	// policy none, where no other component writes cpusets.
	AllCPUs bool
	// MemoryQoS is the feature gate of that name.
	MemoryQoS bool
}

// Manager has the node's amounts. It never changes.
type Manager struct {
	cfg      Config
	machine  *machine.Topology
	capacity workload.Quantities // without pods
	pods     int64
	// allocatable is the result of Allocatable, computed once: every admission needs it.
	allocatable workload.Quantities
}

const invalidObject = "the configuration of the node"

// Validate checks what does not depend on the node. All errors are of class
// Invalid and name the fields of a KubeletConfiguration: reserved amounts that are
// negative or of a resource that cannot be reserved, and enforcement keys that
// contradict each other or lack the name of their cgroup.
func (cfg Config) Validate() error { return cfg.check().Err(invalidObject) }

func (cfg Config) check() (bad errdefs.Violations) {
	checkReserved("systemReserved", cfg.SystemReserved, &bad)
	checkReserved("kubeReserved", cfg.KubeReserved, &bad)
	if !cfg.ReservedCPUs.IsEmpty() && !cfg.ReservedByDefault && (cfg.SystemReservedCgroup != "" || cfg.KubeReservedCgroup != "") {
		bad.Addf("reservedSystemCPUs", "cannot be used with systemReservedCgroup or kubeReservedCgroup")
	}
	cfg.Enforce.check(cfg, &bad)
	if cfg.MaxPods < 0 {
		bad.Addf("maxPods", "is %d, expected 0 or more", cfg.MaxPods)
	}
	if cfg.PodsPerCore < 0 {
		bad.Addf("podsPerCore", "is %d, expected 0 or more", cfg.PodsPerCore)
	}
	return bad
}

// New checks the configuration, also against the node: reserved CPUs that the
// machine lacks and reservations that exceed the capacity are errors too, the
// latter with both sums. Huge pages are not compared, because a machine may lose
// them at any time; it has none for pods then.
func New(cfg Config, facts Facts) (*Manager, error) {
	bad := cfg.check()
	if !cfg.ReservedCPUs.IsEmpty() {
		all := facts.Machine.CPUs().Union(facts.Machine.Offline()) // an offline CPU may come back
		if alien := cfg.ReservedCPUs.Minus(all); !alien.IsEmpty() {
			bad.Addf("reservedSystemCPUs", "%s are not CPUs of this machine, which has %s", alien, all)
		}
		cfg.countReservedCPUs(facts.Machine.CPUs())
	}
	if len(cfg.ReservedPages) > 0 {
		cfg.SystemReserved = maps.Clone(cfg.SystemReserved)
		if cfg.SystemReserved == nil {
			cfg.SystemReserved = workload.Quantities{}
		}
		maps.Copy(cfg.SystemReserved, cfg.ReservedPages)
	}
	m := &Manager{cfg: cfg, machine: facts.Machine, capacity: capacity(facts), pods: cfg.podCapacity(facts.Machine)}
	if len(bad) == 0 {
		m.checkSums(&bad)
	}
	if err := bad.Err(invalidObject); err != nil {
		return nil, err
	}
	m.allocatable = m.withPods(m.unreserved())
	return m, nil
}

// checkReserved checks each amount by itself.
func checkReserved(field string, amounts workload.Quantities, bad *errdefs.Violations) {
	for r, amount := range amounts.Sorted() {
		at := fmt.Sprintf("%s[%q]", field, r)
		switch {
		case r.IsHugePages():
			bad.Addf(at, "cannot reserve %q resource, expected cpu, memory, ephemeral-storage or pid; huge pages are reserved by NUMA node, in memory.reserved of berth's configuration (--reserved-memory)", r)
		case r != workload.CPU && r != workload.Memory && r != workload.EphemeralStorage && r != PIDs:
			bad.Addf(at, "cannot reserve %q resource, expected cpu, memory, ephemeral-storage or pid", r)
		case amount < 0:
			bad.Addf(at, "is %s, expected no negative amount", r.Text(amount))
		}
	}
}

// countReservedCPUs lets the CPUs online of an explicit list stand in place of the cpu amounts.
func (cfg *Config) countReservedCPUs(online cpuset.Set) {
	for _, q := range []*workload.Quantities{&cfg.SystemReserved, &cfg.KubeReserved, &cfg.SystemExcess, &cfg.KubeExcess} {
		*q = maps.Clone(*q)
		delete(*q, workload.CPU)
	}
	if cfg.SystemReserved == nil {
		cfg.SystemReserved = workload.Quantities{}
	}
	cfg.SystemReserved[workload.CPU] = milliPerCPU * int64(cfg.ReservedCPUs.Intersect(online).Len())
}

// checkSums compares the reservations with the capacity. The kubelet leaves out
// the processes.
func (m *Manager) checkSums(bad *errdefs.Violations) {
	for r, have := range m.capacity.Sorted() {
		if r.IsHugePages() {
			continue
		}
		sum, terms := m.reserved(r).Whole, []string(nil)
		for _, part := range m.parts() {
			if amount := part.amounts[r]; amount > 0 {
				terms = append(terms, part.name+" "+r.Text(amount))
			}
		}
		if sum > have {
			bad.Addf(fmt.Sprintf("reservation[%q]", r),
				"invalid Node Allocatable configuration. Resource %q has a reservation of %s (%s) but capacity of %s. Expected capacity >= reservation.",
				r, r.Text(sum), strings.Join(terms, " + "), r.Text(have))
		}
	}
}

// Enforcement is a list of enforcement keys.
type Enforcement []string

// The enforcement keys.
const (
	EnforcePods               = "pods"
	EnforceSystem             = "system-reserved"
	EnforceKube               = "kube-reserved"
	EnforceSystemCompressible = "system-reserved-compressible"
	EnforceKubeCompressible   = "kube-reserved-compressible"
	EnforceNone               = "none"
)

var enforcementKeys = []string{
	EnforcePods, EnforceSystem, EnforceKube, EnforceSystemCompressible, EnforceKubeCompressible, EnforceNone,
}

// Has reports whether a key is in the list.
func (e Enforcement) Has(key string) bool {
	for _, k := range e {
		if k == key {
			return true
		}
	}
	return false
}

// check finds keys that are unknown, contradict each other, or lack what they
// need.
func (e Enforcement) check(cfg Config, bad *errdefs.Violations) {
	const field = "enforceNodeAllocatable"
	seen := map[string]bool{}
	for _, key := range e {
		switch {
		case !Enforcement(enforcementKeys).Has(key):
			bad.Addf(field, "%q is unknown, expected any of %s", key, strings.Join(enforcementKeys, ", "))
		case seen[key]:
			bad.Addf(field, "%q is listed twice", key)
		case key == EnforceNone && len(e) > 1:
			bad.Addf(field, "%q cannot be combined with other keys", key)
		}
		seen[key] = true
		if cfg.NoPodCgroups && key != EnforceNone {
			bad.Addf(field, "%q needs cgroupsPerQOS to be true: without cgroups of pods there is nothing to enforce; expected no key, or %s", key, EnforceNone)
		}
	}
	for _, family := range []struct{ plain, compressible, cgroup, name string }{
		{EnforceSystem, EnforceSystemCompressible, cfg.SystemReservedCgroup, "systemReservedCgroup"},
		{EnforceKube, EnforceKubeCompressible, cfg.KubeReservedCgroup, "kubeReservedCgroup"},
	} {
		if seen[family.plain] && seen[family.compressible] {
			bad.Addf(field, "%q and %q cannot be combined", family.plain, family.compressible)
		}
		if (seen[family.plain] || seen[family.compressible]) && family.cgroup == "" {
			bad.Addf(family.name, "is required by %q in %s", family.plain, field)
		}
	}
}

// checkCgroup returns an error of class Invalid unless the name of a reserved cgroup can
// be reached: under systemd only slices can.
func checkCgroup(literal string, driver cgroup.Driver) error {
	if driver == cgroup.Systemd && !cgroup.IsSystemdStyle(literal) {
		return errdefs.Invalidf("cgroup %q is no slice: the systemd driver can reach no other", literal)
	}
	return driver.Parse(literal).Check()
}
