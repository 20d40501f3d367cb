//go:build !linux

package sysfs

import (
	"runtime"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/machine"
)

// Host refuses with an error of class Unsupported: there is no /sys to read.
func Host() (machine.Snapshot, error) { return machine.Snapshot{}, unsupported() }

// ProbeHost refuses like Host.
func ProbeHost(cpuset.Set) (string, error) { return "", unsupported() }

func unsupported() error {
	return errdefs.Unsupportedf("discover machine: %s has no /sys; give a recorded machine or a shape", runtime.GOOS)
}
