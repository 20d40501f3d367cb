package cgroupfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/server/internal/host/errno"
)

// Observe implements cgroup.Tree. With all descendants, it closes the directories that were not used for some time.
func (d *Driver) Observe(ctx context.Context, name cgroup.Name, depth int) (*cgroup.Snapshot, error) {
	if err := name.Check(); err != nil {
		return nil, err
	}
	w := &walk{Driver: d, ctx: ctx, seen: &cgroup.Snapshot{Facts: d.facts}}
	if err := w.visit(name, nil, d.dirs.find(name, depth != 0), depth); err != nil {
		return nil, fmt.Errorf("observe cgroup %s: %w", name, err)
	}
	if depth < 0 {
		d.root.closeUnused()
	}
	if len(w.seen.Nodes) == 0 {
		w.seen.Nodes = []cgroup.Observed{{Name: name}}
	}
	return w.seen, nil
}

// walk is one call of Observe.
type walk struct {
	*Driver
	ctx  context.Context
	seen *cgroup.Snapshot
}

// visit observes a cgroup and its descendants. The first cgroup has nil for the parent's
// directories. It is found by its path, because its parent may have been removed.
func (w *walk) visit(name cgroup.Name, parent, dir *openDir, depth int) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	nested, err := w.read(name, parent, dir, depth != 0)
	complete := w.dirs.complete(dir)
	if err != nil || depth == 0 || !nested && complete {
		return err
	}
	if !complete {
		if _, err := w.list(name, dir); err != nil {
			return err
		}
	}
	first := len(w.seen.Nodes)
	if err := w.visitBelow(name, dir, depth, nil); err != nil || w.dirs.complete(dir) {
		return err
	}
	// A cgroup was made or removed meanwhile, or replaced by another one since the last walk.
	added, err := w.list(name, dir)
	if err != nil || len(added) == 0 {
		return err
	}
	err = w.visitBelow(name, dir, depth, added)
	slices.SortStableFunc(w.seen.Nodes[first:], func(a, b cgroup.Observed) int { return a.Name.Compare(b.Name) })
	return err
}

// visitBelow visits the cgroups right below one, all or only some.
func (w *walk) visitBelow(name cgroup.Name, dir *openDir, depth int, only []string) error {
	names, dirs := w.dirs.listed(dir)
	for i, c := range names {
		if only != nil && !slices.Contains(only, c) {
			continue
		}
		if err := w.visit(append(slices.Clip(name), c), dir, dirs[i], depth-1); err != nil {
			return err
		}
	}
	return nil
}

// read observes one cgroup. With deeper, it opens the directories for its children.
func (w *walk) read(name cgroup.Name, parent, dir *openDir, deeper bool) (nested bool, err error) {
	w.dirs.mu.Lock()
	defer w.dirs.mu.Unlock()
	defer w.dirs.leave(dir)
	r := reader{Driver: w.Driver, name: name, parent: parent, dir: dir, trust: true}
	o, nested, err := r.observe()
	if r.missed {
		r.trust, r.missed = false, false
		o, nested, err = r.observe()
	}
	if err != nil || o.State == cgroup.Absent {
		return false, err
	}
	w.seen.Nodes = append(w.seen.Nodes, o)
	for i := range w.hierarchies {
		if deeper && nested && dir.inos[i] != 0 {
			if _, err := w.openDir(name, parent, dir, i); err != nil && !gone(err) {
				return false, errno.Classify(err)
			}
		}
	}
	return nested, nil
}

// validV1 are the controllers in whose hierarchies the kubelet requires a valid cgroup, if they
// are mounted.
var validV1 = []string{"cpu", "cpuacct", "cpuset", "memory", "name=systemd", "pids", "hugetlb"}

// state reports whether a cgroup exists, and what it lacks.
func (d *Driver) state(name cgroup.Name) (cgroup.State, string, error) {
	dir := d.dirs.find(name, false)
	d.dirs.mu.Lock()
	defer d.dirs.mu.Unlock()
	defer d.dirs.leave(dir)
	state, reason, _, err := (&reader{Driver: d, name: name, dir: dir}).state()
	return state, reason, err
}

// state is Driver.state; nested means that the cgroup may have children.
func (r *reader) state() (state cgroup.State, reason string, nested bool, err error) {
	present, nested, err := r.look(r.name, r.parent, r.dir, r.trust)
	if err != nil || present == 0 {
		return cgroup.Absent, "", false, err
	}
	var missing []string
	for i, h := range r.hierarchies {
		if present&(1<<i) == 0 && slices.ContainsFunc(validV1, h.has) {
			missing = append(missing, h.path(r.name))
		}
	}
	switch {
	case len(missing) > 0:
		return cgroup.Invalid, fmt.Sprintf("has some missing paths: %s", strings.Join(missing, ", ")), nested, nil
	case r.facts.Version == cgroup.V1:
		return cgroup.Valid, "", nested, nil
	}
	text, err := r.text(0, "cgroup.controllers")
	switch lacks := lacking(r.needed, strings.Fields(text)); {
	case gone(err):
		r.missed = true
		return cgroup.Absent, "", false, nil
	case err != nil:
		return 0, "", false, errno.Classify(err)
	case len(lacks) > 0:
		return cgroup.Invalid, fmt.Sprintf("has some missing controllers: %s", strings.Join(lacks, ", ")), nested, nil
	}
	return cgroup.Valid, "", nested, nil
}

// Missing lists the directories of a cgroup that Ensure would make. On v1 a valid cgroup may lack some, in hierarchies without a
// controller that berth needs.
func (d *Driver) Missing(name cgroup.Name) (dirs []string, err error) {
	if err := name.Check(); err != nil {
		return nil, err
	}
	for _, h := range d.hierarchies {
		there, _, err := d.exists(h, name)
		if err != nil {
			return nil, err
		}
		if !there {
			dirs = append(dirs, d.absolute(h, name))
		}
	}
	return dirs, nil
}

// controllers returns the controllers of a v2 cgroup.
func (t *tree) controllers(name cgroup.Name) ([]string, error) {
	text, err := t.read(t.hierarchies[0], name, "cgroup.controllers")
	return strings.Fields(text), err
}

// lacking returns the elements of want that has does not contain.
func lacking(want, has []string) []string {
	return slices.DeleteFunc(slices.Clone(want), func(c string) bool { return slices.Contains(has, c) })
}

// exists reports whether a directory exists, and whether it may have subdirectories. A cgroup
// directory has two links and one for each subdirectory, so most cgroups need not be listed.
func (t *tree) exists(h hierarchy, name cgroup.Name) (there, nested bool, err error) {
	if len(name) == 0 {
		return true, true, nil
	}
	var info os.FileInfo
	err = t.root.above(h.below(name), func(parent *directory, base string) error {
		info, err = parent.Lstat(base)
		return parent.located(err)
	})
	if err != nil {
		return false, false, errno.Classify(ignoreGone(err))
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return true, !ok || stat.Nlink != 2, nil
}

// children lists the cgroups right below one in a hierarchy, sorted; none if it is not
// there.
func (t *tree) children(h hierarchy, name cgroup.Name) (names []string, err error) {
	err = t.at(h, name, func(dir *directory) error {
		names, err = dir.list()
		return err
	})
	return names, errno.Classify(ignoreGone(err))
}

// gone reports whether err means that the cgroup does not exist.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}
