//go:build !linux

package systemd

import (
	"runtime"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/fault"
	"github.com/berthd/berth/server/host/cgroupfs"
)

// Driver is systemd's tree, which only Linux has.
type Driver struct{ cgroup.Tree }

// Open refuses with an error of class Unsupported.
func Open(cgroupfs.Options) (*Driver, error) {
	return nil, fault.Unsupportedf("open systemd's cgroup tree: there is none on %s", runtime.GOOS)
}

// Facts describes the tree.
func (d *Driver) Facts() cgroup.Facts { return cgroup.Facts{} }

// Close lets go of the tree.
func (d *Driver) Close() error { return nil }
