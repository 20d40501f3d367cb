package cgroupfs

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/host/errno"
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
func (d *Driver) procs(name cgroup.Name) ([]int, error) {
	var all []int
	for _, h := range d.hierarchies {
		pids, err := cgroups.GetAllPids(filepath.Join(d.mount, h.path(name)))
		if err != nil && !gone(err) {
			return nil, errno.Classify(err)
		}
		all = append(all, pids...)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// RootProcs lists the processes in the root cgroup itself, on v1 of the memory
// hierarchy: those that nobody has put anywhere. Threads of the kernel are among
// them.
func (d *Driver) RootProcs() ([]int, error) {
	h, ok := d.hierarchy("memory")
	if !ok {
		h = d.hierarchies[0]
	}
	pids, err := cgroups.GetPids(filepath.Join(d.mount, h.dir))
	if err != nil {
		return nil, errdefs.Unavailablef("list processes of the root cgroup: %w", err)
	}
	return pids, nil
}

// Move implements cgroup.Tree. On v1 a process is moved in one hierarchy after
// the other; an error leaves it where it stood in the remaining ones.
func (d *Driver) Move(ctx context.Context, name cgroup.Name, pids ...int) error {
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
			dir := filepath.Join(d.mount, h.path(name))
			if err := cgroups.WriteCgroupProc(dir, pid); err != nil {
				return moveError(name, pid, dir, err)
			}
		}
	}
	return nil
}

func moveError(name cgroup.Name, pid int, dir string, err error) error {
	const format = "move process %d into cgroup %s: %s: %w"
	file := filepath.Join(dir, cgroups.CgroupProcesses)
	switch {
	case errors.Is(err, unix.ESRCH):
		return errdefs.NotFoundf(format, pid, name, file, err)
	case errors.Is(err, unix.EBUSY): // it hands controllers to its children
		return errdefs.Preconditionf(format, pid, name, file, err)
	}
	// A cgroup of v1 whose CPUs are all off line says ENOSPC. That passes, like a full disk.
	return errno.Classify(fmt.Errorf(format, pid, name, file, err))
}
