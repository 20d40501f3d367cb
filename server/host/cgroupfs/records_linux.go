package cgroupfs

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/host/errno"
)

var _ cgroup.Records = (*Driver)(nil)

const (
	// usualRecord is more than most records take, largestAttribute what the kernel
	// lets an attribute have.
	usualRecord      = 4 << 10
	largestAttribute = 64 << 10
)

// ReadRecord implements cgroup.Records.
func (d *Driver) ReadRecord(ctx context.Context, name cgroup.Name) ([]byte, error) {
	record, err := d.onRecord(ctx, name, func(fd int) ([]byte, error) {
		var stat unix.Stat_t
		if err := unix.Fstat(fd, &stat); err != nil {
			return nil, errno.Classify(err)
		}
		record, err := readAttribute(fd)
		if err == nil && record != nil && stat.Uid != 0 {
			return nil, errdefs.PermissionDeniedf("the cgroup is owned by uid %d, and only root's are believed", stat.Uid)
		}
		return record, err
	})
	if errdefs.ClassOf(err) == errdefs.NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the claim record of cgroup %s: %w", name, err)
	}
	return record, nil
}

// WriteRecord implements cgroup.Records.
func (d *Driver) WriteRecord(ctx context.Context, name cgroup.Name, record []byte) error {
	err := d.writeRecord(ctx, name, record)
	if record == nil && errdefs.ClassOf(err) == errdefs.NotFound {
		return nil
	}
	if err != nil {
		return fmt.Errorf("write the claim record of cgroup %s: %w", name, err)
	}
	return nil
}

// writeRecord takes one system call where a descriptor takes three: every admission
// waits for it. Names are checked, and there are no links to follow.
func (d *Driver) writeRecord(ctx context.Context, name cgroup.Name, record []byte) (err error) {
	path, err := d.recordPath(ctx, name)
	if err != nil {
		return err
	}
	if record == nil {
		err = unix.Lremovexattr(path, cgroup.RecordAttribute)
	} else {
		err = unix.Lsetxattr(path, cgroup.RecordAttribute, record, 0)
	}
	switch {
	case record == nil && errors.Is(err, unix.ENODATA):
		return nil
	case gone(err):
		return errdefs.NotFoundf("there is no such cgroup: %w", err)
	}
	return attributeError(err)
}

// recordPath gives the directory whose attribute holds the record of a cgroup.
func (d *Driver) recordPath(ctx context.Context, name cgroup.Name) (string, error) {
	if err := name.Check(); err != nil {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	return filepath.Join(d.mount, d.recordHierarchy().path(name)), nil
}

// onRecord opens the directory whose attribute holds the record of a cgroup.
func (d *Driver) onRecord(ctx context.Context, name cgroup.Name, do func(fd int) ([]byte, error)) ([]byte, error) {
	path, err := d.recordPath(ctx, name)
	if err != nil {
		return nil, err
	}
	fd, err := open(path, unix.O_RDONLY|unix.O_DIRECTORY)
	if gone(err) {
		return nil, errdefs.NotFoundf("there is no such cgroup: %w", err)
	}
	if err != nil {
		return nil, errno.Classify(err)
	}
	defer func() { _ = unix.Close(fd) }()
	return do(fd)
}

// recordHierarchy is that of the cpuset controller, which berth needs. A driver that
// was told to do without it takes another one with a controller.
func (d *Driver) recordHierarchy() hierarchy {
	if h, ok := d.hierarchy("cpuset"); ok {
		return h
	}
	for _, h := range d.hierarchies {
		if !h.has(unified) && !h.has("name=systemd") {
			return h
		}
	}
	return d.hierarchies[0]
}

// readAttribute returns the record; nil if there is none.
func readAttribute(fd int) ([]byte, error) {
	buf := make([]byte, usualRecord)
	n, err := unix.Fgetxattr(fd, cgroup.RecordAttribute, buf)
	if errors.Is(err, unix.ERANGE) {
		buf = make([]byte, largestAttribute)
		n, err = unix.Fgetxattr(fd, cgroup.RecordAttribute, buf)
	}
	switch {
	case errors.Is(err, unix.ENODATA):
		return nil, nil
	case err != nil:
		return nil, attributeError(err)
	}
	return buf[:n], nil
}

// attributeError gives a kernel's error about an attribute its class.
func attributeError(err error) error {
	if errors.Is(err, unix.EOPNOTSUPP) {
		return errdefs.Unsupportedf("this kernel keeps no attribute %s of cgroups: %w", cgroup.RecordAttribute, err)
	}
	return errno.Classify(err)
}
