package cgroupfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/cgroups"
	cgroupsv1 "github.com/opencontainers/cgroups/fs"
	cgroupsv2 "github.com/opencontainers/cgroups/fs2"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/fault"
)

// Ensure implements cgroup.Tree.
func (d *Driver) Ensure(ctx context.Context, node cgroup.Node) error {
	if err := node.Name.Check(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("ensure cgroup %s: %w", node.Name, err)
	}
	state, _, err := d.state(node.Name)
	if err != nil {
		return fmt.Errorf("ensure cgroup %s: %w", node.Name, err)
	}
	if state != cgroup.Valid {
		if err := d.create(node.Name); err != nil {
			return d.undo(state, node.Name, fmt.Errorf("create cgroup %s: %w", node.Name, err))
		}
	}
	if err := d.write(ctx, node); err != nil {
		return d.undo(state, node.Name, fmt.Errorf("set cgroup %s: %w", node.Name, err))
	}
	return nil
}

// undo removes a cgroup that was absent before it could not be completed.
func (d *Driver) undo(before cgroup.State, name cgroup.Name, err error) error {
	if before != cgroup.Absent {
		return err
	}
	if left := d.removeDirectories(name); left != nil {
		return fmt.Errorf("%w (and it could not be removed again: %w)", err, left)
	}
	return err
}

// create makes the cgroup in every hierarchy, or what is missing of it.
func (d *Driver) create(name cgroup.Name) error {
	if d.facts.Version == cgroup.V2 {
		return d.createV2(name)
	}
	m, err := cgroupsv1.NewManager(&cgroups.Cgroup{Resources: request(cgroup.Values{}, d.facts)}, d.pathsV1(name))
	if err != nil {
		return unavailable(err)
	}
	const noProcess = -1
	if err := m.Apply(noProcess); err != nil {
		return unavailable(err)
	}
	// The library passes over named hierarchies that it cannot make, and over a
	// unified one that is not where it looks.
	for _, h := range d.hierarchies {
		if err := d.root.MkdirAll(h.path(name), 0o755); err != nil {
			return unavailable(err)
		}
	}
	return nil
}

// pathsV1 gives the library its absolute directories by controller.
func (d *Driver) pathsV1(name cgroup.Name) map[string]string {
	paths := make(map[string]string)
	for _, h := range d.hierarchies {
		for _, c := range h.controllers {
			paths[c] = filepath.Join(d.mount, h.path(name))
		}
	}
	return paths
}

// createV2 makes the directories from the top down and has each hand all the
// tree's controllers to its children, as the kubelet's library does. Afterwards
// the cgroup must have the needed ones.
func (d *Driver) createV2(name cgroup.Name) error {
	var refusals []error
	for depth := range name {
		parent, child := d.hierarchies[0].path(name[:depth]), d.hierarchies[0].path(name[:depth+1])
		if err := d.handDown(parent); err != nil {
			refusals = append(refusals, err)
		}
		if err := d.root.Mkdir(child, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return unavailable(err)
		}
	}
	lacks, err := d.lacks(name)
	if err != nil {
		return err
	}
	if len(lacks) > 0 {
		return fault.Preconditionf("it does not get the controllers %q from above: %w", lacks, errors.Join(refusals...))
	}
	return nil
}

// handDown enables for the children of a cgroup whatever controllers it has and
// does not hand down yet: all at once, else one by one. The error is of the
// needed ones that the kernel refused, as it does while processes are in there.
func (d *Driver) handDown(path string) error {
	const file = "cgroup.subtree_control"
	available, err := d.root.ReadFile(filepath.Join(path, "cgroup.controllers"))
	if err != nil {
		return unavailable(err)
	}
	enabled, err := d.root.ReadFile(filepath.Join(path, file))
	if err != nil {
		return unavailable(err)
	}
	wanted := slices.DeleteFunc(strings.Fields(string(available)), func(c string) bool {
		return slices.Contains(strings.Fields(string(enabled)), c)
	})
	if len(wanted) == 0 || d.writeText(path, file, "+"+strings.Join(wanted, " +")) == nil {
		return nil
	}
	var refusals []error
	for _, c := range wanted {
		if err := d.writeText(path, file, "+"+c); err != nil && slices.Contains(d.needed, c) {
			refusals = append(refusals, err)
		}
	}
	return errors.Join(refusals...)
}

// writeText writes a control file.
func (d *Driver) writeText(path, file, text string) error {
	f, err := d.root.OpenFile(filepath.Join(path, file), os.O_WRONLY, 0)
	if err != nil {
		return unavailable(err)
	}
	_, err = f.WriteString(text)
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return fault.Unavailablef("write %q: %w", text, err)
	}
	return nil
}

// write puts the values that are present into force through the library.
func (d *Driver) write(ctx context.Context, node cgroup.Node) error {
	if len(node.Values.Files(d.facts)) == 0 {
		return nil
	}
	r := request(node.Values, d.facts)
	if d.facts.Version == cgroup.V2 {
		m, err := cgroupsv2.NewManager(&cgroups.Cgroup{Resources: r}, filepath.Join(d.mount, d.hierarchies[0].path(node.Name)))
		if err != nil {
			return unavailable(err)
		}
		return unavailable(m.Set(r))
	}
	m, err := cgroupsv1.NewManager(&cgroups.Cgroup{Resources: r}, d.pathsV1(node.Name))
	if err != nil {
		return unavailable(err)
	}
	return unavailable(d.setV1(ctx, node.Name, r, m.Set))
}

// Request puts values into the library's form, for other drivers that use it.
func Request(v cgroup.Values, f cgroup.Facts) *cgroups.Resources { return request(v, f) }

// Paths gives the library's absolute directories of a cgroup by v1 controller.
func (d *Driver) Paths(name cgroup.Name) map[string]string { return d.pathsV1(name) }

// request puts values into the library's form, in which zero means "leave as it
// is". Device rules and freezing are never asked for.
func request(v cgroup.Values, f cgroup.Facts) *cgroups.Resources {
	v = v.For(f)
	r := &cgroups.Resources{
		SkipDevices:     true,
		SkipFreezeOnSet: true,
		CpuShares:       value(v.CPUShares),
		CpuWeight:       value(v.CPUWeight),
		CpuQuota:        value(v.CPUQuotaUS),
		CpuPeriod:       value(v.CPUPeriodUS),
		Memory:          value(v.MemoryBytes),
		MemorySwap:      value(v.MemorySwapBytes),
		PidsLimit:       v.PIDs,
		CpusetCpus:      v.CPUs.String(),
		CpusetMems:      v.Mems.String(),
		Unified:         v.Unified,
	}
	for size, limit := range v.HugePages {
		if limit < 0 {
			limit = unlimitedHugePages
		}
		r.HugetlbLimit = append(r.HugetlbLimit, &cgroups.HugepageLimit{
			Pagesize: cgroup.HugePageLabel(size), Limit: uint64(limit),
		})
	}
	slices.SortFunc(r.HugetlbLimit, func(a, b *cgroups.HugepageLimit) int { return strings.Compare(a.Pagesize, b.Pagesize) })
	return r
}

// unlimitedHugePages is a number that the kernel cuts to its own largest one.
const unlimitedHugePages = 1<<63 - 1

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
