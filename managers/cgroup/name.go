package cgroup

import (
	"slices"
	"strings"

	"github.com/berthd/berth/managers/errdefs"
)

// Name is the place of a cgroup: its components from the root, which is the
// empty list. Names are never changed in place.
type Name []string

// NewName adds components to a base and returns a fresh list. A slash or an
// underscore in a new component is an error of class Invalid: the systemd
// form writes dashes as underscores and could not be read back.
func NewName(base Name, components ...string) (Name, error) {
	for _, c := range components {
		if i := strings.IndexAny(c, "/_"); i >= 0 {
			return nil, errdefs.Invalidf("cgroup name component %q: %q is not allowed there", c, c[i])
		}
	}
	return base.join(components...), nil
}

// join appends without looking; for components known to be good.
func (n Name) join(components ...string) Name { return slices.Concat(n, components) }

// IsRoot reports whether the name is the root of the tree.
func (n Name) IsRoot() bool { return len(n) == 0 || len(n) == 1 && n[0] == "" }

// Parent returns the name one level up; the root is its own parent.
func (n Name) Parent() Name {
	if len(n) == 0 {
		return n
	}
	return n[: len(n)-1 : len(n)-1]
}

// Base returns the last component, "" for the root.
func (n Name) Base() string {
	if len(n) == 0 {
		return ""
	}
	return n[len(n)-1]
}

// Equal reports whether both names have the same components.
func (n Name) Equal(o Name) bool { return slices.Equal(n, o) }

// Within reports whether n is o or lies below it.
func (n Name) Within(o Name) bool { return len(n) >= len(o) && slices.Equal(n[:len(o)], o) }

// Compare orders names so that parents come before their children and siblings
// by component.
func (n Name) Compare(o Name) int { return slices.Compare(n, o) }

// String returns the form of cgroupfs, for people and as a map key.
func (n Name) String() string { return n.ToCgroupfs() }

// longest is the length of a file name on Linux.
const longest = 255

// Check reports, with class Invalid, a name that no driver may be given: with a
// component that is empty, ".", "..", too long for a file name, or holds a slash
// or a control character.
func (n Name) Check() error {
	for i, c := range n {
		switch {
		case c == "" || c == "." || c == "..":
			return errdefs.Invalidf("cgroup %q: component %d is %q, expected the name of a directory", []string(n), i, c)
		case len(c) > longest:
			return errdefs.Invalidf("cgroup %q: component %d has %d bytes, expected at most %d", []string(n), i, len(c), longest)
		case strings.ContainsFunc(c, func(r rune) bool { return r == '/' || r < ' ' || r == 0x7f }):
			return errdefs.Invalidf("cgroup %q: component %d is %q, expected neither a slash nor control characters", []string(n), i, c)
		}
	}
	return nil
}
