package try

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/host/cgroupfs"
	"github.com/berthd/berth/server/internal/host/systemd"
)

// tree is the kernel's tree of cgroups.
type tree interface {
	cgroup.Tree
	io.Closer
}

func open(r Record) (tree, error) {
	options := cgroupfs.Options{Mount: r.Mount}
	if cgroup.Driver(r.Driver) == cgroup.Systemd {
		return systemd.Open(options)
	}
	return cgroupfs.Open(options)
}

// makeCgroup makes the cgroup of a record, in a cgroup that is there.
func makeCgroup(ctx context.Context, r Record) (err error) {
	t, err := open(r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	name := cgroup.ParseCgroupfs(r.Cgroup)
	above, err := t.Observe(ctx, name.Parent(), 0)
	if err != nil {
		return err
	}
	if !name.Parent().IsRoot() && above.Find(name.Parent()).State == cgroup.Absent {
		return errdefs.Preconditionf("there is no cgroup %s: make it, or leave out --cgroup-root (cgroups.root)", name.Parent())
	}
	created, err := t.Ensure(ctx, cgroup.Node{Name: name})
	if err == nil && !created {
		err = errdefs.Conflictf("a cgroup %s is there already", name)
	}
	return err
}

// removeCgroup removes the cgroup of a record, and kills what is in it. A cgroup with another kind of name is not a try's.
func removeCgroup(ctx context.Context, r Record) (err error) {
	name := cgroup.ParseCgroupfs(r.Cgroup)
	if r.Memory || !strings.HasPrefix(name.Base(), cgroupPrefix) {
		return nil
	}
	t, err := open(r)
	if err != nil {
		return err
	}
	return errors.Join(t.Remove(ctx, name), t.Close())
}
