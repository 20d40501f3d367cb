package sysfs

import (
	"io/fs"
	"os"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/machine"
)

// Host describes the machine that the program runs on.
func Host() (machine.Snapshot, error) { return onHost(Discover) }

// ProbeHost is Probe of the machine that the program runs on.
func ProbeHost(used cpuset.Set) (string, error) {
	return onHost(func(sys, proc fs.FS) (string, error) { return Probe(sys, proc, used) })
}

// onHost reads the running machine. The trees are opened as roots, which follow the links inside
// /sys and nothing that leads out of it.
func onHost[T any](read func(sys, proc fs.FS) (T, error)) (out T, err error) {
	sys, err := os.OpenRoot("/sys")
	if err != nil {
		return out, errdefs.Unavailablef("discover machine: %w", err)
	}
	defer sys.Close()
	proc, err := os.OpenRoot("/proc")
	if err != nil {
		return out, errdefs.Unavailablef("discover machine: %w", err)
	}
	defer proc.Close()
	return read(sys.FS(), proc.FS())
}
