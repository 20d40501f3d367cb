package rpc

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/fault"
)

// Role is what a peer may do.
type Role string

const (
	// RoleRead: look at state, ask for hints, run admissions dry.
	RoleRead Role = "read"
	// RoleAgent: admit, allocate, follow containers, remove.
	RoleAgent Role = "agent"
	// RoleProvider: register with the hint bus.
	RoleProvider Role = "provider"
	// RoleAdmin: policy, cgroup writes, the ledger itself.
	RoleAdmin Role = "admin"
)

// Roles lists all of them.
func Roles() []Role { return []Role{RoleRead, RoleAgent, RoleProvider, RoleAdmin} }

// Grant gives roles to a user or to a group. Exactly one of UID and GID is set.
type Grant struct {
	UID   *uint32 `json:"uid,omitempty"`
	GID   *uint32 `json:"gid,omitempty"`
	Roles []Role  `json:"roles"`
}

// Access decides who may do what. Root may do everything, and so may the user
// that berthd itself runs as: whoever can act as that user owns the state anyway.
type Access struct {
	Self   uint32
	Grants []Grant
}

// Allows reports whether a peer has a role.
func (a Access) Allows(p Peer, r Role) bool {
	if p.UID == 0 || p.UID == a.Self {
		return true
	}
	for _, g := range a.Grants {
		if g.UID != nil && *g.UID != p.UID || g.GID != nil && *g.GID != p.GID {
			continue
		}
		if slices.Contains(g.Roles, r) {
			return true
		}
	}
	return false
}

// methodRoles gives the role that a method asks for, by full name, or by
// service name with a trailing slash for all of its methods.
var methodRoles = map[string]Role{
	"/berth.admission.v1.AdmissionService/":   RoleAgent,
	"/berth.allocation.v1.AllocationService/": RoleRead,
	// Allocate may admit, so it is the agent's.
	"/berth.allocation.v1.AllocationService/Allocate": RoleAgent,
	"/berth.lifecycle.v1.LifecycleService/":           RoleAgent,
	"/berth.cpu.v1.CPUService/":                       RoleRead,
	"/berth.device.v1.DeviceService/":                 RoleRead,
	"/berth.topology.v1.TopologyService/":             RoleRead,
	"/berth.node.v1.NodeService/":                     RoleRead,
	"/berth.inspect.v1.InspectService/":               RoleAdmin,
	// Whoever may read allocations may read why they are as they are.
	"/berth.inspect.v1.InspectService/GetTrace":                      RoleRead,
	"/v1.PodResourcesLister/":                                        RoleRead,
	"/v1alpha1.PodResourcesLister/":                                  RoleRead,
	"/grpc.health.v1.Health/":                                        RoleRead,
	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      RoleRead,
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": RoleRead,
}

// RoleOf returns the role that a method asks for; false if nobody decided, in
// which case nobody may call it.
func RoleOf(fullMethod string) (Role, bool) {
	if r, ok := methodRoles[fullMethod]; ok {
		return r, true
	}
	r, ok := methodRoles[fullMethod[:strings.LastIndexByte(fullMethod, '/')+1]]
	return r, ok
}

// requirer is a request whose role depends on what it asks: a dry run only reads.
type requirer interface{ GetDryRun() bool }

// authorize refuses a peer that lacks the role which the method asks for.
func (a Access) authorize(ctx context.Context, fullMethod string, req any) error {
	role, ok := RoleOf(fullMethod)
	if !ok {
		return fault.PermissionDeniedf("method %s: nobody may call it, it has no role", fullMethod)
	}
	if r, ok := req.(requirer); ok && r.GetDryRun() && role == RoleAgent {
		role = RoleRead
	}
	who, ok := PeerOf(ctx)
	if !ok {
		return fault.PermissionDeniedf("method %s needs the role %s, and the connection does not tell who calls", fullMethod, role)
	}
	if !a.Allows(who, role) {
		return fault.PermissionDeniedf("method %s needs the role %s, which %s does not have", fullMethod, role, who)
	}
	return nil
}

// Validate checks a list of grants; path names it in errors.
func Validate(path string, grants []Grant) error {
	for i, g := range grants {
		at := fmt.Sprintf("%s[%d]", path, i)
		if (g.UID == nil) == (g.GID == nil) {
			return fault.Invalidf("%s: expected exactly one of uid and gid", at)
		}
		if len(g.Roles) == 0 {
			return fault.Invalidf("%s.roles: expected at least one of %q", at, Roles())
		}
		for j, r := range g.Roles {
			if !slices.Contains(Roles(), r) {
				return fault.Invalidf("%s.roles[%d]: %q is none of %q", at, j, r, Roles())
			}
		}
	}
	return nil
}
