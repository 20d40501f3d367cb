package systemd

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strings"

	"github.com/opencontainers/cgroups"
	library "github.com/opencontainers/cgroups/systemd"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/fault"
	"github.com/berthd/berth/server/host/cgroupfs"
	"github.com/berthd/berth/server/host/errno"
)

// Driver is systemd's tree as a cgroup.Tree. It is safe for concurrent use.
type Driver struct {
	files *cgroupfs.Driver
	facts cgroup.Facts
}

var _ cgroup.Tree = (*Driver)(nil)

// Mount is where systemd has the tree.
const Mount = "/sys/fs/cgroup"

// Open finds the tree of a system that runs systemd. Another system, a tree
// elsewhere and the errors of cgroupfs.Open are of class Unsupported. Close the
// driver after its last use.
func Open(o cgroupfs.Options) (*Driver, error) {
	if !library.IsRunningSystemd() {
		return nil, fault.Unsupportedf("open systemd's cgroup tree: systemd not running on this host: there is no directory /run/systemd/system")
	}
	if o.Mount != "" && filepath.Clean(o.Mount) != Mount {
		return nil, fault.Unsupportedf("open systemd's cgroup tree: it is at %s, not at %s", Mount, o.Mount)
	}
	// systemd takes a controller away that none of its units asks for, and gives it
	// back to those that do. It is the only one that it does so with, since
	// accounting asks for the others (kubernetes#137695).
	o.OnDemand = []string{"cpuset"}
	files, err := cgroupfs.Open(o)
	if err != nil {
		return nil, err
	}
	facts := files.Facts()
	facts.Driver = cgroup.Systemd
	return &Driver{files: files, facts: facts}, nil
}

// Facts describes the tree.
func (d *Driver) Facts() cgroup.Facts { return d.facts }

// Close lets go of the tree. The cgroups stay.
func (d *Driver) Close() error { return d.files.Close() }

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

// unit gives a slice in the library's form, with what is wanted there.
func (d *Driver) unit(at cgroup.Name, v cgroup.Values) (cgroups.Manager, *cgroups.Resources, error) {
	resources := cgroupfs.Request(v, d.facts)
	parent := "-.slice"
	if len(at) > 1 {
		parent = at[len(at)-2]
	}
	c := &cgroups.Cgroup{Name: at.Base(), Parent: parent, Systemd: true, Resources: resources}
	var m cgroups.Manager
	var err error
	if d.facts.Version == cgroup.V2 {
		m, err = library.NewUnifiedManager(c, path.Join(Mount, at.ToCgroupfs()))
	} else {
		m, err = library.NewLegacyManager(c, d.files.Paths(at))
	}
	if err != nil {
		return nil, nil, errno.Classify(err)
	}
	return m, resources, nil
}

// Ensure implements cgroup.Tree.
func (d *Driver) Ensure(ctx context.Context, node cgroup.Node) (created bool, err error) {
	at, err := place(node.Name)
	if err != nil {
		return false, err
	}
	if node.Name.IsRoot() || foreign(node.Name.Base()) {
		return false, fault.Invalidf("ensure cgroup %s: it is no slice", node.Name)
	}
	seen, err := d.files.Observe(ctx, at, 0)
	if err != nil {
		return false, err
	}
	before := seen.Find(at).State
	if err := d.ensure(ctx, node, at, before); err != nil {
		if before != cgroup.Absent {
			return false, err
		}
		// What could not be completed is not left half-made.
		if left := d.Remove(context.WithoutCancel(ctx), node.Name); left != nil {
			return false, fmt.Errorf("%w (and it could not be removed again: %w)", err, left)
		}
		return false, err
	}
	return before == cgroup.Absent, nil
}

func (d *Driver) ensure(ctx context.Context, node cgroup.Node, at cgroup.Name, before cgroup.State) error {
	m, resources, err := d.unit(at, node.Values)
	if err != nil {
		return fmt.Errorf("ensure cgroup %s: %w", node.Name, err)
	}
	if before != cgroup.Valid {
		const noProcess = -1
		if err := m.Apply(noProcess); err != nil {
			return fmt.Errorf("create cgroup %s: %w", node.Name, errno.Classify(err))
		}
		// systemd makes the directories of controllers that it knows.
		if _, err := d.files.Ensure(ctx, cgroup.Node{Name: at}); err != nil {
			return err
		}
	}
	if len(node.Values.Files(d.facts)) == 0 {
		return nil
	}
	if err := d.files.CheckMemory(cgroup.Node{Name: at, Values: node.Values}); err != nil {
		return fmt.Errorf("set cgroup %s: %w", node.Name, err)
	}
	refused := m.Set(resources)
	if refused == nil {
		return nil
	}
	// The properties come first and are set by now. What is left are files, and
	// cgroupfs knows what to do about those that depend on each other.
	if _, err := d.files.Ensure(ctx, cgroup.Node{Name: at, Values: node.Values.For(d.facts)}); err != nil {
		return fmt.Errorf("set cgroup %s: %w", node.Name, errors.Join(err, errno.Classify(refused)))
	}
	return nil
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

// Remove implements cgroup.Tree. The processes go first: stopping a slice with its
// units would ask them to end, and wait for whoever does not.
func (d *Driver) Remove(ctx context.Context, n cgroup.Name) error {
	at, err := place(n)
	if err != nil {
		return err
	}
	if n.IsRoot() {
		return fault.Invalidf("remove cgroup %s: the root cannot be removed", n)
	}
	if err := d.files.Remove(ctx, at); err != nil || foreign(n.Base()) {
		return err
	}
	m, _, err := d.unit(at, cgroup.Values{})
	if err == nil {
		err = m.Destroy()
	}
	if err != nil {
		return fmt.Errorf("stop the slice of cgroup %s: %w", n, errno.Classify(err))
	}
	// systemd may have made a directory again in between.
	return d.files.Remove(ctx, at)
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
