package app

import (
	"io"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/server/host/cgroupfs"
	"github.com/berthd/berth/server/host/systemd"
)

// openTree opens the cgroup tree that the configuration asks for.
func (a *App) openTree() (cgroup.Tree, cgroup.Facts, error) {
	c := a.Config
	if a.Stage != nil && a.Stage.Tree != nil {
		return a.Stage.Tree, a.Stage.Tree.Facts(), nil
	}
	if c.Cgroups.Tree == config.TreeMemory {
		facts := memtree.V1()
		return memtree.New(facts, a.Machine.CPUs(), a.Machine.NodeMask()).TakeAny(), facts, nil
	}
	options := cgroupfs.Options{Mount: c.Cgroups.Mount}
	if cgroup.Driver(c.Cgroups.Driver) == cgroup.Systemd {
		d, err := systemd.Open(options)
		if err != nil {
			return nil, cgroup.Facts{}, err
		}
		return d, d.Facts(), nil
	}
	d, err := cgroupfs.Open(options)
	if err != nil {
		return nil, cgroup.Facts{}, err
	}
	return d, d.Facts(), nil
}

// checkTree reports whether this machine has the cgroup tree, with its controllers,
// that the configuration asks for. A machine that is made up has none to look at.
func (a *App) checkTree() error {
	if a.Config.Machine != "" || a.Config.Cgroups.Tree == config.TreeMemory {
		return nil
	}
	if a.Config.RuntimeEndpoint != "" {
		// The driver is the runtime's to say. The controllers are the same for both.
		a.Config.Cgroups.Driver = string(cgroup.Cgroupfs)
	}
	tree, _, err := a.openTree()
	if err != nil {
		return err
	}
	if c, ok := tree.(io.Closer); ok {
		return c.Close()
	}
	return nil
}
