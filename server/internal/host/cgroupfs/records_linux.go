package cgroupfs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/host/errno"
)

var _ cgroup.Records = (*Driver)(nil)

const (
	// usualRecord is more than most records take, largestAttribute what the kernel
	// lets an attribute have.
	usualRecord      = 4 << 10
	largestAttribute = 64 << 10
	// writableByOthers are the mode bits with which other users can write a directory's user.*
	// attributes (xattr(7)).
	writableByOthers = 0o022
)

// ReadRecord implements cgroup.Records.
func (d *Driver) ReadRecord(ctx context.Context, name cgroup.Name) ([]byte, error) {
	record, err := d.readRecord(ctx, name)
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

// writeRecord takes one system call, because every admission waits for it. An os.Root has no
// attributes, so the path is used. Names are checked, and a cgroup tree has no links.
func (d *Driver) writeRecord(ctx context.Context, name cgroup.Name, record []byte) (err error) {
	if err := cmp.Or(name.Check(), ctx.Err()); err != nil {
		return err
	}
	path := d.absolute(d.recordHierarchy(), name)
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

// readRecord reads the attribute and the owner of one and the same directory.
func (d *Driver) readRecord(ctx context.Context, name cgroup.Name) (record []byte, err error) {
	if err := cmp.Or(name.Check(), ctx.Err()); err != nil {
		return nil, err
	}
	var stat unix.Stat_t
	err = d.at(d.recordHierarchy(), name, func(dir *directory) error {
		f, err := dir.OpenFile(".", os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
			return err
		}
		record, err = readAttribute(int(f.Fd()))
		return err
	})
	switch {
	case gone(err):
		return nil, errdefs.NotFoundf("there is no such cgroup: %w", err)
	case err == nil && record != nil && stat.Uid != 0:
		return nil, errdefs.PermissionDeniedf("the cgroup is owned by uid %d, and only root's are trusted", stat.Uid)
	case err == nil && record != nil && stat.Mode&writableByOthers != 0:
		return nil, errdefs.PermissionDeniedf("the cgroup has mode %#o, and only cgroups that root alone can write to are trusted",
			stat.Mode&0o777)
	}
	return record, errno.Classify(err)
}

// recordHierarchy is the hierarchy of the cpuset controller. A driver that does not require
// cpuset uses another hierarchy with a controller.
func (t *tree) recordHierarchy() hierarchy {
	if h, ok := t.hierarchy("cpuset"); ok {
		return h
	}
	for _, h := range t.hierarchies {
		if !h.has(unified) && !h.has("name=systemd") {
			return h
		}
	}
	return t.hierarchies[0]
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
