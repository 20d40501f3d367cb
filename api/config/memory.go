package config

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	kubelet "k8s.io/kubelet/config/v1beta1"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/node"
	"github.com/berthd/berth/managers/workload"
)

// Memory is the memory manager's policy.
type Memory struct {
	// Policy is None or Static.
	Policy string `json:"policy"`
	// Reserved is the reserved memory of each NUMA node, and its reserved huge pages. With the
	// policy Static the memory must add up to the whole reservation: that of reserved.system,
	// reserved.kube and reserved.evictionHard. Huge pages are reserved only here, under every
	// policy.
	Reserved []ReservedMemory `json:"reserved,omitempty"`
	// AllowUnreserved lets the policy Static run without any reserved memory,
	// where the system is kept off the pods' memory by other means.
	AllowUnreserved bool `json:"allowUnreserved,omitempty"`
	// DisjointNUMAGroups widens the nodes of a container if its node is one of several that other
	// containers use together. The kubelet lets both use the node.
	DisjointNUMAGroups bool `json:"disjointNUMAGroups,omitempty"`
	// CheckFreeHugePages compares a pod's huge pages with the kernel's free ones at its admission:
	// ignore, defer, which requires verdicts.deferred, or reject. Pages that others use are
	// counted from time to time in any case.
	CheckFreeHugePages string `json:"checkFreeHugePages"`
}

// ReservedMemory is the reservation on one NUMA node: Kubernetes quantities of memory and huge
// pages.
type ReservedMemory struct {
	NUMANode int32             `json:"numaNode"`
	Limits   map[string]string `json:"limits"`
}

// What happens where the kernel has fewer free huge pages than a pod is promised.
const (
	PagesIgnore = "ignore"
	PagesDefer  = "defer"
	PagesReject = "reject"
)

// ParseReservedMemory reads the kubelet's form of Memory.Reserved on a command
// line: entries such as 0:memory=1Gi,hugepages-1Gi=2Gi with semicolons between
// them. Errors are of class Invalid; amounts are read by MemoryConfig.
func ParseReservedMemory(text string) ([]ReservedMemory, error) {
	var out []ReservedMemory
	for entry := range strings.SplitSeq(text, ";") {
		wrong := func() error {
			return errdefs.Invalidf("%q: expected numaNodeID:type=quantity[,type=quantity...]", entry)
		}
		id, list, ok := strings.Cut(entry, ":")
		node, err := strconv.ParseInt(id, 10, 32)
		if !ok || err != nil {
			return nil, wrong()
		}
		r := ReservedMemory{NUMANode: int32(node), Limits: map[string]string{}}
		for limit := range strings.SplitSeq(list, ",") {
			name, quantity, ok := strings.Cut(limit, "=")
			if _, twice := r.Limits[name]; !ok || twice {
				return nil, wrong()
			}
			r.Limits[name] = quantity
		}
		out = append(out, r)
	}
	return out, nil
}

// takeMemory takes the memory manager's fields of a kubelet's file.
func (c *Config) takeMemory(k *kubelet.KubeletConfiguration) {
	take(&c.Memory.Policy, k.MemoryManagerPolicy)
	if k.ReservedMemory == nil {
		return
	}
	c.Memory.Reserved = nil
	for _, r := range k.ReservedMemory {
		limits := map[string]string{}
		for name, q := range r.Limits {
			if !workload.Resource(name).IsHugePages() {
				limits[string(name)] = q.String()
			}
		}
		c.Memory.Reserved = append(c.Memory.Reserved, ReservedMemory{NUMANode: r.NumaNode, Limits: limits})
	}
}

// kubeletPages refuses huge pages in a kubelet's reservedMemory, as the kubelet does under the policy Static: they would have to add
// up to those of systemReserved and kubeReserved, which have none. Under the policy None they have no effect there.
func kubeletPages(path string, k *kubelet.KubeletConfiguration) error {
	if k.MemoryManagerPolicy != memory.PolicyStatic {
		return nil
	}
	for i, r := range k.ReservedMemory {
		for _, name := range slices.Sorted(maps.Keys(r.Limits)) {
			if workload.Resource(name).IsHugePages() {
				return errdefs.Invalidf("%s: reservedMemory[%d].limits[%q]: a kubelet does not start with it, because it must add up to systemReserved and kubeReserved, which cannot have huge pages: remove it, and reserve huge pages with memory.reserved of berth's own file, or --reserved-memory",
					path, i, name)
			}
		}
	}
	return nil
}

// validateMemory checks what needs no machine.
func (c Config) validateMemory(vs *errdefs.Violations, oneOf func(field, got string, allowed ...string)) {
	oneOf("memory.policy", c.Memory.Policy, memory.PolicyNone, memory.PolicyStatic)
	oneOf("memory.checkFreeHugePages", c.Memory.CheckFreeHugePages, PagesIgnore, PagesDefer, PagesReject)
	if c.Memory.CheckFreeHugePages == PagesDefer && !c.Verdicts.Deferred {
		vs.Addf("memory.checkFreeHugePages", "%s requires verdicts.deferred, which is off", PagesDefer)
	}
	if _, err := c.reservedMemory(); err != nil {
		include(vs, "memory.reserved", err)
	}
}

// reservedMemory parses Memory.Reserved. Each amount is the difference that it makes to its
// resource's rounded sum, so that fractions of bytes add up as in the reservations of the whole
// node.
func (c Config) reservedMemory() ([]memory.Reservation, error) {
	var out []memory.Reservation
	var vs errdefs.Violations
	sums := map[workload.Resource]workload.Exact{}
	for i, r := range c.Memory.Reserved {
		for _, name := range slices.Sorted(maps.Keys(r.Limits)) {
			resource := workload.Resource(name)
			bytes, err := amount(resource, r.Limits[name])
			if err == nil && resource.IsHugePages() {
				err = wholePages(resource, bytes)
			}
			if err != nil {
				vs.Addf(reservedField(i, name), "%v", err)
			}
			sum := sums[resource].Plus(bytes)
			out = append(out, memory.Reservation{Node: int(r.NUMANode), Resource: resource,
				Bytes: uint64(max(sum.Whole-sums[resource].Whole, 0))})
			sums[resource] = sum
		}
	}
	return out, vs.Err("configuration")
}

func reservedField(i int, resource string) string {
	return fmt.Sprintf("memory.reserved[%d].limits[%q]", i, resource)
}

// wholePages refuses an amount of huge pages that is not a number of pages.
func wholePages(r workload.Resource, bytes workload.Exact) error {
	size, err := workload.HugePageSize(r)
	if err == nil && (bytes.Excess != 0 || bytes.Whole%size != 0) {
		err = errdefs.Invalidf("expected a whole number of pages of %s", workload.Memory.Text(size))
	}
	return err
}

// reservedPages are the reserved huge pages of all NUMA nodes. A kubelet has none: it refuses memory.reserved with them, and so
// does the memory manager with features.asKubelet, because no reservation of the whole node has huge pages. Amounts that cannot be
// read are errors of reservedMemory for the memory manager.
func (c Config) reservedPages() workload.Quantities {
	if c.Features.AsKubelet {
		return nil
	}
	list, _ := c.reservedMemory()
	out := workload.Quantities{}
	for _, r := range list {
		if r.Resource.IsHugePages() {
			out[r.Resource] = workload.Sum(out[r.Resource], int64(min(r.Bytes, math.MaxInt64)))
		}
	}
	return out
}

// SystemPages are the huge pages that only the system may use, in bytes by NUMA node: the reserved ones without those of resource claims.
func (c Config) SystemPages() map[int]map[workload.Resource]uint64 {
	out := map[int]map[workload.Resource]uint64{}
	list, _ := c.reservedMemory()
	for _, r := range list {
		if out[r.Node] == nil {
			out[r.Node] = map[workload.Resource]uint64{}
		}
		out[r.Node][r.Resource] += r.Bytes
	}
	if claims, err := c.claims(); err == nil && claims != nil {
		for node, amounts := range claims.Memory {
			for r, bytes := range amounts {
				if has := out[node][r]; has > 0 {
					out[node][r] = has - min(has, bytes)
				}
			}
		}
	}
	return out
}

// CheckReservedPages refuses reserved huge pages that a machine does not have, with class Invalid. A machine that loses some while
// berthd runs has none for pods, so this is only checked when a configuration comes into force.
func (c Config) CheckReservedPages(m *machine.Topology) error {
	var vs errdefs.Violations
	for i, r := range c.Memory.Reserved {
		for _, name := range slices.Sorted(maps.Keys(r.Limits)) {
			resource := workload.Resource(name)
			bytes, err := amount(resource, r.Limits[name])
			if c.Features.AsKubelet || err != nil || !resource.IsHugePages() {
				continue // refused by Validate, or compared by the managers
			}
			n, ok := m.Node(int(r.NUMANode))
			if !ok {
				vs.Addf(reservedField(i, name), "NUMA node %d does not exist on this machine, which has nodes %s", r.NUMANode, m.NodeMask())
				continue
			}
			var has int64
			for _, p := range n.HugePages {
				if workload.HugePagesOf(int64(p.SizeKiB<<10)) == resource {
					has = int64(p.Count * p.SizeKiB << 10)
				}
			}
			if bytes.Whole > has {
				vs.Addf(reservedField(i, name),
					"%s are reserved, and NUMA node %d has %s of huge pages of this size: reserve less, or let the kernel set more aside before berthd starts (hugepages= of its command line, or nr_hugepages of the node)",
					resource.Text(bytes.Whole), r.NUMANode, resource.Text(has))
			}
		}
	}
	return vs.Err("configuration")
}

// MemoryConfig is the memory manager's part on a machine, without its port. Errors
// are of class Invalid.
func (c Config) MemoryConfig(m *machine.Topology) (memory.Config, error) {
	out := memory.Config{
		Policy: c.Memory.Policy, AllowUnreserved: c.Memory.AllowUnreserved, DisjointNUMAGroups: c.Memory.DisjointNUMAGroups,
		Features:     c.WorkloadFeatures(),
		ResizePinned: c.Features.ExclusiveMemoryResize, AsKubelet: c.Features.AsKubelet,
	}
	var err error
	if out.Reserved, err = c.reservedMemory(); err != nil {
		return out, err
	}
	cfg, err := c.nodeOn(m)
	if err != nil {
		return out, err
	}
	cfg.ReservedCPUs = cfg.ReservedCPUs.Intersect(m.CPUs()) // the managers of CPUs and of the node check the list
	whole, err := node.New(cfg, node.Facts{Machine: m})
	if err != nil {
		return out, err
	}
	system, agents, eviction := whole.Parts()
	out.SystemReserved, out.KubeReserved, out.HardEviction = inBytes(system), inBytes(agents), inBytes(eviction)
	return out, nil
}

// inBytes returns the memory resources.
func inBytes(amounts workload.Quantities) map[workload.Resource]uint64 {
	out := map[workload.Resource]uint64{}
	for r, n := range amounts {
		if r == workload.Memory || r.IsHugePages() {
			out[r] = uint64(n)
		}
	}
	return out
}
