//go:build !linux

package cgroupfs

import (
	"runtime"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
)

// Driver cannot be had on this system.
type Driver struct {
	cgroup.Tree
	cgroup.Meter
}

// Open refuses with an error of class Unsupported: there are no cgroups here.
func Open(Options) (*Driver, error) {
	return nil, errdefs.Unsupportedf("open the cgroup tree: %s has no cgroups", runtime.GOOS)
}

// Facts describes no tree.
func (*Driver) Facts() cgroup.Facts { return cgroup.Facts{} }

// RootProcs lists nothing.
func (*Driver) RootProcs() ([]int, error) { return nil, nil }

// Missing lists nothing.
func (*Driver) Missing(cgroup.Name) ([]string, error) { return nil, nil }

// CloseUnused does nothing.
func CloseUnused(*Driver) {}

// Close does nothing.
func (*Driver) Close() error { return nil }
