package systemd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/host/cgroupfs"
	"github.com/berthd/berth/server/internal/host/cgroupfs/ocicgroups"
)

// Driver is systemd's tree as a cgroup.Tree. It is safe for concurrent use.
type Driver struct {
	files   *cgroupfs.Driver
	facts   cgroup.Facts
	manager manager
}

var _ cgroup.Tree = (*Driver)(nil)

// Mount names where systemd has the tree.
const Mount = "/sys/fs/cgroup"

// running is there on a system that was booted with systemd (sd_booted(3)).
const running = "/run/systemd/system"

const sliceSuffix = ".slice"

// Open opens the tree of a system that runs systemd. Another system, another mount point and the
// errors of cgroupfs.Open are of class Unsupported. Close the driver after its last use.
func Open(o cgroupfs.Options) (*Driver, error) {
	if info, err := os.Lstat(running); err != nil || !info.IsDir() {
		return nil, errdefs.Unsupportedf("open systemd's cgroup tree: systemd not running on this host: there is no directory %s", running)
	}
	if o.Mount != "" && filepath.Clean(o.Mount) != Mount {
		return nil, errdefs.Unsupportedf("open systemd's cgroup tree: it is at %s, not at %s", Mount, o.Mount)
	}
	// systemd disables a controller that none of its units requests, and enables it again for
	// units that do. This affects only cpuset, because accounting requests the other controllers
	// (kubernetes#137695).
	o.OnDemand, o.Setter = []string{"cpuset"}, ocicgroups.Setter{}
	files, err := cgroupfs.Open(o)
	if err != nil {
		return nil, err
	}
	facts := files.Facts()
	facts.Driver = cgroup.Systemd
	return &Driver{files: files, facts: facts, manager: newBus()}, nil
}

// Facts describes the tree.
func (d *Driver) Facts() cgroup.Facts { return d.facts }

// Close closes the tree. The cgroups stay.
func (d *Driver) Close() error { return errors.Join(d.manager.Close(), d.files.Close()) }

// foreignSuffixes end the names of units that are no slices and have a cgroup.
var foreignSuffixes = []string{".scope", ".service", ".socket", ".mount", ".swap"}

func foreign(component string) bool {
	for _, s := range foreignSuffixes {
		if strings.HasSuffix(component, s) {
			return true
		}
	}
	return false
}

// place gives the directories of a cgroup.
func place(name cgroup.Name) (cgroup.Name, error) {
	if err := name.Check(); err != nil {
		return nil, err
	}
	slices, rest := name, cgroup.Name(nil)
	for i, c := range name {
		if foreign(c) {
			slices, rest = name[:i], name[i:]
			break
		}
	}
	literal, err := slices.ToSystemd()
	if err != nil {
		return nil, err
	}
	return append(cgroup.ParseCgroupfs(literal), rest...), nil
}

// name reads the name of a directory below a cgroup.
func name(parent cgroup.Name, component string) cgroup.Name {
	if cgroup.IsSystemdStyle(component) {
		return cgroup.ParseSystemd(component)
	}
	return append(parent[:len(parent):len(parent)], component)
}

// parent names the unit above a slice.
func parent(at cgroup.Name) string {
	if len(at) > 1 {
		return at[len(at)-2]
	}
	return "-.slice"
}

// Ensure implements cgroup.Tree. A scope, which is a runtime's, gets its values and is never made.
func (d *Driver) Ensure(ctx context.Context, node cgroup.Node) (created bool, err error) {
	at, err := place(node.Name)
	if err != nil {
		return false, err
	}
	scope := strings.HasSuffix(node.Name.Base(), ".scope")
	if node.Name.IsRoot() || foreign(node.Name.Base()) && !scope {
		return false, errdefs.Invalidf("ensure cgroup %s: it is no slice", node.Name)
	}
	seen, err := d.files.Observe(ctx, at, 0)
	if err != nil {
		return false, err
	}
	within, cancel := timeout(ctx)
	defer cancel()
	before := seen.Find(at).State
	if scope {
		// A runtime has made it, as of a sandbox: it gets values and is never made again.
		if before == cgroup.Absent {
			return false, errdefs.NotFoundf("ensure cgroup %s: the scope has ended", node.Name)
		}
		return false, d.set(within, at, node.Values, before)
	}
	created, err = d.start(within, at, before)
	if err == nil {
		err = d.set(within, at, node.Values, before)
	}
	if err == nil {
		return created, nil
	}
	err = fmt.Errorf("ensure cgroup %s: %w", node.Name, err)
	if created {
		// What could not be completed is not left half-made.
		if left := d.Remove(context.WithoutCancel(ctx), node.Name); left != nil {
			return false, fmt.Errorf("%w (and it could not be removed again: %w)", err, left)
		}
	}
	return false, err
}

// start makes sure that the slice of a cgroup runs and that its directories are
// there. It was created if systemd made the unit and there was no directory.
func (d *Driver) start(ctx context.Context, at cgroup.Name, before cgroup.State) (created bool, err error) {
	unit := at.Base()
	if before != cgroup.Absent {
		active, err := d.manager.Active(ctx, unit)
		if err != nil || active[unit] && before == cgroup.Valid {
			return false, err
		}
	}
	made, err := d.manager.Create(ctx, unit, beginning(parent(at), d.facts))
	if err == nil && !made {
		err = d.manager.Start(ctx, unit) // nothing where it runs
	}
	if err != nil {
		return false, err
	}
	created = made && before == cgroup.Absent
	// systemd creates the directories of the controllers that it supports, and enables those that
	// its units request.
	return created, d.files.Complete(at)
}

// set applies values. Properties are set first, so that systemd does not reset the files. A slice
// that was stopped since it was observed is started again, with its ancestors.
func (d *Driver) set(ctx context.Context, at cgroup.Name, v cgroup.Values, before cgroup.State) error {
	if len(v.Files(d.facts)) == 0 {
		return nil
	}
	node := cgroup.Node{Name: at, Values: v.For(d.facts)}
	if before != cgroup.Absent {
		if err := d.files.CheckMemory(node); err != nil {
			return err
		}
	}
	version, err := d.manager.Version(ctx)
	if err != nil {
		return err
	}
	if wanted := properties(v, d.facts, version); len(wanted) > 0 {
		err = d.manager.Set(ctx, at.Base(), wanted)
		if errors.Is(err, errNoUnit) && !foreign(at.Base()) {
			for i := range at {
				if _, err := d.start(ctx, at[:i+1], cgroup.Invalid); err != nil {
					return err
				}
			}
			err = d.manager.Set(ctx, at.Base(), wanted)
		}
		if err != nil {
			return err
		}
	}
	_, err = d.files.Ensure(ctx, node)
	return err
}

// Observe implements cgroup.Tree.
func (d *Driver) Observe(ctx context.Context, n cgroup.Name, depth int) (*cgroup.Snapshot, error) {
	at, err := place(n)
	if err != nil {
		return nil, err
	}
	seen, err := d.files.Observe(ctx, at, depth)
	if err != nil {
		return nil, err
	}
	seen.Facts = d.facts
	if depth < 0 {
		d.compareUnits(ctx, at, seen)
	}
	names := map[string]cgroup.Name{at.String(): n}
	for i := range seen.Nodes {
		o := &seen.Nodes[i]
		found, ok := names[o.Name.String()]
		if !ok {
			found = name(names[o.Name.Parent().String()], o.Name.Base())
			names[o.Name.String()] = found
		}
		o.Name = found
	}
	return seen, nil
}

// Missing lists the directories of a slice that Ensure would make.
func (d *Driver) Missing(n cgroup.Name) ([]string, error) {
	at, err := place(n)
	if err != nil {
		return nil, err
	}
	return d.files.Missing(at)
}

// compareUnits marks stopped slices as invalid whose directory still exists. It is called when a
// whole subtree is observed. While systemd does not respond, only the files count.
func (d *Driver) compareUnits(ctx context.Context, at cgroup.Name, seen *cgroup.Snapshot) {
	patterns := []string{"*" + sliceSuffix}
	if len(at) > 0 {
		top := strings.TrimSuffix(at.Base(), sliceSuffix)
		patterns = []string{at.Base(), top + "-*" + sliceSuffix}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, probeTimeout, errSilent)
	defer cancel()
	active, err := d.manager.Active(ctx, patterns...)
	if err != nil {
		return
	}
	for i := range seen.Nodes {
		o := &seen.Nodes[i]
		unit := o.Name.Base()
		if o.State == cgroup.Valid && cgroup.IsSystemdStyle(unit) && !active[unit] {
			o.State, o.Reason = cgroup.Invalid, "has a slice that was stopped: "+unit
		}
	}
}

// Move implements cgroup.Tree.
func (d *Driver) Move(ctx context.Context, n cgroup.Name, pids ...int) error {
	at, err := place(n)
	if err != nil {
		return err
	}
	return d.files.Move(ctx, at, pids...)
}

// Procs implements cgroup.Tree.
func (d *Driver) Procs(ctx context.Context, n cgroup.Name) ([]int, error) {
	at, err := place(n)
	if err != nil {
		return nil, err
	}
	return d.files.Procs(ctx, at)
}

// Frozen implements cgroup.Tree.
func (d *Driver) Frozen(ctx context.Context, n cgroup.Name) (by cgroup.Name, err error) {
	at, err := place(n)
	if err != nil {
		return nil, err
	}
	if by, err = d.files.Frozen(ctx, at); err != nil || by == nil {
		return nil, err
	}
	return n[:len(by)], nil
}

// Remove implements cgroup.Tree. The processes are killed first. Stopping a slice would terminate
// them gently, and wait for those that do not exit.
func (d *Driver) Remove(ctx context.Context, n cgroup.Name) error {
	at, err := place(n)
	if err != nil {
		return err
	}
	if n.IsRoot() {
		return errdefs.Invalidf("remove cgroup %s: the root cannot be removed", n)
	}
	if err := d.files.Remove(ctx, at); err != nil || foreign(n.Base()) {
		return err
	}
	within, cancel := timeout(ctx)
	defer cancel()
	if err := d.manager.Stop(within, at.Base()); err != nil && !errors.Is(err, errNoUnit) {
		return fmt.Errorf("remove cgroup %s: %w", n, err)
	}
	// systemd may have made a directory again in between.
	return d.files.Remove(ctx, at)
}

var _ cgroup.Meter = (*Driver)(nil)

// Usage implements cgroup.Meter.
func (d *Driver) Usage(ctx context.Context, n cgroup.Name) (cgroup.Usage, error) {
	at, err := place(n)
	if err != nil {
		return cgroup.Usage{}, err
	}
	return d.files.Usage(ctx, at)
}

// Details implements cgroup.Meter.
func (d *Driver) Details(ctx context.Context, n cgroup.Name) (cgroup.Details, error) {
	at, err := place(n)
	if err != nil {
		return cgroup.Details{}, err
	}
	return d.files.Details(ctx, at)
}

var _ cgroup.Records = (*Driver)(nil)

// ReadRecord implements cgroup.Records.
func (d *Driver) ReadRecord(ctx context.Context, n cgroup.Name) ([]byte, error) {
	at, err := place(n)
	if err != nil {
		return nil, err
	}
	return d.files.ReadRecord(ctx, at)
}

// WriteRecord implements cgroup.Records.
func (d *Driver) WriteRecord(ctx context.Context, n cgroup.Name, record []byte) error {
	at, err := place(n)
	if err != nil {
		return err
	}
	return d.files.WriteRecord(ctx, at, record)
}
