package app

import (
	"context"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/node"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/reconcile"
)

// managerSetOf makes the managers that a configuration asks for.
func (a *App) managerSetOf(c config.Config) (*managerset.Set, error) {
	cfg, err := c.ManagerSet(a.Machine)
	if err != nil {
		return nil, err
	}
	cfg.Facts = a.facts
	if check := c.Memory.CheckFreeHugePages; check != config.PagesIgnore && c.Machine == "" {
		cfg.Pages = &memory.Pages{Free: freePages, Running: a.runs, Wait: check == config.PagesDefer}
	}
	return managerset.New(cfg, a.Machine)
}

// limitsOf returns what the cgroups get that follow from the managers and not from
// pods.
func (a *App) limitsOf(ctx context.Context, p *managerset.Set) (reconcile.Limits, error) {
	top := p.Node.PodsNode(a.layout)
	limits := reconcile.Limits{QoS: a.qos, Pods: top.Values}
	limits.QoS.Cgroup.AllocatableMemoryBytes = p.Node.Absolute()[workload.Memory]
	var err error
	if limits.Reserved, err = p.Node.ReservedNodes(a.qos.Cgroup.Facts.Driver); err != nil {
		return limits, err
	}
	if !a.Config.Cgroups.PerQOS && !top.Name.IsRoot() {
		limits.Reserved = append(limits.Reserved, top)
	}
	// In a container the tree may have fewer CPUs than the machine.
	root, err := a.tree.Observe(ctx, nil, 0)
	if err != nil {
		return limits, err
	}
	if has := root.Find(nil).Effective.CPUs; !has.IsEmpty() {
		limits.Pods.CPUs = limits.Pods.CPUs.Intersect(has)
		for i := range limits.Reserved {
			v := &limits.Reserved[i].Values
			v.CPUs = v.CPUs.Intersect(has)
		}
	}
	return limits, nil
}

// containerConfig is what the values of containers depend on now.
func (a *App) containerConfig() cgroup.Config { return a.limits.Load().QoS.Cgroup }

// inForce returns the managers that decide now.
func (a *App) inForce() *managerset.Set { return a.Managers.On(a.Ledger.View()) }

// wholeNode returns the manager of the node as a whole that is in force.
func (a *App) wholeNode() *node.Manager { return a.inForce().Node }

// managers returns who decides on a view.
func (a *App) managers(view *ledger.View) (*hint.Bus, *topology.Manager) {
	p := a.Managers.On(view)
	return p.Bus, p.Topology
}

// cpus is the CPU manager in force, for services that outlive it.
type cpus struct{ app *App }

// Describe implements hint.Describer.
func (c cpus) Describe() hint.Description { return c.app.inForce().CPU.Describe() }

// Allocatable returns the CPUs that may ever be given exclusively.
func (c cpus) Allocatable() cpuset.Set { return c.app.inForce().CPU.Allocatable() }
