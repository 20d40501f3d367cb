package cgroup

import (
	"path"
	"strings"

	"github.com/berthd/berth/managers/errdefs"
)

// Driver is a way to write cgroup names on disk.
type Driver string

const (
	// Cgroupfs writes components as directories.
	Cgroupfs Driver = "cgroupfs"
	// Systemd writes names as slices: each level repeats its parents' names.
	Systemd Driver = "systemd"
)

const sliceSuffix = ".slice"

// ParseDriver reads a driver's name as configurations write it. The kubelet
// takes any unknown word for cgroupfs; here it is an error of class Invalid.
func ParseDriver(s string) (Driver, error) {
	switch d := Driver(s); d {
	case Cgroupfs, Systemd:
		return d, nil
	}
	return "", errdefs.Invalidf("cgroup driver %q is unknown: expected %s or %s", s, Cgroupfs, Systemd)
}

// Literal writes a name: ToCgroupfs or ToSystemd.
func (d Driver) Literal(n Name) (string, error) {
	if d == Systemd {
		return n.ToSystemd()
	}
	return n.ToCgroupfs(), nil
}

// Parse reads a literal: ParseCgroupfs or ParseSystemd.
func (d Driver) Parse(literal string) Name {
	if d == Systemd {
		return ParseSystemd(literal)
	}
	return ParseCgroupfs(literal)
}

// ToCgroupfs gives the path of directories from the root, "/" for the root.
func (n Name) ToCgroupfs() string {
	size := len("/")
	for _, c := range n {
		size += len("/") + len(c)
	}
	var text strings.Builder
	text.Grow(size)
	for _, c := range n {
		text.WriteByte('/')
		text.WriteString(c)
	}
	if text.Len() == 0 {
		return "/"
	}
	return path.Clean(text.String())
}

// ParseCgroupfs splits a path at its slashes; one leading slash is dropped. It
// accepts everything, as the kubelet does: a trailing or doubled slash gives an
// empty component, which Check refuses.
func ParseCgroupfs(literal string) Name {
	components := strings.Split(strings.TrimPrefix(literal, "/"), "/")
	if len(components) == 1 && components[0] == "" {
		return Name{}
	}
	return components
}

// ToSystemd gives the path of slices: [a b-c] becomes /a.slice/a-b_c.slice, the
// root "/". A dash separates levels, so a dash inside a component turns into an
// underscore. Components that are empty or hold a slash are an error of class
// Invalid.
func (n Name) ToSystemd() (string, error) {
	if n.IsRoot() {
		return "/", nil
	}
	escaped := make([]string, len(n))
	for i, c := range n {
		escaped[i] = strings.ReplaceAll(c, "-", "_")
	}
	unit := strings.Join(escaped, "-")
	if unit == "-" { // systemd's name of the root slice
		return "/", nil
	}
	var b strings.Builder
	prefix := 0
	for i, c := range escaped {
		if c == "" || strings.Contains(c, "/") {
			return "", errdefs.Invalidf("cgroup %s is no systemd slice: component %d is %q, expected neither an empty one nor a slash", n,
				i, n[i])
		}
		prefix += len(c)
		b.WriteByte('/')
		b.WriteString(unit[:prefix+i])
		b.WriteString(sliceSuffix)
	}
	return b.String(), nil
}

// ParseSystemd reads the last element of a path of slices, which names all
// levels, and turns underscores back into dashes. It accepts everything, as the
// kubelet does: a name that is no slice gives a single component that leads elsewhere,
// and the root gives one that Check refuses.
func ParseSystemd(literal string) Name {
	components := strings.Split(strings.TrimSuffix(path.Base(literal), sliceSuffix), "-")
	for i, c := range components {
		components[i] = strings.ReplaceAll(c, "_", "-")
	}
	return components
}

// IsSystemdStyle reports whether a name is written as a slice, so that a configured
// driver that disagrees with the names in use can be noticed.
func IsSystemdStyle(literal string) bool { return strings.HasSuffix(literal, sliceSuffix) }
