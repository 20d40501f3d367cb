package cgroupfs

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/cgroup"
)

// The files of the freezer (Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst,
// and cgroup-v2.rst on cgroup.freeze).
const (
	freezerV1, selfFreezingV1 = "freezer.state", "freezer.self_freezing"
	freezerV2                 = "cgroup.freeze"
)

// freezerFile is where a cgroup is frozen and thawed.
func (t *tree) freezerFile(name cgroup.Name) string {
	h, _ := t.hierarchy("freezer")
	if t.facts.Version == cgroup.V2 {
		return filepath.Join(t.absolute(h, name), freezerV2)
	}
	return filepath.Join(t.absolute(h, name), freezerV1)
}

// freezerState is the file with the freezer state of the cgroup itself. v1's freezer.state also
// depends on the ancestors.
func (t *tree) freezerState() string {
	if t.facts.Version == cgroup.V2 {
		return freezerV2
	}
	return selfFreezingV1
}

// Frozen implements cgroup.Tree.
func (d *Driver) Frozen(ctx context.Context, name cgroup.Name) (by cgroup.Name, err error) {
	if err := name.Check(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("read the freezer state of cgroup %s: %w", name, err)
	}
	if by, err = d.frozenBy(name); err != nil {
		return nil, fmt.Errorf("read the freezer state of cgroup %s: %w", name, err)
	}
	return by, nil
}

// frozenBy is Frozen.
func (d *Driver) frozenBy(name cgroup.Name) (cgroup.Name, error) {
	h, ok := d.hierarchy("freezer")
	if !ok {
		return nil, nil
	}
	for n := name; !n.IsRoot(); n = n.Parent() {
		text, err := d.read(h, n, d.freezerState())
		if err = ignoreGone(err); err != nil || text == "1" {
			return n, err
		}
	}
	return nil, nil
}

// setFrozen freezes or thaws a cgroup, if its values require it.
func (d *Driver) setFrozen(node cgroup.Node) error {
	h, _ := d.hierarchy("freezer")
	wanted := cgroup.Values{Frozen: node.Values.Frozen}
	for _, f := range wanted.Files(d.facts) {
		if err := d.write(h, node.Name, f.Name, f.Text); err != nil {
			return err
		}
	}
	return nil
}

// freezeReads limits the reads of the freezer's state. Freezing is quick unless processes keep
// forking.
const freezeReads = 100

// freeze stops the processes of the cgroup, as far as possible. It returns a function that thaws
// them, including descendants that another program has frozen. Killed processes die only after
// they are thawed.
func (d *Driver) freeze(name cgroup.Name) (thaw func()) {
	file, frozen, state, done := freezerV1, "FROZEN", freezerV1, "FROZEN"
	if d.facts.Version == cgroup.V2 {
		file, frozen, state, done = freezerV2, "1", "cgroup.events", "frozen 1"
	}
	h, ok := d.hierarchy("freezer")
	if !ok {
		return func() {}
	}
	thaw = func() { d.thaw(h, name) }
	for range freezeReads {
		if d.write(h, name, file, frozen) != nil {
			return thaw
		}
		text, err := d.read(h, name, state)
		if err != nil || strings.Contains(text, done) {
			return thaw
		}
	}
	return thaw
}

// thaw thaws a cgroup, and on v1 also its descendants, because a frozen process does not die
// there. A failure is repeated in the next round.
func (d *Driver) thaw(h hierarchy, name cgroup.Name) {
	if d.facts.Version == cgroup.V2 {
		_ = d.write(h, name, freezerV2, "0")
		return
	}
	_ = d.write(h, name, freezerV1, "THAWED")
	children, _ := d.children(h, name)
	for _, c := range children {
		d.thaw(h, append(slices.Clone(name), c))
	}
}
