package try

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/host/cgroupfs"
	"github.com/berthd/berth/server/internal/host/cgroupfs/ocicgroups"
	"github.com/berthd/berth/server/internal/host/systemd"
)

// tree is the kernel's tree of cgroups.
type tree interface {
	cgroup.Tree
	io.Closer
	// Missing lists the directories of a cgroup that Ensure would make.
	Missing(cgroup.Name) ([]string, error)
}

func openTree(r Record) (tree, error) {
	options := cgroupfs.Options{Mount: r.Mount, Setter: ocicgroups.Setter{}}
	if cgroup.Driver(r.Driver) == cgroup.Systemd {
		return systemd.Open(options)
	}
	return cgroupfs.Open(options)
}

// makeCgroup makes the cgroup of a record, in a cgroup that is there: what Ensure makes above would stay.
func makeCgroup(ctx context.Context, r Record) (err error) {
	t, err := openTree(r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	name := cgroup.ParseCgroupfs(r.Cgroup)
	missing, err := t.Missing(name.Parent())
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return errdefs.Preconditionf("there is no %s: make it, or leave out --cgroup-root (cgroups.root)", strings.Join(missing, ", no "))
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
	if !strings.HasPrefix(name.Base(), cgroupPrefix) {
		return nil
	}
	t, err := openTree(r)
	if err != nil {
		if r.Memory {
			return nil // nor could it be made
		}
		return err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	if r.Memory {
		// It is there only if makeCgroup has failed in the middle. Its user may have no right to remove what is not there.
		seen, err := t.Observe(ctx, name, 0)
		if err != nil || seen.Find(name).State == cgroup.Absent {
			return nil
		}
	}
	return t.Remove(ctx, name)
}
