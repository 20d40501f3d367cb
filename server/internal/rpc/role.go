package rpc

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"

	"github.com/berthd/berth/api/access"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
)

// Access decides which calls a caller may make. Root and the user of the berthd process may make
// all calls, because that user owns the state anyway.
type Access struct {
	Self   uint32
	Grants []access.Grant
	// OwnerOf returns the owner of a pod, named by its uid or by the id of one of its
	// containers; false if there is no such pod. nil where pods have no owners.
	OwnerOf func(podUID, containerID string) (owner string, ok bool)
	// changed holds later grants; copies of an Access share it. It is nil where they never
	// change.
	changed *atomic.Pointer[[]access.Grant]
	// running are the calls that depend on grants; copies of an Access share them.
	running *running
}

// NewAccess returns an Access whose grants can change.
func NewAccess(self uint32, grants []access.Grant, ownerOf func(podUID, containerID string) (owner string, ok bool)) *Access {
	return &Access{Self: self, Grants: grants, OwnerOf: ownerOf, changed: new(atomic.Pointer[[]access.Grant]),
		running: &running{calls: map[*runningCall]struct{}{}}}
}

// Change puts other grants into force. It ends running calls that they do not allow.
func (a Access) Change(grants []access.Grant) {
	a.changed.Store(&grants)
	a.running.check()
}

// grants are the grants in force.
func (a Access) grants() []access.Grant {
	if a.changed != nil {
		if g := a.changed.Load(); g != nil {
			return *g
		}
	}
	return a.Grants
}

// Allows reports whether a peer has a role.
func (a Access) Allows(p Peer, r access.Role) bool {
	if p.Page {
		return r == access.Read
	}
	return a.trusts(p) || a.granted(p, func(g access.Grant) bool { return covers(g, r) })
}

// trusts reports whether a peer may make all calls.
func (a Access) trusts(p Peer) bool { return !p.Page && (p.UID == 0 || p.UID == a.Self) }

// knows reports whether a peer has any role.
func (a Access) knows(p Peer) bool {
	return p.Page || a.trusts(p) || a.granted(p, func(access.Grant) bool { return true })
}

// byGroup returns the group that a peer has its roles by; false for one that has a role
// by itself.
func (a Access) byGroup(p Peer) (gid uint32, ok bool) {
	if p.Page {
		return 0, false
	}
	for _, g := range a.grants() {
		switch {
		case g.UID != nil && *g.UID == p.UID:
			return 0, false
		case g.GID != nil && !ok && p.in(*g.GID):
			gid, ok = *g.GID, true
		}
	}
	return gid, ok
}

// GroupFor returns the group that a peer has a role by; nil if it has the role by itself, or does not have it.
func (a Access) GroupFor(p Peer, r access.Role) (gid *uint32) {
	if a.trusts(p) {
		return nil
	}
	for _, g := range a.grants() {
		switch {
		case !covers(g, r):
		case g.UID != nil && *g.UID == p.UID:
			return nil
		case g.GID != nil && gid == nil && p.in(*g.GID):
			gid = g.GID
		}
	}
	return gid
}

// covers reports whether a grant gives a role: an agent and a provider may also read.
func covers(g access.Grant, r access.Role) bool {
	return slices.Contains(g.Roles, r) ||
		r == access.Read && (slices.Contains(g.Roles, access.Agent) || slices.Contains(g.Roles, access.Provider))
}

// granted reports whether a grant for a peer satisfies such.
func (a Access) granted(p Peer, such func(access.Grant) bool) bool {
	return !p.Page && slices.ContainsFunc(a.grants(), func(g access.Grant) bool {
		return (g.UID != nil && *g.UID == p.UID || g.GID != nil && p.in(*g.GID)) && such(g)
	})
}

// requirer is a request whose role depends on its content: a dry run only reads.
type requirer interface{ GetDryRun() bool }

// triable are the methods whose role depends on the request.
var triable = []string{
	"/berth.admission.v1.AdmissionService/Admit",
	"/berth.admission.v1.AdmissionService/Resize",
	"/berth.admission.v1.AdmissionService/SyncPods",
}

// alsoOfAdmins are the methods that admins may call in addition to the role of the method.
var alsoOfAdmins = []string{"/berth.hint.v1.HintBusService/Unregister"}

// mayAuthorize refuses a peer that authorize would refuse for every request. A method without a
// role is left to authorize; if it does not exist, gRPC returns the error.
func (a Access) mayAuthorize(ctx context.Context, fullMethod string) error {
	role, ok := access.RoleOf(fullMethod)
	switch {
	case !ok, triesOnPage(ctx, fullMethod): // authorize looks at the request
		return nil
	case !slices.Contains(triable, fullMethod):
		return a.need(ctx, fullMethod, role, "")
	case a.need(ctx, fullMethod, access.Read, "") == nil:
		return nil
	}
	return a.need(ctx, fullMethod, role, ", or for a dry run the role "+string(access.Read))
}

// authorize refuses a peer without the role that the method requires.
func (a Access) authorize(ctx context.Context, fullMethod string, req any) error {
	role, ok := access.RoleOf(fullMethod)
	if !ok {
		return errdefs.PermissionDeniedf("method %s cannot be called: it has no role", fullMethod)
	}
	if r, ok := req.(requirer); ok && r.GetDryRun() && (role == access.Agent || triesOnPage(ctx, fullMethod)) {
		role = access.Read
	}
	if err := a.need(ctx, fullMethod, role, ""); err != nil || role != access.Agent {
		return err
	}
	return a.mayActFor(ctx, fullMethod, req)
}

// owned is a request that is made for an owner of pods, and everyone one that may be made
// for all of them. ofPod and ofContainer are about a pod that is there, and its owner.
type (
	owned       interface{ GetOwner() string }
	everyone    interface{ GetAllOwners() bool }
	ofPod       interface{ GetPodUid() string }
	ofContainer interface{ GetContainerId() string }
)

// mayActFor refuses an agent that uses the owner name of other users' pods.
func (a Access) mayActFor(ctx context.Context, fullMethod string, req any) error {
	if r, ok := req.(everyone); ok && r.GetAllOwners() {
		return a.need(ctx, fullMethod+" for all owners", access.Admin, "")
	}
	owner, ok := a.ownerIn(req)
	if !ok {
		return nil
	}
	if who, ok := PeerOf(ctx); !ok || !a.actsFor(who, owner) {
		return errdefs.PermissionDeniedf("method %s for the owner %q needs a grant in access that names this owner, or the role admin, which %s does not have",
			fullMethod, owner, who).Coded(errdefs.OwnerNotPermitted, "owner", owner)
	}
	return nil
}

// ownerIn returns the owner in a request, or the owner of its pod; false if there is none.
func (a Access) ownerIn(req any) (owner string, ok bool) {
	if r, ok := req.(owned); ok {
		return cmp.Or(r.GetOwner(), ledger.DefaultOwner), true
	}
	var pod, container string
	if r, ok := req.(ofPod); ok {
		pod = r.GetPodUid()
	} else if r, ok := req.(ofContainer); ok {
		container = r.GetContainerId()
	}
	if a.OwnerOf == nil || pod == "" && container == "" {
		return "", false
	}
	return a.OwnerOf(pod, container)
}

// actsFor reports whether a peer with the role of agents may act for an owner.
func (a Access) actsFor(p Peer, owner string) bool {
	named := slices.ContainsFunc(a.grants(), func(g access.Grant) bool { return slices.Contains(g.Owners, owner) })
	return a.Allows(p, access.Admin) || a.granted(p, func(g access.Grant) bool {
		return slices.Contains(g.Roles, access.Agent) && (slices.Contains(g.Owners, owner) || len(g.Owners) == 0 && !named)
	})
}

// need refuses a peer without a role; or is what else would do.
func (a Access) need(ctx context.Context, fullMethod string, role access.Role, or string) error {
	who, ok := PeerOf(ctx)
	if !ok {
		return errdefs.PermissionDeniedf("method %s needs the role %s%s, and the connection does not identify the caller", fullMethod,
			role, or).Coded(errdefs.RoleMissing, "role", string(role))
	}
	if !a.Allows(who, role) && (!slices.Contains(alsoOfAdmins, fullMethod) || !a.Allows(who, access.Admin)) {
		return errdefs.PermissionDeniedf("method %s needs the role %s%s, which %s does not have", fullMethod, role, or,
			who).Coded(errdefs.RoleMissing, "role", string(role))
	}
	return nil
}
