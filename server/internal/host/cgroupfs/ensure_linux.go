package cgroupfs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/host/errno"
)

// Ensure implements cgroup.Tree.
func (d *Driver) Ensure(ctx context.Context, node cgroup.Node) (created bool, err error) {
	if err := node.Name.Check(); err != nil {
		return false, err
	}
	if err := ctx.Err(); err != nil {
		return false, fmt.Errorf("ensure cgroup %s: %w", node.Name, err)
	}
	if d.setCPUs(node) {
		return false, nil
	}
	made, err := d.create(node.Name)
	if err != nil {
		return false, d.undo(made, node.Name, fmt.Errorf("create cgroup %s: %w", node.Name, err))
	}
	if !made.whole() {
		if err := d.CheckMemory(node); err != nil {
			return false, fmt.Errorf("set cgroup %s: %w", node.Name, err)
		}
	}
	if err := d.set(ctx, node); err != nil {
		return false, d.undo(made, node.Name, fmt.Errorf("set cgroup %s: %w", node.Name, err))
	}
	return made.whole(), nil
}

// setCPUs writes the CPUs of a cgroup that a walk has observed, if the node has no other value.
// It makes one write and reads no other hierarchy. Speed matters, because a start waits until
// containers with shared CPUs have left its CPUs. It returns false if the write was not possible
// or failed.
func (d *Driver) setCPUs(node cgroup.Node) bool {
	only := cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: node.Values.CPUs}}
	if node.Values.CPUs.IsEmpty() || len(node.Name) == 0 || !node.Values.Equal(&only) {
		return false
	}
	fd, err := d.openInside(node.Name, "cpuset", "cpuset.cpus", unix.O_WRONLY)
	if err != nil {
		return false // the full write creates missing parts, and reports errors
	}
	_, err = again(func() (int, error) { return unix.Write(fd, []byte(node.Values.CPUs.String())) })
	_ = unix.Close(fd)
	return err == nil
}

// Complete creates a cgroup in the hierarchies that lack it. On v2 it also enables all
// controllers in the cgroups above.
func (d *Driver) Complete(name cgroup.Name) error {
	var c creation
	if d.facts.Version == cgroup.V2 {
		return d.createV2(name, &c)
	}
	for i, h := range d.hierarchies {
		if err := d.createIn(i, h, name, &c); err != nil {
			return errno.Classify(err)
		}
	}
	return nil
}

// creation has the results of mkdir in each hierarchy.
type creation struct {
	// made are the numbers of the hierarchies that have it since, as bits.
	made uint64
	// found means that the cgroup existed in another hierarchy.
	found bool
}

// whole reports whether no hierarchy had the cgroup.
func (c creation) whole() bool { return c.made != 0 && !c.found }

// note records the result of mkdir in hierarchy i. It returns other errors than an existing
// directory.
func (c *creation) note(i int, err error) error {
	switch {
	case err == nil:
		c.made |= 1 << i
	case errors.Is(err, fs.ErrExist):
		c.found = true
	default:
		return err
	}
	return nil
}

// undo removes a cgroup that is new and could not be completed: the directories that
// were made, and none that others have made in them since.
func (d *Driver) undo(c creation, name cgroup.Name, err error) error {
	if !c.whole() {
		return err
	}
	for i, h := range d.hierarchies {
		if c.made&(1<<i) == 0 {
			continue
		}
		if left := d.rmdir(h, name); left != nil && !gone(left) {
			return fmt.Errorf("%w (and it could not be removed again: %w)", err, left)
		}
	}
	return err
}

// create creates the cgroup in every hierarchy that lacks it. Most cgroups are absent, so
// creating one is faster than looking for it first.
func (d *Driver) create(name cgroup.Name) (c creation, err error) {
	if len(name) == 0 {
		c.found = true
	} else if d.mkdir(d.hierarchies[0], name) == nil {
		c.made = 1
		return c, d.complete(name, &c)
	}
	state, _, err := d.state(name)
	switch {
	case err != nil:
		return c, err
	case state == cgroup.Valid:
		c.found = true
		return c, nil
	case d.facts.Version == cgroup.V2:
		return c, d.createV2(name, &c)
	}
	for i, h := range d.hierarchies {
		if err := d.createIn(i, h, name, &c); err != nil {
			return c, errno.Classify(err)
		}
	}
	return c, nil
}

// complete makes the rest of a cgroup that is there in the first hierarchy since
// this moment. On v2 there is none, where the parent hands its controllers down.
func (d *Driver) complete(name cgroup.Name, c *creation) error {
	if d.facts.Version == cgroup.V2 {
		if has, err := d.controllers(name); err == nil && len(lacking(d.facts.Controllers, has)) == 0 {
			return nil
		}
		// The last directory is there by now, and that is this call's doing.
		var again creation
		return d.createV2(name, &again)
	}
	if first := d.hierarchies[0]; first.has("cpuset") {
		if err := d.inherit(first, name, true); err != nil {
			return errno.Classify(err)
		}
	}
	for i, h := range d.hierarchies[1:] {
		if err := d.createIn(i+1, h, name, c); err != nil {
			return errno.Classify(err)
		}
	}
	return nil
}

// createIn creates the cgroup, and its missing ancestors, in hierarchy i of v1.
func (d *Driver) createIn(i int, h hierarchy, name cgroup.Name, c *creation) error {
	if len(name) == 0 {
		return nil // the mount point
	}
	err := d.mkdir(h, name)
	if gone(err) {
		var above creation
		if err := d.createIn(i, h, name.Parent(), &above); err != nil {
			return err
		}
		err = d.mkdir(h, name)
	}
	made := err == nil
	if err := c.note(i, err); err != nil || !h.has("cpuset") {
		return err
	}
	return d.inherit(h, name, made)
}

// inherit copies the parent's CPUs and memory nodes to a v1 cgroup that has none, such as a new
// one. Without them it accepts no process. A parent that has none inherits first.
func (d *Driver) inherit(h hierarchy, name cgroup.Name, isNew bool) error {
	parent := name.Parent()
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		if !isNew {
			if text, err := d.read(h, name, file); err != nil {
				return err
			} else if text != "" {
				continue
			}
		}
		text, err := d.read(h, parent, file)
		if err == nil && text == "" && len(name) > 1 {
			if err = d.inherit(h, parent, false); err == nil {
				text, err = d.read(h, parent, file)
			}
		}
		if err == nil {
			err = d.write(h, name, file, text)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// pathsV1 gives the library its absolute directories by controller.
func (t *tree) pathsV1(name cgroup.Name) map[string]string {
	paths := make(map[string]string)
	for _, h := range t.hierarchies {
		for _, c := range h.controllers {
			paths[c] = t.absolute(h, name)
		}
	}
	return paths
}

// createV2 makes the directories from the top down and has each hand all the
// tree's controllers to its children, as the kubelet's library does. Afterwards
// the cgroup must have the needed ones.
func (d *Driver) createV2(name cgroup.Name, c *creation) error {
	var refusals []error
	for depth := range name {
		if err := d.handDown(name[:depth]); err != nil {
			refusals = append(refusals, err)
		}
		var last creation
		if err := last.note(0, d.mkdir(d.hierarchies[0], name[:depth+1])); err != nil {
			return errno.Classify(err)
		}
		if depth == len(name)-1 {
			*c = last
		}
	}
	has, err := d.controllers(name)
	if err != nil {
		return err
	}
	if lacks := lacking(d.needed, has); len(lacks) > 0 {
		return errdefs.Preconditionf("it does not get the controllers %q from above: %w", lacks, errors.Join(refusals...))
	}
	return nil
}

// handDown enables all controllers of a cgroup for its children: all at once, or one by one if
// that fails. The error is for needed controllers that the kernel refused, for example because
// the cgroup has processes.
func (d *Driver) handDown(name cgroup.Name) error {
	h := d.hierarchies[0]
	available, err := d.read(h, name, "cgroup.controllers")
	if err != nil {
		return err
	}
	enabled, err := d.read(h, name, subtreeControl)
	if err != nil {
		return err
	}
	wanted := lacking(strings.Fields(available), strings.Fields(enabled))
	if len(wanted) == 0 || d.write(h, name, subtreeControl, "+"+strings.Join(wanted, " +")) == nil {
		return nil
	}
	var refusals []error
	for _, c := range wanted {
		if err := d.write(h, name, subtreeControl, "+"+c); err != nil && slices.Contains(d.needed, c) {
			refusals = append(refusals, err)
		}
	}
	return errors.Join(refusals...)
}

// set puts the values that are present into force.
func (d *Driver) set(ctx context.Context, node cgroup.Node) error {
	if len(node.Values.Files(d.facts)) == 0 {
		return nil
	}
	if d.setter == nil {
		return errReadOnly
	}
	if d.facts.Version == cgroup.V2 {
		dir := d.absolute(d.hierarchies[0], node.Name)
		err := d.setter.SetV2(node.Values, d.facts, dir)
		if errors.Is(err, fs.ErrNotExist) && d.awaitFiles(node.Name) {
			err = d.setter.SetV2(node.Values, d.facts, dir)
		}
		return errno.Classify(cmp.Or(err, d.setFrozen(node)))
	}
	err := d.migrateWith(node)
	if err == nil {
		quota := value(node.Values.For(d.facts).CPUQuotaUS)
		err = d.setV1(ctx, node.Name, quota, func() error { return d.setter.SetV1(node.Values, d.facts, d.pathsV1(node.Name)) })
	}
	return errno.Classify(cmp.Or(err, d.setFrozen(node)))
}

// migrateWith makes the kernel move the memory of a cgroup's processes with its memory nodes, if they are about to
// change on v1. On v2 it does so from Linux 5.15 on.
func (d *Driver) migrateWith(node cgroup.Node) error {
	h, ok := d.hierarchy("cpuset")
	if node.Values.Mems.IsEmpty() || !ok {
		return nil
	}
	if have, err := d.read(h, node.Name, "cpuset.mems"); err != nil || have == node.Values.Mems.String() {
		return err
	}
	return d.write(h, node.Name, "cpuset.memory_migrate", "1")
}

// awaitFiles waits until a cgroup has the files of its listed controllers, and reports whether a
// retry makes sense. While a controller is being enabled, the kernel lists it before its files
// exist. It lists controllers without its lock and creates the files under the lock. A write that
// enables already enabled controllers takes that lock, so afterwards the files exist.
func (d *Driver) awaitFiles(name cgroup.Name) bool {
	if len(name) == 0 {
		return false // the root has its files from the start
	}
	h, parent := d.hierarchies[0], name.Parent()
	enabled, err := d.read(h, parent, subtreeControl)
	if err != nil || enabled == "" {
		return false
	}
	return d.write(h, parent, subtreeControl, "+"+strings.Join(strings.Fields(enabled), " +")) == nil
}

// subtreeControl is the file that lists what a cgroup of v2 hands down.
const subtreeControl = "cgroup.subtree_control"

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
