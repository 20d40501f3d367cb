// Package access defines what a peer of berth's socket may do, in the words that the
// configuration and the socket share.
//
// Words:
//
//   - role: a set of methods; the table of methods is in methods.go.
//   - grant: roles that a user or a group has.
package access

import (
	"fmt"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/workload"
)

// Role names what a peer may do.
type Role string

const (
	// Read: read state, get hints, run admissions dry.
	Read Role = "read"
	// Agent: admit, allocate, follow containers, remove; and what Read is for.
	Agent Role = "agent"
	// Provider: register with the hint bus; and what Read is for.
	Provider Role = "provider"
	// Admin: policy, cgroup writes, the ledger itself.
	Admin Role = "admin"
)

// Roles lists all of them.
func Roles() []Role { return []Role{Read, Agent, Provider, Admin} }

// Grant gives roles to a user or to a group. Exactly one of its first four fields is set;
// names are of this machine, and berthd turns them into numbers at its start. A
// process is of a group if that is its effective one or among its supplementary
// ones when it connects.
type Grant struct {
	UID   *uint32 `json:"uid,omitempty"`
	GID   *uint32 `json:"gid,omitempty"`
	User  string  `json:"user,omitempty"`
	Group string  `json:"group,omitempty"`
	Roles []Role  `json:"roles"`
	// Owners are the names under which an agent of this grant has pods. Empty means
	// those that no grant names. No other user acts for an owner that a grant names, but
	// for root and the role Admin.
	Owners []string `json:"owners,omitempty"`
}

// Validate checks a list of grants; path names it in errors, which are of class
// Invalid.
func Validate(path string, grants []Grant) error {
	for i, g := range grants {
		at := fmt.Sprintf("%s[%d]", path, i)
		named := 0
		for _, is := range []bool{g.UID != nil, g.GID != nil, g.User != "", g.Group != ""} {
			if is {
				named++
			}
		}
		if named != 1 {
			return errdefs.Invalidf("%s: expected exactly one of uid, gid, user and group", at)
		}
		if len(g.Roles) == 0 {
			return errdefs.Invalidf("%s.roles: expected at least one of %q", at, Roles())
		}
		for j, r := range g.Roles {
			if !slices.Contains(Roles(), r) {
				return errdefs.Invalidf("%s.roles[%d]: %q: expected one of %q", at, j, r, Roles())
			}
		}
		if len(g.Owners) > 0 && !slices.Contains(g.Roles, Agent) {
			return errdefs.Invalidf("%s.owners: only a caller with the role %q acts for an owner", at, Agent)
		}
		for j, owner := range g.Owners {
			if !workload.IsDNSLabel(owner) {
				return errdefs.Invalidf("%s.owners[%d]: %.80q: expected a DNS label of at most 63 characters", at, j, owner)
			}
		}
	}
	return nil
}
