//go:build !linux

package systemd

import (
	"context"
	"runtime"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/host/cgroupfs"
)

// Driver is systemd's tree, which only Linux has.
type Driver struct{ cgroup.Tree }

// Open refuses with an error of class Unsupported.
func Open(cgroupfs.Options) (*Driver, error) {
	return nil, errdefs.Unsupportedf("open systemd's cgroup tree: there is none on %s", runtime.GOOS)
}

// Facts describes the tree.
func (d *Driver) Facts() cgroup.Facts { return cgroup.Facts{} }

// Missing lists nothing.
func (d *Driver) Missing(cgroup.Name) ([]string, error) { return nil, nil }

// Reloads ends at once.
func (d *Driver) Reloads(context.Context, func()) error { return nil }

// Close closes the tree.
func (d *Driver) Close() error { return nil }
