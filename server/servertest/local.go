package servertest

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/claimrecord"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/node"
	"github.com/berthd/berth/managers/recovery"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/moves"
	rpcadmission "github.com/berthd/berth/server/internal/rpc/admission"
	"github.com/berthd/berth/server/internal/rpc/allocation"
	"github.com/berthd/berth/server/internal/rpc/inprocess"
	"github.com/berthd/berth/server/internal/rpc/lifecycle"
	rpcnode "github.com/berthd/berth/server/internal/rpc/node"
)

// Local makes berthds that consist of what decides and answers: the ledger, the managers, the engine, and the services of agents. A
// call runs in the goroutine of its caller. There are no sockets, no files, no cgroups, no device plugins and no goroutines but those of
// streams, so that thousands of histories with restarts take seconds, and testing/synctest can have the clock.
type Local struct {
	config   config.Config
	machine  *machine.Topology
	managers *managerset.Set
	cgroup   cgroup.Config
}

// NewLocal reads a configuration, of which a machine of a shape, the policies and the limits matter.
func NewLocal(c config.Config) (*Local, error) {
	snapshot, err := machine.ParseShape(c.Machine)
	if err != nil {
		return nil, err
	}
	l := &Local{config: c}
	if l.machine, err = machine.New(snapshot); err != nil {
		return nil, err
	}
	set, err := c.ManagerSet(l.machine)
	if err != nil {
		return nil, err
	}
	if l.managers, err = managerset.New(set, l.machine); err != nil {
		return nil, err
	}
	qos, err := c.QoSConfig(memtree.V1(), int64(l.machine.MemoryBytes()))
	l.cgroup = qos.Cgroup
	return l, err
}

// Daemon is a berthd that a Local has started. It is a connection to itself.
type Daemon struct {
	*inprocess.Connection
	Ledger  *ledger.Ledger
	engine  *live.Engine
	local   *Local
	journal *ledgertest.Journal
	history *allocation.History
	// records are the claim records of pods that the ledger does not have.
	records map[string][]byte
}

// Start starts a berthd with an empty ledger.
func (l *Local) Start(ctx context.Context) (*Daemon, error) {
	return l.open(ctx, ledgertest.NewJournal())
}

// Restart ends a berthd, which has ended its streams then, and starts another one with its ledger.
func (d *Daemon) Restart(ctx context.Context) (*Daemon, error) {
	d.Stop()
	next, err := d.local.open(ctx, d.journal.Reopen())
	if err == nil {
		next.records = d.records
	}
	return next, err
}

// Lose ends a berthd, and starts another one with an empty ledger and those claim records that are kept. With uncertain, which is the
// reason, it does not know which pods live. The cgroups are the kubelet's, so it sees no processes.
func (d *Daemon) Lose(ctx context.Context, uncertain string, keeps func(uid string) bool) (*Daemon, error) {
	d.Stop()
	records, err := d.claimRecords(keeps)
	if err != nil {
		return nil, err
	}
	next, err := d.local.open(ctx, ledgertest.NewJournal())
	if err != nil {
		return nil, err
	}
	next.records = records
	view := next.Ledger.View()
	in := recovery.Input{View: view, BootID: view.BootID(), Unseen: true, Now: time.Now()}
	for uid, data := range records {
		r, err := claimrecord.Decode(uid, data)
		if err != nil {
			return nil, err
		}
		in.Observed = append(in.Observed, recovery.Observation{
			UID: uid, QoS: r.QoS, Record: recovery.Whole, Claims: r, Processes: recovery.Unseen,
		})
	}
	plan := recovery.Decide(in)
	_, err = next.Ledger.Update(ctx, func(d *ledger.Draft) error { plan.Apply(d); d.SetUncertain(uncertain); return nil })
	return next, err
}

// claimRecords returns the claim records that are kept of those that there are: of each pod, and of unadmitted pods as they were found.
func (d *Daemon) claimRecords(keeps func(uid string) bool) (map[string][]byte, error) {
	view, out := d.Ledger.View(), map[string][]byte{}
	for uid, data := range d.records {
		if _, unadmitted := view.UnknownLivePod(uid); unadmitted && keeps(uid) {
			out[uid] = data
		}
	}
	for p := range view.Pods() {
		if !keeps(p.UID()) {
			continue
		}
		r := claimrecord.New(view, p, p.ChangedGeneration)
		data, err := r.Encode()
		if err != nil {
			return nil, err
		}
		out[p.UID()] = data
	}
	return out, nil
}

// Stop ends all streams.
func (d *Daemon) Stop() {
	d.history.Close()
	d.End()
}

// Advance makes the next step of each move: no goroutine does.
func (d *Daemon) Advance(ctx context.Context) (err error) {
	for p := range d.Ledger.View().Pods() {
		if p.Move != nil {
			_, failed := d.engine.Advance(ctx, p.UID(), false)
			err = errors.Join(err, failed)
		}
	}
	return err
}

// epochs numbers the ledgers of this process: the revisions of a later one are higher.
var epochs struct {
	sync.Mutex
	last uint64
}

func nextEpoch() uint64 {
	epochs.Lock()
	defer epochs.Unlock()
	epochs.last++
	return epochs.last
}

// open constructs a berthd, as server/internal/app does.
func (l *Local) open(ctx context.Context, j *ledgertest.Journal) (*Daemon, error) {
	epoch := nextEpoch()
	opened, _, err := journal.Open(ctx, journal.Options{
		Journal: j, Rules: l.managers.Rules, Epoch: epoch, EpochID: ledger.EpochID(epoch),
		NewEpochID: func() ledger.EpochID { return ledger.EpochID(nextEpoch()) },
	})
	if err != nil {
		return nil, err
	}
	if opened.View().Generation() == 0 {
		if _, err := opened.SetRules(ctx, l.managers.Rules); err != nil {
			return nil, err
		}
	}
	inventory := device.NewInventory(nil, time.Now())
	devices := device.New(inventory, nil)
	sets, err := managerset.NewManagers(l.managers, devices, nil)
	if err != nil {
		return nil, err
	}
	ids := 0
	engine := live.New(admission.New(admission.Config{
		Features: l.config.WorkloadFeatures(), Bounds: workload.Bounds{Containers: l.config.Limits.Containers},
		DeferWaits: l.config.Verdicts.Deferred, Resources: l.config.Resources(time.Now()), Tries: -1,
	}, admission.Parts{
		Ledger:   opened,
		Managers: func(v *ledger.View) (*hint.Bus, *topology.Manager) { s := sets.On(v); return s.Bus, s.Topology },
		ClaimManagers: func(v *ledger.View, pod *workload.Pod) (*hint.Bus, *topology.Manager, error) {
			return sets.On(v).For(pod)
		},
		CgroupManager: noCgroups{}, Starter: noCgroups{},
		Environment: admission.Environment{Now: time.Now, NewID: func() string { ids++; return "id-" + strconv.Itoa(ids) }},
	}), live.Options{})
	events := allocation.NewHistory(l.config.Limits.WatchEvents, devices)
	events.Start(opened.View())
	opened.Follow(events.Committed)
	d := &Daemon{Connection: inprocess.New(nil), Ledger: opened, engine: engine, local: l, journal: j, history: events}
	read := convert.Reader{Features: l.config.WorkloadFeatures(), Bounds: workload.Bounds{Containers: l.config.Limits.Containers}}
	admissionv1.RegisterAdmissionServiceServer(d, rpcadmission.New(engine, opened, read, noCgroups{}, nil))
	allocationv1.RegisterAllocationServiceServer(d, allocation.New(
		allocation.Config{Read: read, Cgroup: func() cgroup.Config { return l.cgroup }},
		allocation.Parts{Engine: engine, Noter: engine, Ledger: history.Ledger{Ledger: opened},
			Paths: noCgroups{}, Inventory: devices, History: events}))
	lifecyclev1.RegisterLifecycleServiceServer(d, lifecycle.New(engine, opened, noCgroups{}))
	nodev1.RegisterNodeServiceServer(d, rpcnode.New(rpcnode.Parts{
		Machine: func() *machine.Topology { return l.machine }, Ledger: history.Ledger{Ledger: opened},
		Node: func() *node.Manager { return sets.On(opened.View()).Node },
		Claims: func() ([]managerset.ClaimNode, bool) {
			set := sets.On(opened.View())
			return set.ClaimNodes(opened.View()), set.Rules.OnePool
		},
		Config: &nodev1.GetConfigResponse{
			DevicesUnknown:   convert.EnumOf[nodev1.UnknownDevicePolicy](l.config.Devices.Unknown),
			DevicesElsewhere: slices.Clone(l.config.Devices.Elsewhere),
		},
	}))
	ready := health.NewServer()
	healthpb.RegisterHealthServer(d, ready)
	return d, nil
}

// noCgroups does what the cgroups, the plugins and the schedulers of a node do that has none.
type noCgroups struct{}

func (noCgroups) EnsurePod(context.Context, *ledger.View, string) (string, bool, error) {
	return "", false, nil
}
func (noCgroups) ForgetPod(context.Context, *ledger.View, string) error { return nil }
func (noCgroups) RecordClaims(context.Context, *ledger.View, string, bool) (func() error, error) {
	return func() error { return nil }, nil
}
func (noCgroups) Started(context.Context, *ledger.View, ledger.Binding) (bool, error) {
	return false, nil
}
func (noCgroups) RemovePod(context.Context, *ledger.View, string) error   { return nil }
func (noCgroups) CheckResize(context.Context, *ledger.View, string) error { return nil }
func (noCgroups) Resize(context.Context, *ledger.View, string) error      { return nil }
func (noCgroups) EnsureContainer(context.Context, *ledger.View, admission.Start) (string, error) {
	return "", nil
}
func (noCgroups) Vacant(context.Context, ledger.Binding, int) (bool, error)      { return true, nil }
func (noCgroups) RemoveContainer(context.Context, ledger.Binding) error          { return nil }
func (noCgroups) UnknownPods(context.Context, *ledger.View) ([]string, error)    { return nil, nil }
func (noCgroups) RemoveUnknown(context.Context, *ledger.View, string) error      { return nil }
func (noCgroups) PreStart(context.Context, *ledger.View, ledger.Owner) error     { return nil }
func (noCgroups) ContainerPath(*ledger.Pod, string) (string, error)              { return "", nil }
func (noCgroups) ReportMemory(string, moves.Report) bool                         { return true }
func (noCgroups) Count(string, workload.Quantities) (excess []string, err error) { return nil, nil }

var _ grpc.ServiceRegistrar = (*Daemon)(nil)
