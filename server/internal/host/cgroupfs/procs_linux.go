package cgroupfs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/host/errno"
)

// Procs implements cgroup.Tree.
func (d *Driver) Procs(ctx context.Context, name cgroup.Name) ([]int, error) {
	if err := name.Check(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("list processes of cgroup %s: %w", name, err)
	}
	pids, err := d.procs(name)
	if err != nil {
		return nil, fmt.Errorf("list processes of cgroup %s: %w", name, err)
	}
	return pids, nil
}

// procs lists the processes of a cgroup and below it, in any hierarchy.
func (t *tree) procs(name cgroup.Name) ([]int, error) {
	var all []int
	for _, h := range t.hierarchies {
		pids, err := t.procsIn(h, name)
		if err != nil {
			return nil, err
		}
		all = append(all, pids...)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// procsIn lists the processes of a cgroup and its descendants in one hierarchy. A threaded cgroup
// (v2) has no readable process list, so its threads are listed.
func (t *tree) procsIn(h hierarchy, name cgroup.Name) ([]int, error) {
	text, err := t.read(h, name, procsFile)
	if errors.Is(err, unix.ENOTSUP) {
		text, err = t.read(h, name, "cgroup.threads")
	}
	if err != nil {
		return nil, ignoreGone(err)
	}
	pids, err := parsePIDs(text)
	if err != nil {
		return nil, errdefs.Unavailablef("read %s: %w", filepath.Join(t.absolute(h, name), procsFile), err)
	}
	if _, nested, err := t.exists(h, name); err != nil || !nested {
		return pids, err
	}
	children, err := t.children(h, name)
	for _, c := range children {
		below, failed := t.procsIn(h, append(slices.Clone(name), c))
		pids, err = append(pids, below...), cmp.Or(err, failed)
	}
	return pids, err
}

// parsePIDs reads process ids, one a line.
func parsePIDs(text string) (pids []int, err error) {
	for line := range strings.FieldsSeq(text) {
		pid, err := strconv.Atoi(line)
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// RootProcs lists the processes in the root cgroup, on v1 of the memory hierarchy. They include
// kernel threads.
func (d *Driver) RootProcs() ([]int, error) {
	h, ok := d.hierarchy("memory")
	if !ok {
		h = d.hierarchies[0]
	}
	text, err := d.read(h, nil, procsFile)
	if err != nil {
		return nil, fmt.Errorf("list processes of the root cgroup: %w", err)
	}
	return parsePIDs(text)
}

// procsFile lists the processes of a cgroup.
const procsFile = "cgroup.procs"

// Move implements cgroup.Tree. On v1 a process is moved in one hierarchy after
// the other; an error leaves it where it stood in the remaining ones.
func (d *Driver) Move(ctx context.Context, name cgroup.Name, pids ...int) error {
	if d.setter == nil {
		return errReadOnly
	}
	if err := name.Check(); err != nil {
		return err
	}
	state, _, err := d.state(name)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("move processes into cgroup %s: %w", name, err)
	}
	if state == cgroup.Absent {
		return errdefs.NotFoundf("move processes into cgroup %s: there is no such cgroup", name)
	}
	for _, pid := range pids {
		for _, h := range d.hierarchies {
			dir := d.absolute(h, name)
			if err := d.setter.Join(dir, pid); err != nil {
				return moveError(name, pid, dir, err)
			}
		}
	}
	return nil
}

func moveError(name cgroup.Name, pid int, dir string, err error) error {
	const format = "move process %d into cgroup %s: %s: %w"
	file := filepath.Join(dir, procsFile)
	switch {
	case errors.Is(err, unix.ESRCH):
		return errdefs.NotFoundf(format, pid, name, file, err)
	case errors.Is(err, unix.EBUSY): // it hands controllers to its children
		return errdefs.Preconditionf(format, pid, name, file, err)
	}
	// A v1 cgroup whose CPUs are all offline returns ENOSPC, which is temporary, like a full
	// disk.
	return errno.Classify(fmt.Errorf(format, pid, name, file, err))
}
