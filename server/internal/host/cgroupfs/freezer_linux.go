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
func (d *Driver) freezerFile(name cgroup.Name) string {
	h, _ := d.hierarchy("freezer")
	if d.facts.Version == cgroup.V2 {
		return filepath.Join(d.absolute(h, name), freezerV2)
	}
	return filepath.Join(d.absolute(h, name), freezerV1)
}

// freezerState is the file that says whether the freezer of a cgroup itself stops it.
// v1's freezer.state also speaks of those above.
func (d *Driver) freezerState() string {
	if d.facts.Version == cgroup.V2 {
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
		return nil, fmt.Errorf("look at the freezer of cgroup %s: %w", name, err)
	}
	if by, err = d.frozenBy(name); err != nil {
		return nil, fmt.Errorf("look at the freezer of cgroup %s: %w", name, err)
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

// setFrozen freezes or thaws a cgroup, if that is wanted.
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

// freezeReads bounds how often the freezer is asked whether it is done: it is
// quick unless processes keep coming.
const freezeReads = 100

// freeze stops all processes of the cgroup, as far as the kernel manages to, and
// returns what lets them go on, to their deaths if they were killed meanwhile: with
// those below that another program has frozen.
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

// thaw thaws a cgroup, and on v1 those below it: there a process that is frozen does
// not die. What cannot be thawed now is thawed in the next round.
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
