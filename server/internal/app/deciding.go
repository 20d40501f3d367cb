package app

import (
	"context"

	"github.com/berthd/berth/api/access"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/node"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/hintproxy"
	"github.com/berthd/berth/server/internal/mover"
	"github.com/berthd/berth/server/internal/moves"
	"github.com/berthd/berth/server/internal/rpc"
	"github.com/berthd/berth/server/internal/task"
)

// activeManagers are the managers that decide on a view.
type activeManagers struct {
	*managerset.Managers
	ledger *ledger.Ledger
	lock   *admission.Lock
}

// inForce returns the managers that decide now.
func (a activeManagers) inForce() *managerset.Set {
	_, set := a.InForce(a.ledger.View)
	return set
}

// inFlight returns the view with the pods that are being admitted or resized, and the managers that decide on it.
func (a activeManagers) inFlight() (*ledger.View, *managerset.Set) { return a.InForce(a.lock.InFlight) }

// wholeNode returns the manager of the node as a whole that is in force.
func (a activeManagers) wholeNode() *node.Manager { return a.inForce().Node }

// ofView returns the hint bus and the topology manager for a view; nil if none decide on it any more.
func (a activeManagers) ofView(view *ledger.View) (*hint.Bus, *topology.Manager) {
	if p := a.On(view); p != nil {
		return p.Bus, p.Topology
	}
	return nil, nil
}

// ofClaim returns the hint bus and the topology manager for a resource claim; nil if none decide on the view any more.
func (a activeManagers) ofClaim(view *ledger.View, claim *workload.Pod) (*hint.Bus, *topology.Manager, error) {
	if p := a.On(view); p != nil {
		return p.For(claim)
	}
	return nil, nil, nil
}

// cpus is the CPU manager in force, for services that outlive it.
type cpus struct{ active activeManagers }

// Describe implements hint.Describer.
func (c cpus) Describe() hint.Description { return c.active.inForce().CPU.Describe() }

// Allocatable returns the CPUs that may ever be given exclusively.
func (c cpus) Allocatable() cpuset.Set { return c.active.inForce().CPU.Allocatable() }

// deciding is what decides: the engine on the active managers, and what begins moves by itself.
type deciding struct {
	ledger   *ledger.Ledger
	managers activeManagers
	moves    *moves.Moves
	engine   *live.Engine
	access   *rpc.Access
	external *hintproxy.Registry
	mover    *mover.Mover
	replacer *mover.Replacer // nil if lost CPUs and memory are only reported
}

// newDeciding activates the managers and builds the engine on them.
func newDeciding(g *given, s *state, lock *admission.Lock, k *kernel, devs devices) (*deciding, error) {
	managers, err := managerset.NewManagers(s.first, devs.manager, context.WithTimeout)
	if err != nil {
		return nil, err
	}
	d := &deciding{
		ledger: s.ledger, managers: activeManagers{managers, s.ledger, lock}, moves: k.moves,
		access: rpc.NewAccess(selfUID(), g.Config.Access, func(podUID, containerID string) (owner string, ok bool) {
			return ownerOf(s.ledger.View(), podUID, containerID)
		}),
	}
	if d.external, err = newExternal(g, d.managers, d.access, devs.inventory); err != nil {
		return nil, err
	}
	s.ledger.Follow(func(_, _ *ledger.View) { d.external.Wake() })
	d.engine = live.New(admission.New(admission.Config{
		Features: g.Config.WorkloadFeatures(),
		Bounds:   workload.Bounds{Containers: g.Config.Limits.Containers},

		DeferWaits: g.Config.Verdicts.Deferred,
		Resources:  g.Config.Resources(g.Now()),
		Kubelet:    g.Observed != nil,
	}, admission.Parts{
		Ledger: s.ledger, History: s.past, Lock: lock, Managers: d.managers.ofView, ClaimManagers: d.managers.ofClaim,
		CgroupManager: k.loop, Starter: devs.plugins,
		Lives: func(ctx context.Context, uid string) ledger.UnknownLivePod {
			return k.observer.Known(ctx, s.ledger.View(), uid)
		},
		Environment: admission.Environment{
			Now: g.Now, NewID: rpc.NewID, Waits: rpc.EndTurn, Away: rpc.Away, Slot: rpc.Slot,
			WithTimeout: context.WithTimeout, Each: task.Each, Observe: g.Tracer.Steps(stepRecorder{g.Metrics}),
		},
	}), live.Options{BytesPerSecond: g.Config.Moves.BytesPerSecond, Mover: k.moves})
	d.mover = newMover(g, s.ledger, d.engine)
	if g.Config.Hotplug.OnLost == config.LostReplace {
		d.replacer = newReplacer(g, s.ledger, d.engine)
	}
	return d, nil
}

// noGroup is the id that no group has (setgid(2)).
const noGroup = ^uint32(0)

// newExternal adds the ledger's external providers to the built-in ones.
func newExternal(g *given, present activeManagers, roles *rpc.Access, inventory *device.Inventory) (*hintproxy.Registry, error) {
	return hintproxy.New(externalConfig(g.Config), hintproxy.Parts{
		Ledger: present.ledger, Publish: present.SetExternal, Log: g.Log.With("part", "hintproxy"), Now: g.Now,
		Bus: func() []hint.Entry { return present.inForce().Bus.Entries() },
		MayProvide: func(uid uint32, gid *uint32) bool {
			who := rpc.Peer{UID: uid, GID: noGroup}
			if gid != nil {
				who.GID = *gid
			}
			return roles.Allows(who, access.Provider)
		},
		Plugin: func(resource string) bool {
			r, ok := inventory.Snapshot().Resource(resource)
			return ok && r.State != device.Expired
		},
	})
}

// ownerOf returns the owner of a pod, named by its uid or by the id of one of its containers. It
// returns false if there is no such pod, or its owner is unknown.
func ownerOf(view *ledger.View, podUID, containerID string) (owner string, ok bool) {
	if containerID != "" {
		b, ok := view.Binding(containerID)
		if !ok {
			return "", false
		}
		podUID = b.Owner.Pod
	}
	if p, ok := view.Pod(podUID); ok {
		return p.Agent(), true
	}
	if u, ok := view.UnknownLivePod(podUID); ok {
		return u.Agent()
	}
	return "", false
}

// keepLiving returns a function that reports whether a cgroup without a pod in the ledger is kept. Until the agent has
// called SyncPods, its processes may belong to a living pod.
func keepLiving(engine *live.Engine, tree cgroup.Tree) func(context.Context, cgroup.Name) (bool, error) {
	return func(ctx context.Context, name cgroup.Name) (bool, error) {
		if engine.Synced() {
			return false, nil
		}
		pids, err := tree.Procs(ctx, name)
		return len(pids) > 0, err
	}
}

// newMover constructs what carries out the moves of the ledger.
func newMover(g *given, l *ledger.Ledger, engine *live.Engine) *mover.Mover {
	m := mover.New(mover.Config{
		View: l.View, Advance: engine.Advance, Observe: g.Metrics.Moved,
		Log: g.Log.With("part", "mover"), Now: g.Now,
	})
	l.Follow(func(old, new *ledger.View) {
		for _, c := range ledger.Changes(old, new) {
			if c.Kind == ledger.PodChanged && c.Pod.Move != nil {
				m.Wake()
				return
			}
		}
	})
	return m
}

// newReplacer constructs what moves pods that lose something when the machine changes.
func newReplacer(g *given, l *ledger.Ledger, engine *live.Engine) *mover.Replacer {
	r := mover.NewReplacer(mover.ReplacerConfig{
		View: l.View, Plan: engine.PlanReplacement,
		Begin: func(ctx context.Context, to live.Relocation, bytesPerSecond uint64) error {
			return engine.Relocate(history.WithCall(ctx, &history.Call{Name: "Replace", Time: g.Now()}), to, bytesPerSecond)
		},
		Observe: g.Metrics.Replaced, Log: g.Log.With("part", "replacer"), Now: g.Now,
	})
	l.Follow(func(_, _ *ledger.View) { r.Wake() })
	return r
}

// defragmenter makes room for pods.
func defragmenter(g *given, d *deciding) *mover.Defragmenter {
	return &mover.Defragmenter{
		Plan: d.engine.PlanDefragment, Begin: d.engine.Relocate, Cancel: d.engine.CancelMove,
		View: d.ledger.View, Use: d.moves.Use, Now: g.Now, Away: rpc.Away,
	}
}

// ReportMemory implements lifecycle.Memory.
func (d *deciding) ReportMemory(id string, r moves.Report) bool {
	found, used, news := d.moves.ReportMemory(id, r)
	if news && d.replacer != nil {
		d.replacer.Wake() // the pod may move now
	}
	view := d.ledger.View()
	if b, ok := view.Binding(id); ok && used {
		if pod, ok := view.Pod(b.Owner.Pod); ok && pod.Move != nil {
			d.mover.Retry(pod.UID())
		}
	}
	return found
}
