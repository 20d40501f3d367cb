package app

import (
	"context"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/qos"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/host/cgroupfs"
	"github.com/berthd/berth/server/internal/host/numamaps"
	"github.com/berthd/berth/server/internal/moves"
	"github.com/berthd/berth/server/internal/observer"
	"github.com/berthd/berth/server/internal/reconcile"
	"github.com/berthd/berth/server/internal/system"
)

// podTree says where the cgroups of pods lie, and what their values depend on.
type podTree struct {
	tree   cgroup.Tree
	layout cgroup.Layout
	qos    qos.Config // independent of the policy, without the allocatable amounts
	perQOS bool       // pods have cgroups of their own
}

// kernel is the side of the kernel: the tree of cgroups, and what keeps it equal to the ledger.
type kernel struct {
	podTree
	loop     *reconcile.Loop
	observer *observer.Observer
	moves    *moves.Moves
	limits   atomic.Pointer[reconcile.Limits]
	records  *recordFiles // nil where the kernel keeps claim records
	// system are the processes that the last round of the system cgroups found.
	system atomic.Pointer[[]*nodev1.SystemContainer]
}

// newKernel opens the cgroup tree and constructs the reconciler. driver is the container runtime's, or else the configured one; client
// is nil without a runtime.
func newKernel(ctx context.Context, g *given, s *state, lock *admission.Lock, client system.Runtime, driver cgroup.Driver,
	opened *closers) (*kernel, error) {
	c := g.Config
	p, err := openPodTree(g, s.found, driver)
	if err != nil {
		return nil, err
	}
	g.Metrics.CgroupVersion(p.qos.Cgroup.Facts.Version)
	limits, err := p.limitsOf(ctx, s.first)
	if err != nil {
		return nil, err
	}
	score, err := setScore(c)
	if err != nil {
		return nil, err
	}
	var records cgroup.Records
	var files *recordFiles
	if g.Observed == nil {
		records, files, err = openRecords(ctx, g, p.tree, p.layout, opened)
	}
	if err != nil {
		return nil, err
	}
	parts := reconcile.Config{
		Records: records, NoPodCgroups: !p.perQOS,
		Failpoint: g.Failpoint,
		Tree:      p.tree, Layout: p.layout, Limits: limits,
		DriftPolicy: reconcile.DriftPolicy(c.Cgroups.DriftPolicy),
		View:        s.ledger.View, InFlight: lock.InFlight, Bindings: lock,
		Every: c.Cgroups.ReconcilePeriod.Duration,
		Now:   g.Now, SetScore: score,
		Log:     g.Log.With("part", "reconcile"),
		Observe: g.Metrics.Pass, Timed: g.Metrics.Cgroup,
		Listed: listed(c, p.layout.Driver()),
	}
	if c.KernelCgroups() {
		parts.StillThere = stillThere(os.DirFS("/proc"))
	}
	if client != nil {
		parts.Runtime = client
	}
	if p.layout.Driver() == cgroup.Systemd && c.KernelCgroups() && (g.Stage == nil || g.Stage.Tree == nil) {
		// Plain directories, where the driver makes slices.
		if parts.Plain, err = cgroupfs.Open(cgroupOptions(g.System, c)); err != nil {
			return nil, err
		}
	}
	loop := reconcile.New(parts)
	k := &kernel{
		podTree: p, loop: loop, records: files,
		observer: &observer.Observer{
			Tree: p.tree, Layout: p.layout, Records: records, Unseen: !keepsPods(c), Now: g.Now, Log: parts.Log,
		},
		moves: moves.New(moves.Config{Loop: loop, Reported: memoryIsReported(c), HugePages: hugePages(c, g.Reader)}),
	}
	k.limits.Store(&limits)
	s.ledger.Follow(func(_, _ *ledger.View) { loop.Wake() })
	s.ledger.Follow(k.moves.Committed)
	return k, nil
}

// memoryIsReported returns whether agents report where the memory of containers is. A tree in memory does not show
// it, except on a simulated machine, on which no container has memory.
func memoryIsReported(c config.Config) bool {
	return !c.KernelCgroups() && (c.Machine == "" || c.Beside == config.Kubelet)
}

// hugePages has what moves of running containers with huge pages need.
func hugePages(c config.Config, conn *os.File) (out moves.HugePages) {
	out.Move = c.Moves.HugePages
	if conn != nil {
		reader := numamaps.NewClient(conn)
		out.Check, out.Read = reader.Check, reader.Read
	} else if out.Move && c.KernelCgroups() {
		out.Move = false // a berthd that main has not started
	}
	if c.Machine == "" {
		out.Free = freeHugeBytes
	}
	return out
}

// freeHugeBytes implements moves.HugePages.
func freeHugeBytes() (cgroup.HugeBytes, error) {
	nodes, err := freeHugePages()
	out := cgroup.HugeBytes{}
	for _, n := range nodes {
		for _, p := range n.HugePages {
			out.Add(cgroup.HugeBytes{int64(p.SizeKiB << 10): {n.ID: p.SizeKiB << 10 * p.Count}})
		}
	}
	return out, err
}

// openPodTree opens the cgroup tree that the configuration requests.
func openPodTree(g *given, m *machine.Topology, driver cgroup.Driver) (p podTree, err error) {
	c := g.Config
	var facts cgroup.Facts
	switch {
	case g.Stage != nil && g.Stage.Tree != nil:
		p.tree, facts = g.Stage.Tree, g.Stage.Tree.Facts()
	case !c.KernelCgroups():
		facts = memtree.V1()
		if g.Observed != nil {
			facts.Driver = driver
		}
		p.tree = memtree.New(facts, m.CPUs(), m.MemoryNodeMask()).TakeAny()
	default:
		if p.tree, facts, err = openTree(g.System, c, driver); err != nil {
			return p, err
		}
	}
	if p.qos, err = c.QoSConfig(facts, int64(m.MemoryBytes())); err != nil {
		return p, err
	}
	if p.qos.Cgroup.SwapBytes, err = swapBytes(c); err != nil {
		return p, err
	}
	p.perQOS = c.Cgroups.PerQOS
	p.layout, err = cgroup.NewLayout(c.Cgroups.Root, facts.Driver)
	return p, err
}

// openTree opens the kernel's tree of cgroups.
func openTree(s system.System, c config.Config, driver cgroup.Driver) (cgroup.Tree, cgroup.Facts, error) {
	if driver == cgroup.Systemd {
		d, err := s.Slices(cgroupOptions(s, c))
		if err != nil {
			return nil, cgroup.Facts{}, err
		}
		return d, d.Facts(), nil
	}
	d, err := cgroupfs.Open(cgroupOptions(s, c))
	if err != nil {
		return nil, cgroup.Facts{}, err
	}
	return d, d.Facts(), nil
}

func cgroupOptions(s system.System, c config.Config) cgroupfs.Options {
	return cgroupfs.Options{Mount: c.Cgroups.Mount, Setter: s.Setter}
}

// listed returns the configured cgroups that are not pods'.
func listed(cfg config.Config, driver cgroup.Driver) (out []reconcile.Listed) {
	c := cfg.Node
	for _, l := range []struct {
		field, literal string
		plain          bool
	}{
		{"node.systemReservedCgroup", c.SystemReservedCgroup, false}, {"node.kubeReservedCgroup", c.KubeReservedCgroup, false},
		{"node.systemCgroups", c.SystemCgroup, true}, {"node.kubeletCgroups", c.OwnCgroup, true},
		{"node.runtimeCgroups", c.RuntimeCgroup, true}, {"node.agentCgroups", c.AgentCgroup, true},
	} {
		name := driver.Parse(l.literal)
		if l.plain {
			name = cgroup.ParseCgroupfs(l.literal)
		}
		if l.literal != "" && !name.IsRoot() {
			out = append(out, reconcile.Listed{Name: name, Field: l.field, Plain: l.plain})
		}
	}
	return out
}

// limitsOf returns what the cgroups get that follow from the managers and not from
// pods.
func (p *podTree) limitsOf(ctx context.Context, set *managerset.Set) (reconcile.Limits, error) {
	top := set.Node.PodsNode(p.layout)
	limits := reconcile.Limits{QoS: p.qos, Pods: top.Values}
	limits.QoS.Cgroup.MemoryBytes = int64(set.Rules.Machine.MemoryBytes())
	limits.QoS.Cgroup.AllocatableMemoryBytes = set.Node.Absolute()[workload.Memory]
	var err error
	if limits.Reserved, err = set.Node.ReservedNodes(p.qos.Cgroup.Facts.Driver); err != nil {
		return limits, err
	}
	if !p.perQOS && !top.Name.IsRoot() {
		limits.Reserved = append(limits.Reserved, top)
	}
	// In a container the tree may have fewer CPUs than the machine.
	root, err := p.tree.Observe(ctx, nil, 0)
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

// setLimits puts limits into force.
func (k *kernel) setLimits(limits reconcile.Limits) {
	k.limits.Store(&limits)
	k.loop.SetLimits(limits)
}

// containerConfig is what the values of containers depend on now.
func (k *kernel) containerConfig() cgroup.Config { return k.limits.Load().QoS.Cgroup }

// podRoot is the cgroup that pods lie in: that of all pods, or the configured root where
// pods have none of their own.
func (p *podTree) podRoot() cgroup.Name {
	if !p.perQOS {
		return p.layout.Root()
	}
	return p.layout.Pods()
}

// reloadsAgain is the delay before systemd is watched again after the bus was lost.
const reloadsAgain = 10 * time.Second

// followReloads runs a pass after each reload of systemd. A reload can reset values, and can
// create slices of removed pods again. Without systemd's tree there is nothing to watch. While
// the bus is unavailable, the periodic passes find the changes.
func followReloads(ctx context.Context, in cgroup.Tree, loop *reconcile.Loop, sweeper *reconcile.Sweeper, log *slog.Logger) error {
	tree, ok := in.(interface {
		Reloads(ctx context.Context, done func()) error
	})
	for ok && ctx.Err() == nil {
		err := tree.Reloads(ctx, func() {
			if err := loop.Pass(ctx); err != nil && ctx.Err() == nil {
				log.WarnContext(ctx, "reconciling cgroups after a reload of systemd failed", "error", err)
			}
			sweeper.Look(ctx)
		})
		log.DebugContext(ctx, "reloads of systemd are not watched", "again_in", reloadsAgain, "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(reloadsAgain):
		}
	}
	<-ctx.Done()
	return ctx.Err()
}
