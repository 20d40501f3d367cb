package app

import (
	"errors"
	"io/fs"
	"os"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/server/host/sysfs"
)

// findMachine returns the machine to work on: the one that a snapshot file or a
// shape describes, or with neither the one that berthd runs on.
func findMachine(fileOrShape string) (*machine.Topology, error) {
	if fileOrShape == "" {
		snapshot, err := sysfs.Host()
		if err != nil {
			return nil, err
		}
		return machine.New(snapshot)
	}
	data, err := os.ReadFile(fileOrShape)
	if err == nil {
		return machine.Load(data)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, errdefs.Invalidf("read the machine %s: %w", fileOrShape, err)
	}
	snapshot, err := machine.ParseShape(fileOrShape)
	if err != nil {
		return nil, errdefs.Invalidf("machine %q is neither a file nor a shape: %w", fileOrShape, err)
	}
	return machine.New(snapshot)
}

// onlineCPUs tells which CPUs the kernel has on line now.
func (a *App) onlineCPUs() (cpuset.Set, error) {
	online, all, err := sysfs.Online(os.DirFS("/sys"))
	if all {
		online = a.Machine.CPUs()
	}
	return online, err
}
