//go:build linux && cgo

package builtin

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/cpuset"
)

// reserveStart makes the container's cgroup with the first of the choices that the cgroups
// above allow. The process enters the cgroup when it is a few instructions old, and stays
// on these CPUs until berthd writes the container's own. libcontainer resets the affinity
// of the process, so affinity alone would not hold it there.
func reserveStart(cgroup *cgroups.Cgroup, choices []string) (cpus string, err error) {
	for _, cpus := range choices {
		refused := makeCpuset(cgroup, cpus)
		switch {
		case refused == nil:
			resources := *cgroup.Resources
			resources.CpusetCpus = cpus
			cgroup.Resources = &resources
			return cpus, nil
		case errors.Is(refused, fs.ErrNotExist):
			return cpus, nil // there are no cpusets here
		}
		err = errors.Join(err, fmt.Errorf("CPUs %s: %w", cpus, refused))
	}
	return "", err
}

// makeCpuset makes a cgroup without a process in it and gives it CPUs.
func makeCpuset(cgroup *cgroups.Cgroup, cpus string) error {
	only := *cgroup
	only.Resources = &cgroups.Resources{CpusetCpus: cpus, SkipDevices: true}
	m, err := manager.New(&only)
	if err != nil {
		return err
	}
	if err := m.Apply(-1); err != nil {
		return err
	}
	return m.Set(only.Resources)
}

// onCPUs calls a function that starts a process, which then begins on some CPUs: a child
// has the affinity of the thread that makes it (sched_setaffinity(2)).
func onCPUs(cpus string, start func() error) error {
	set, err := cpuset.Parse(cpus)
	if err != nil {
		return err
	}
	if set.IsEmpty() {
		return start()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, mask unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return fmt.Errorf("read the keeper's affinity: %w", err)
	}
	for cpu := range set.All() {
		mask.Set(cpu)
	}
	if err := unix.SchedSetaffinity(0, &mask); err != nil {
		// The keeper itself may not use these CPUs: berthlet was restricted to others.
		fmt.Fprintln(os.Stderr, "begin on CPUs", cpus+":", err)
		return start()
	}
	defer func() { _ = unix.SchedSetaffinity(0, &before) }() // these were allowed before
	return start()
}
