package cgroupfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/server/host/errno"
)

// Observe implements cgroup.Tree.
func (d *Driver) Observe(ctx context.Context, name cgroup.Name, depth int) (*cgroup.Snapshot, error) {
	if err := name.Check(); err != nil {
		return nil, err
	}
	s := &cgroup.Snapshot{Facts: d.facts}
	if err := d.observe(ctx, name, depth, s); err != nil {
		return nil, fmt.Errorf("observe cgroup %s: %w", name, err)
	}
	if len(s.Nodes) == 0 {
		s.Nodes = []cgroup.Observed{{Name: name}}
	}
	return s, nil
}

func (d *Driver) observe(ctx context.Context, name cgroup.Name, depth int, s *cgroup.Snapshot) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	state, reason, nested, err := d.examine(name)
	if err != nil {
		return err
	}
	if state == cgroup.Absent {
		return nil
	}
	o := cgroup.Observed{Name: name, State: state, Reason: reason}
	if err := d.readValues(&o); err != nil {
		return err
	}
	s.Nodes = append(s.Nodes, o)
	if depth == 0 || len(nested) == 0 {
		return nil
	}
	var children []string
	for _, h := range nested {
		// On v1 those of any hierarchy, so that what a partial removal left is found.
		below, err := d.children(h, name)
		if err != nil {
			return err
		}
		children = append(children, below...)
	}
	slices.Sort(children)
	for _, c := range slices.Compact(children) {
		child := append(slices.Clone(name), c)
		if child.Check() != nil {
			continue // nothing that berth could have made or could reach
		}
		if err := d.observe(ctx, child, depth-1, s); err != nil {
			return err
		}
	}
	return nil
}

// validV1 are the controllers in whose hierarchies the kubelet wants to see a
// valid cgroup, as far as they are mounted.
var validV1 = []string{"cpu", "cpuacct", "cpuset", "memory", "name=systemd", "pids", "hugetlb"}

// state says whether a cgroup is there, and what it lacks.
func (d *Driver) state(name cgroup.Name) (cgroup.State, string, error) {
	state, reason, _, err := d.examine(name)
	return state, reason, err
}

// examine is state, with the hierarchies in which there are cgroups below this one.
func (d *Driver) examine(name cgroup.Name) (state cgroup.State, reason string, nested []hierarchy, err error) {
	var missing []string
	present := false
	for _, h := range d.hierarchies {
		there, above, err := d.exists(h, name)
		if err != nil {
			return 0, "", nil, err
		}
		present = present || there
		if above {
			nested = append(nested, h)
		}
		if !there && slices.ContainsFunc(validV1, h.has) {
			missing = append(missing, h.path(name))
		}
	}
	switch {
	case !present:
		return cgroup.Absent, "", nil, nil
	case len(missing) > 0:
		return cgroup.Invalid, fmt.Sprintf("has some missing paths: %s", strings.Join(missing, ", ")), nested, nil
	case d.facts.Version == cgroup.V1:
		return cgroup.Valid, "", nested, nil
	}
	lacks, err := d.lacks(name)
	switch {
	case gone(err):
		return cgroup.Absent, "", nil, nil
	case err != nil:
		return 0, "", nil, err
	case len(lacks) > 0:
		return cgroup.Invalid, fmt.Sprintf("has some missing controllers: %s", strings.Join(lacks, ", ")), nested, nil
	}
	return cgroup.Valid, "", nested, nil
}

// lacks lists the needed controllers that a v2 cgroup does not have.
func (d *Driver) lacks(name cgroup.Name) ([]string, error) {
	has, err := d.controllers(name)
	if err != nil {
		return nil, err
	}
	return lacking(d.needed, has), nil
}

// controllers lists those that a v2 cgroup has.
func (d *Driver) controllers(name cgroup.Name) ([]string, error) {
	text, err := d.read(d.hierarchies[0], name, "cgroup.controllers")
	return strings.Fields(text), err
}

// lacking gives what is wanted and not there.
func lacking(want, has []string) []string {
	return slices.DeleteFunc(slices.Clone(want), func(c string) bool { return slices.Contains(has, c) })
}

// exists tells a directory from nothing, and whether it has directories; any other
// error is one. A cgroup directory has two links and one for each directory in it, which
// spares most cgroups the look at all of their files.
func (d *Driver) exists(h hierarchy, name cgroup.Name) (there, nested bool, err error) {
	if len(name) == 0 {
		return true, true, nil
	}
	var info os.FileInfo
	err = d.root.above(h.below(name), func(parent *directory, base string) error {
		info, err = parent.Lstat(base)
		return parent.located(err)
	})
	if err != nil {
		return false, false, errno.Classify(ignoreGone(err))
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return true, !ok || stat.Nlink != 2, nil
}

// children lists the cgroups right below one in a hierarchy, sorted; none if it is not
// there.
func (d *Driver) children(h hierarchy, name cgroup.Name) (names []string, err error) {
	err = d.at(h, name, func(dir *directory) error {
		names, err = dir.list()
		return err
	})
	return names, errno.Classify(ignoreGone(err))
}

// gone reports whether an error says that the cgroup is not there (any more).
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}
