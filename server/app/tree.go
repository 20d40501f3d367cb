package app

import (
	"context"
	"io"
	"time"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/server/host/cgroupfs"
	"github.com/berthd/berth/server/host/systemd"
	"github.com/berthd/berth/server/reconcile"
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

// listed gives the cgroups beside those of pods that the configuration names.
func (a *App) listed() (out []reconcile.Listed) {
	c := a.Config.Node
	for _, l := range []struct {
		field, literal string
		plain          bool
	}{
		{"node.systemReservedCgroup", c.SystemReservedCgroup, false}, {"node.kubeReservedCgroup", c.KubeReservedCgroup, false},
		{"node.systemCgroups", c.SystemCgroup, true}, {"node.kubeletCgroups", c.OwnCgroup, true},
		{"node.runtimeCgroups", c.RuntimeCgroup, true}, {"node.agentCgroups", c.AgentCgroup, true},
	} {
		name := a.layout.Driver().Parse(l.literal)
		if l.plain {
			name = cgroup.ParseCgroupfs(l.literal)
		}
		if l.literal != "" && !name.IsRoot() {
			out = append(out, reconcile.Listed{Name: name, Field: l.field, Plain: l.plain})
		}
	}
	return out
}

// plainTree reaches plain directories where the driver makes slices; nil where it makes
// directories itself.
func (a *App) plainTree() (cgroup.Tree, error) {
	if a.layout.Driver() != cgroup.Systemd || a.Config.Cgroups.Tree == config.TreeMemory || a.Stage != nil && a.Stage.Tree != nil {
		return nil, nil
	}
	return cgroupfs.Open(cgroupfs.Options{Mount: a.Config.Cgroups.Mount})
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

// reloadsAgain is how long berthd waits before it watches systemd again, after the bus
// was gone.
const reloadsAgain = 10 * time.Second

// followReloads puts the tree right as soon as systemd has read its units again: by then
// it may have taken values back, and made slices again of pods that have left. Where the
// tree is not systemd's, nothing is watched; where the bus is away, the passes see it.
func (a *App) followReloads(ctx context.Context) error {
	tree, ok := a.tree.(interface {
		Reloads(ctx context.Context, done func()) error
	})
	for ok && ctx.Err() == nil {
		err := tree.Reloads(ctx, func() {
			if err := a.reconcile.Pass(ctx); err != nil && ctx.Err() == nil {
				a.Log.WarnContext(ctx, "reconcile cgroups after a reload of systemd", "error", err)
			}
			a.sweeper.Look(ctx)
		})
		a.Log.DebugContext(ctx, "reloads of systemd are not watched", "again_in", reloadsAgain, "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(reloadsAgain):
		}
	}
	<-ctx.Done()
	return ctx.Err()
}
