//go:build !linux

package affinity

import (
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
)

// Set is not supported on this system.
func Set(int, cpuset.Set) error {
	return errdefs.Unsupportedf("CPUs of processes are set on Linux only")
}
