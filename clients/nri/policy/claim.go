package policy

import (
	"context"
	"slices"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/workload"
)

// ClaimResource is the resource of the devices with which a DeviceSource reports that a container uses a
// claim of berth-dra. The id is the claim's uid. It is also the kind of the claims' CDI devices.
const ClaimResource = "dra.berthd.github.io/claim"

// isClaim reports whether a device is a claim of berth-dra.
func isClaim(d *typesv1.ExternalDevice) bool { return d.GetResource() == ClaimResource }

// claimOf returns the uid of the claim of berth-dra that a container uses; empty if it uses none. Only
// the kubelet's answer counts, not names in the container's own fields.
func (p *Policy) claimOf(ctx context.Context, m *member) (string, error) {
	s := m.pod
	if p.Devices == nil || s.spec != nil && !s.dynamic {
		return "", nil
	}
	byContainer, err := p.Devices.Devices(ctx, s.namespace, s.name)
	if err != nil {
		return "", errdefs.Unavailablef("read the claims of pod %s/%s from the kubelet: %w", s.namespace, s.name, err)
	}
	claims := slices.DeleteFunc(slices.Clone(byContainer[m.name]), func(d *typesv1.ExternalDevice) bool { return !isClaim(d) })
	switch len(claims) {
	case 0:
		return "", nil
	case 1:
		return claims[0].GetId(), nil
	}
	return "", errdefs.Unsupportedf("the container uses %d claims on CPUs and memory; expected one", len(claims))
}

// useClaim gives a member the CPUs and the memory nodes of the claim that it uses, in place of those of its
// pod, and returns the claim's allocation; nil if it uses none. errUnspecified means that the claim is
// not in berthd's ledger: berth-dra admits it again. The caller has allocated the member's own part of the pod.
func (p *Policy) useClaim(ctx context.Context, m *member) (*allocationv1.AllocateResponse, error) {
	uid, err := p.claimOf(ctx, m)
	if err != nil || uid == "" {
		m.claim = ""
		return nil, err
	}
	if !m.own.IsEmpty() {
		return nil, errdefs.Unsupportedf("the container requests whole CPUs and uses a claim on CPUs: remove one of them")
	}
	for _, other := range p.members {
		if other != m && other.claim == uid && (other.pod.uid != m.pod.uid || other.name != m.name) && !other.stopped && p.may(other) {
			return nil, errdefs.Unsupportedf("container %s uses the same claim: claims that containers share are not supported; use a claim for each", other.title())
		}
	}
	known, err := p.Client.Allocation().Get(ctx, &allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: uid}})
	switch {
	case berth.IsNotFound(err):
		return nil, errUnprepared
	case err != nil:
		return nil, err
	case known.GetPod().GetResourceClaimNodes() == nil:
		return nil, errdefs.Internalf("the kubelet says that the container uses claim %.128q, which is no claim in berthd", uid)
	}
	a, err := p.Client.Allocation().Allocate(ctx, &allocationv1.AllocateRequest{
		Subject: &allocationv1.AllocateRequest_PodUid{PodUid: uid}, ContainerName: workload.ClaimContainer,
	})
	if err != nil {
		return nil, err
	}
	own, err := cpuset.Parse(a.GetResources().GetCpusetCpus().GetList())
	if err != nil || own.IsEmpty() || !a.GetAllocation().GetExclusiveCpus() {
		return nil, errdefs.Internalf("CPUs of claim %s: %q, %v", uid, a.GetResources().GetCpusetCpus().GetList(), err)
	}
	m.claim, m.own, m.free = uid, own, a.GetResources().GetCpuQuotaMicroseconds() < 0
	return a, nil
}

// withClaim replaces the CPUs and the memory nodes of a container's allocation by those of the claim that it
// uses.
func (p *Policy) withClaim(ctx context.Context, m *member, a *allocationv1.AllocateResponse) error {
	claim, err := p.useClaim(ctx, m)
	if err != nil || claim == nil {
		return err
	}
	if a.Resources == nil {
		a.Resources = &typesv1.LinuxResources{}
	}
	a.Resources.CpusetCpus, a.Resources.CpusetMems = claim.GetResources().GetCpusetCpus(), claim.GetResources().GetCpusetMems()
	return nil
}
