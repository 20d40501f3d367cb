package policy

import (
	"context"
	"fmt"
	"strings"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/numa"
)

// ClaimResource is the resource of the devices with which a DeviceSource reports that a container uses a
// claim of berth-dra. The id is UID:PART. It is also the kind of the claims' CDI devices.
const ClaimResource = "dra.berthd.github.io/claim"

// Variables of a container that uses claims. The CDI devices have a part each; these are of all parts.
const (
	claimCPUsVariable  = "BERTH_CPUS"
	claimNodesVariable = "BERTH_NUMA_NODES"
)

// isClaim reports whether a device is a part of a claim of berth-dra.
func isClaim(d *typesv1.ExternalDevice) bool { return d.GetResource() == ClaimResource }

// claimPart is a part of a claim: a container of the claim in berthd.
type claimPart struct{ uid, container string }

// claimsOf returns the parts of claims of berth-dra that a container uses. Only the kubelet's answer counts,
// not names in the container's own fields: the kubelet prepares claims only for pods that reserve them.
func (p *Policy) claimsOf(ctx context.Context, m *member) (parts []claimPart, err error) {
	s := m.pod
	if p.Devices == nil || s.spec != nil && !s.dynamic {
		return nil, nil
	}
	byContainer, err := p.Devices.Devices(ctx, s.namespace, s.name)
	if err != nil {
		return nil, errdefs.Unavailablef("read the claims of pod %s/%s from the kubelet: %w", s.namespace, s.name, err)
	}
	for _, d := range byContainer[m.name] {
		if !isClaim(d) {
			continue
		}
		uid, container, _ := strings.Cut(d.GetId(), ":")
		parts = append(parts, claimPart{uid, container})
	}
	return parts, nil
}

// useClaims gives a member the CPUs and the memory nodes of the claims that it uses, in place of those of its
// pod, and returns all of them as one allocation; nil if it uses none. errUnprepared means that a claim is
// not in berthd's ledger: berth-dra admits it again. The caller has allocated the member's own part of the pod.
func (p *Policy) useClaims(ctx context.Context, m *member) (*typesv1.ContainerAllocation, error) {
	parts, err := p.claimsOf(ctx, m)
	if err != nil || len(parts) == 0 {
		m.claims = nil
		return nil, err
	}
	if !m.own.IsEmpty() {
		return nil, errdefs.Unsupportedf("the container requests whole CPUs and uses a claim on CPUs: remove one of them")
	}
	var all []*typesv1.ContainerAllocation
	free, known := false, map[string]bool{}
	for _, part := range parts {
		if !known[part.uid] {
			if err := p.knowsClaim(ctx, part.uid); err != nil {
				return nil, err
			}
			known[part.uid] = true
		}
		a, err := p.Client.Allocation().Allocate(ctx, &allocationv1.AllocateRequest{
			Subject: &allocationv1.AllocateRequest_PodUid{PodUid: part.uid}, ContainerName: part.container,
		})
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
	m.claims, m.own, m.free = parts, own, free
	return out, nil
}

// knowsClaim returns errUnprepared if a claim is not in berthd's ledger, and an error for the uid of a pod.
func (p *Policy) knowsClaim(ctx context.Context, uid string) error {
	known, err := p.Client.Allocation().Get(ctx, &allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: uid}})
	switch {
	case berth.IsNotFound(err):
		return errUnprepared
	case err != nil:
		return err
	case known.GetPod().GetResourceClaimNodes() == nil:
		return errdefs.Internalf("the kubelet says that the container uses claim %.128q, which is no claim in berthd", uid)
	}
	return nil
}

// lostClaims returns the CPUs of claims that are not in the ledger, as after its loss: berthd shares these CPUs until berth-dra
// has admitted the claims again. They are those of the files that berth-dra has written, whichever program was restarted, and
// those of containers that are known to use such a claim.
func (p *Policy) lostClaims(l listing) (cpus cpuset.Set) {
	for _, m := range p.live() {
		if len(m.claims) > 0 && l.place(m) == nil {
			cpus = cpus.Union(m.own)
		}
	}
	return cpus.Union(p.prepared(func(uid string) bool { return l.pods[uid] != nil }))
}

// prepared returns the CPUs of the prepared claims that known does not have.
func (p *Policy) prepared(known func(uid string) bool) cpuset.Set {
	if p.Prepared == nil {
		return cpuset.Set{}
	}
	cpus, err := p.Prepared(known)
	text := ""
	if err != nil {
		text = fmt.Sprintf("%.2000v", err)
	}
	if text != "" && text != p.unread {
		p.Log.Warn("files of prepared claims cannot be read: if berthd has lost these claims, other containers may run on their CPUs", "error", text)
	}
	p.unread = text
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

// withClaims replaces the CPUs and the memory nodes of a container's allocation by those of the claims that it
// uses.
func (p *Policy) withClaims(ctx context.Context, m *member, a *allocationv1.AllocateResponse) error {
	claims, err := p.useClaims(ctx, m)
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
	a.Resources.CpusetCpus, a.Resources.CpusetMems = &typesv1.CPUSet{List: m.own.String()}, convert.SomeNodes(nodes)
	a.Edits.Envs[claimCPUsVariable], a.Edits.Envs[claimNodesVariable] = m.own.String(), nodes.Commas()
	return nil
}

// memoryNodesOf returns the NUMA nodes of a container's memory; empty if it has no memory of certain nodes.
func memoryNodesOf(c *typesv1.ContainerAllocation) (nodes numa.Mask) {
	for _, claim := range c.GetClaims() {
		for _, b := range claim.GetMemory().GetBlocks() {
			nodes = nodes.Union(convert.Nodes(b.GetNumaNodes()))
		}
	}
	return nodes
}
