package cgroupfs

import (
	"context"
	"fmt"
	"path/filepath"
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

// frozen reads whether the freezer of the cgroup itself stops it; nil if there is
// none. v1's state tells of those above, too.
func (d *Driver) frozen(name cgroup.Name) (*bool, error) {
	r := d.read(name)
	defer r.close()
	frozen := r.frozen()
	return frozen, r.err
}

func (r *reading) frozen() *bool {
	if _, ok := r.d.hierarchy("freezer"); !ok || r.name.IsRoot() {
		return nil
	}
	v1 := r.d.facts.Version == cgroup.V1
	file := freezerV2
	if v1 {
		file = freezerV1
	}
	text, ok := r.text("freezer", file)
	if ok && v1 && text != "THAWED" {
		text, ok = r.text("freezer", selfFreezingV1)
	}
	if !ok {
		return nil
	}
	frozen := text == "1"
	return &frozen
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

// frozenBy is Frozen. v1 says at the cgroup itself that nobody freezes it.
func (d *Driver) frozenBy(name cgroup.Name) (by cgroup.Name, err error) {
	if d.facts.Version == cgroup.V1 && !name.IsRoot() {
		text, err := readFile(d.freezerFile(name))
		if gone(err) || err == nil && strings.TrimSpace(text) == "THAWED" {
			return nil, nil
		}
	}
	for n := name; !n.IsRoot(); n = n.Parent() {
		if frozen, err := d.frozen(n); err != nil || frozen != nil && *frozen {
			return n, err
		}
	}
	return nil, nil
}

// writeFrozen freezes or thaws a cgroup, if that is wanted.
func (d *Driver) writeFrozen(node cgroup.Node) error {
	wanted := cgroup.Values{Frozen: node.Values.Frozen}
	for _, f := range wanted.Files(d.facts) {
		if err := writeFile(d.freezerFile(node.Name), f.Text); err != nil {
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
// those below that somebody else has frozen.
func (d *Driver) freeze(name cgroup.Name) (thaw func()) {
	file, frozen, state, done := freezerV1, "FROZEN", freezerV1, "FROZEN"
	if d.facts.Version == cgroup.V2 {
		file, frozen, state, done = freezerV2, "1", "cgroup.events", "frozen 1"
	}
	h, ok := d.hierarchy("freezer")
	if !ok {
		return func() {}
	}
	path := h.path(name)
	thaw = func() { d.thaw(path) }
	for range freezeReads {
		if d.writeText(path, file, frozen) != nil {
			return thaw
		}
		text, err := d.root.ReadFile(filepath.Join(path, state))
		if err != nil || strings.Contains(string(text), done) {
			return thaw
		}
	}
	return thaw
}

// thaw lets a directory of the freezer go on, and on v1 those below it: there a
// process that is frozen does not die. What cannot be thawed now is met again in the
// next round.
func (d *Driver) thaw(path string) {
	if d.facts.Version == cgroup.V2 {
		_ = d.writeText(path, freezerV2, "0")
		return
	}
	_ = d.writeText(path, freezerV1, "THAWED")
	children, _ := d.subdirectories(path)
	for _, c := range children {
		d.thaw(filepath.Join(path, c))
	}
}
