package policy

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/protocol"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/nri/abilities"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// claims gives containers the CPUs and memory nodes of the claims that berth-dra has prepared for them.
type claims struct {
	*common
	runtime *abilities.Runtime
	devices *devices
	files   func(known func(uid string) bool) (cpuset.Set, error) // Config.Prepared
	logged  string                                                // the problem with these files that is in the log
}

// errUnprepared is the error of a container whose claim is not in berthd's ledger, as after the loss of
// the ledger. The container keeps its CPUs.
var errUnprepared = fmt.Errorf("the claim that the container uses is not in berthd's ledger; berth-dra prepares it again: %w",
	errUnspecified)

// Variables of a container that uses claims. The CDI devices have a part each; these are of all parts.
const (
	claimCPUsVariable  = "BERTH_CPUS"
	claimNodesVariable = "BERTH_NUMA_NODES"
)

// isClaim reports whether a device is a part of a claim of berth-dra.
func isClaim(d *typesv1.ExternalDevice) bool { return d.GetResource() == protocol.ClaimResource }

// checkRuntime refuses a container that uses a claim, as the kubelet reports, if the runtime sends no CDI devices. If the kubelet
// cannot be called either, each container with claims is refused on a node where claims on CPUs are prepared: it may use one of these.
func (c *claims) checkRuntime(ctx context.Context, m *member) error {
	if c.runtime.ReportsCDI || m.cdi || m.pod.spec != nil && !m.pod.dynamic && !requestsDevices(m.pod.spec) {
		return nil
	}
	if c.devices.source == nil {
		if cpus := c.prepared(func(string) bool { return false }); slices.Contains(m.pod.claiming, m.name) && !cpus.IsEmpty() {
			return errdefs.Unavailablef("the container uses claims, the runtime (%s) does not report to NRI plugins which ones, and --pod-resources is empty, "+
				"so it is not known whether CPUs %s of claims are the container's: containers with claims need containerd 2.3 or later",
				c.runtime.Name, cpus)
		}
		return nil
	}
	byContainer, err := c.devices.list(ctx, m.pod)
	if err == nil && slices.ContainsFunc(byContainer[m.name], isClaim) {
		err = errdefs.Unavailablef("the container uses a claim on CPUs, and the runtime (%s) does not report to NRI plugins which one: containers with claims need containerd 2.3 or later", c.runtime.Name)
	}
	return err
}

// use gives a member the CPUs and the memory nodes of the claims that it uses, in place of those of its
// pod, and returns all of them as one allocation; nil if it uses none. The caller has read the claims, and allocated the member's own
// part of the pod.
func (c *claims) use(ctx context.Context, m *member) (*typesv1.ContainerAllocation, error) {
	if len(m.parts) == 0 {
		return nil, c.checkRuntime(ctx, m)
	}
	if !m.own.IsEmpty() {
		return nil, errdefs.Unsupportedf("the container requests whole CPUs and uses a claim on CPUs: remove one of them")
	}
	var all []*typesv1.ContainerAllocation
	free := false
	for _, part := range m.parts {
		a, err := c.client.Allocate(ctx, part.uid, part.container)
		if err != nil {
			return nil, err
		}
		if !a.GetAllocation().GetExclusiveCpus() {
			return nil, errdefs.Internalf("request %s of claim %s has no exclusive CPUs", part.container, part.uid)
		}
		free = free || a.GetResources().GetCpuQuotaMicroseconds() < 0
		all = append(all, a.GetAllocation())
	}
	out := combined(all)
	own, err := cpuset.Parse(out.GetCpus().GetList())
	if err != nil {
		return nil, errdefs.Internalf("CPUs of the claims: %w", err)
	}
	m.claims, m.own, m.free = m.parts, own, free
	return out, nil
}

// read reads what the kubelet adds to a member's limits for the claims that it uses. errUnprepared means that a claim is not in
// berthd's ledger: berth-dra admits it again. With one pool, the kubelet adds the amounts of the whole claim, also if the container
// uses only one of its requests (DRANodeAllocatableResources, KEP-5517).
func (c *claims) read(ctx context.Context, m *member) error {
	m.added = nil
	if len(m.parts) == 0 {
		return nil
	}
	known, all := map[string]bool{}, map[workload.Resource]int64{}
	for _, part := range m.parts {
		if known[part.uid] {
			continue
		}
		known[part.uid] = true
		if err := readClaim(ctx, c.client, part.uid, all); err != nil {
			return err
		}
	}
	allocatable, err := c.client.Node().GetAllocatable(ctx, &nodev1.GetAllocatableRequest{})
	if err == nil && allocatable.GetResourceClaimsFromAllocatable() {
		m.added = all
	}
	return err
}

// readClaim adds the amounts of a claim to others, CPUs in milli-CPU. It is an error if the uid is that of a pod.
func readClaim(ctx context.Context, client *berth.Client, uid string, to map[workload.Resource]int64) error {
	known, err := client.Allocation().Get(ctx, &allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: uid}})
	switch {
	case berth.IsNotFound(err):
		return errUnprepared
	case err != nil:
		return err
	case known.GetPod().GetResourceClaimNodes() == nil:
		return errdefs.Internalf("the container has a CDI device of claim %.128q, which is no claim in berthd", uid)
	}
	for _, c := range known.GetPod().GetContainers() {
		for name, text := range c.GetResources().GetRequests() {
			q, err := resource.ParseQuantity(text)
			if err != nil {
				return errdefs.Internalf("%s of claim %s in berthd: %w", name, uid, err)
			}
			if r := workload.Resource(name); r == workload.CPU {
				to[r] += q.MilliValue()
			} else {
				to[r] += q.Value()
			}
		}
	}
	return nil
}

// prepared returns the CPUs of the prepared claims that known does not have.
func (c *claims) prepared(known func(uid string) bool) cpuset.Set {
	if c.files == nil {
		return cpuset.Set{}
	}
	cpus, err := c.files(known)
	text := ""
	if err != nil {
		text = fmt.Sprintf("%.2000v", err)
	}
	if text != "" && text != c.logged {
		c.log.Warn("files of prepared claims cannot be read: if berthd has lost these claims, other containers may run on their CPUs",
			"error", text)
	}
	c.logged = text
	return cpus
}

// combined returns the allocations of several parts as one with exclusive CPUs.
func combined(parts []*typesv1.ContainerAllocation) *typesv1.ContainerAllocation {
	out := &typesv1.ContainerAllocation{ExclusiveCpus: true}
	var lists []string
	for _, c := range parts {
		lists = append(lists, c.GetCpus().GetList())
		out.Claims = append(out.Claims, c.GetClaims()...)
	}
	out.Cpus = &typesv1.CPUSet{List: strings.Join(lists, ",")}
	return out
}

// replace replaces the CPUs and the memory nodes of a container's allocation by those of the claims that it
// uses.
func (c *claims) replace(ctx context.Context, m *member, a *allocationv1.AllocateResponse) error {
	claims, err := c.use(ctx, m)
	if err != nil || claims == nil {
		return err
	}
	if a.Resources == nil {
		a.Resources = &typesv1.LinuxResources{}
	}
	if a.Edits == nil {
		a.Edits = &typesv1.ContainerEdits{}
	}
	if a.Edits.Envs == nil {
		a.Edits.Envs = map[string]string{}
	}
	nodes := memoryNodesOf(claims)
	if counted := memoryNodesOf(a.GetAllocation()); !counted.IsSubsetOf(nodes) {
		m.claims, m.own, m.free = nil, cpuset.Set{}, false
		return errdefs.Unsupportedf("the container's claim is on NUMA nodes %s, and berthd has allocated the memory that it requests besides on NUMA nodes %s: "+
			"request less memory than the limit, or use a topology policy other than none in berthd", nodes, counted)
	}
	a.Resources.CpusetCpus, a.Resources.CpusetMems = &typesv1.CPUSet{List: m.own.String()}, convert.SomeNodes(nodes)
	a.Edits.Envs[claimCPUsVariable], a.Edits.Envs[claimNodesVariable] = m.own.String(), nodes.Commas()
	return nil
}

// memoryNodesOf returns the NUMA nodes of a container's memory; empty if it has no memory of certain nodes.
func memoryNodesOf(c *typesv1.ContainerAllocation) (nodes numa.Mask) {
	if now := convert.Nodes(c.GetMemoryNodes()); !now.IsEmpty() {
		return now // its pod moves, or nodes are gone
	}
	return claimedNodes(c)
}

// claimedNodes returns the NUMA nodes of all memory that berthd holds for a container.
func claimedNodes(c *typesv1.ContainerAllocation) (nodes numa.Mask) {
	for _, claim := range c.GetClaims() {
		for _, b := range claim.GetMemory().GetBlocks() {
			nodes = nodes.Union(convert.Nodes(b.GetNumaNodes()))
		}
	}
	return nodes
}
