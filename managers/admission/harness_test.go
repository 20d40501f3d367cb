package admission_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/claimrecord"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// cgroups is a cgroup tree that remembers which pods are in it, and fails on
// demand. Nothing is written for a caller that has left, as with real cgroups.
type cgroups struct {
	ledger func() *ledger.View

	mu         sync.Mutex
	pods       map[string]bool
	containers map[string]string // path to owner
	// runs has the processes in the cgroups of containers by path; a runtime's
	// containers have no cgroup here.
	runs    map[string][]int
	runtime bool
	fail    map[string]error // by operation, once
	// early lists pods whose processes were killed only after the ledger had
	// deleted them: the wrong order.
	early []string
	// sizes are the CPU requests of first containers in calls of Resize, and sets their CPUs.
	sizes []int64
	sets  []string
	// none means that pods have no cgroups of their own.
	none bool
	// during is called inside EnsurePod, to move the ledger meanwhile.
	during func()
	// starting is called inside EnsureContainer, once and without the lock; placed
	// are the generations by which containers were placed, again whether that was not
	// for the first start that was requested, still whether not for the first time in it.
	starting func()
	placed   []uint64
	again    []bool
	still    []bool
	// records are the claim records by uid.
	records map[string][]byte
	// resizing is called inside Resize, once and without the lock.
	resizing func()
	// recording is called inside RecordClaims, once and without the lock.
	recording func()
	// stuck are pods whose processes do not die before the caller's time is over.
	stuck map[string]bool
	// removing is called inside RemovePod, once and without the lock.
	removing func()
	// remakes makes a container's cgroup again for as long as its id is known, as a
	// reconciler may.
	remakes bool
}

func (p *cgroups) failing(op string) error {
	err := p.fail[op]
	delete(p.fail, op)
	return err
}

func (p *cgroups) EnsurePod(ctx context.Context, view *ledger.View, uid string) (string, bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return "", false, err
	}
	if _, ok := view.Pod(uid); !ok {
		return "", false, fmt.Errorf("pod %s is not in the view", uid)
	}
	if err := p.failing("ensure"); err != nil {
		return "", false, err
	}
	if p.during != nil {
		p.during()
	}
	if p.none {
		return "", false, nil
	}
	created := !p.pods[uid]
	p.pods[uid] = true
	return "/kubepods/pod" + uid, created, nil
}

func (p *cgroups) RecordClaims(_ context.Context, view *ledger.View, uid string, there bool) (func() error, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if recording := p.recording; recording != nil {
		p.recording = nil
		p.mu.Unlock()
		recording()
		p.mu.Lock()
	}
	have, ok := view.Pod(uid)
	if !ok {
		return nil, fmt.Errorf("pod %s is not in the view", uid)
	}
	r := claimrecord.New(view, have, view.Generation()+1)
	record, err := r.Encode()
	if err == nil {
		err = p.failing("record")
	}
	if err != nil {
		return nil, err
	}
	if p.records == nil {
		p.records = map[string][]byte{}
	}
	before := p.records[uid]
	p.records[uid] = record
	return func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if there {
			p.records[uid] = before
		}
		return nil
	}, nil
}

// lives returns the record of a living pod; without one nothing is known.
func (p *cgroups) lives(_ context.Context, uid string) ledger.UnknownLivePod {
	p.mu.Lock()
	defer p.mu.Unlock()
	u := ledger.UnknownLivePod{UID: uid, Since: time.Unix(1000, 0)}
	if r, err := claimrecord.Decode(uid, p.records[uid]); err == nil {
		u.Source, u.Digest, u.QoS, u.Claims, u.Bindings = ledger.FromClaimRecord, r.Digest, r.QoS, r.Claims, r.Bindings
	}
	return u
}

func (p *cgroups) Started(_ context.Context, view *ledger.View, b ledger.Binding) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.runs["/kubepods/pod"+b.Owner.Pod+"/"+b.Owner.Container]) > 0, nil
}

func (p *cgroups) ForgetPod(ctx context.Context, _ *ledger.View, uid string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	delete(p.pods, uid)
	return p.failing("forget")
}

func (p *cgroups) RemovePod(ctx context.Context, _ *ledger.View, uid string) error {
	if p.stuck[uid] {
		<-ctx.Done()
		return ctx.Err()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if meanwhile := p.removing; meanwhile != nil {
		p.removing = nil
		p.mu.Unlock()
		meanwhile()
		p.mu.Lock()
	}
	if err := p.failing("remove"); err != nil {
		return err
	}
	if _, ok := p.ledger().Pod(uid); !ok {
		p.early = append(p.early, uid)
	}
	delete(p.pods, uid)
	return nil
}

func (p *cgroups) CheckResize(_ context.Context, view *ledger.View, uid string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := view.Pod(uid); !ok {
		return fmt.Errorf("pod %s is not in the view", uid)
	}
	return p.failing("check resize")
}

func (p *cgroups) Resize(ctx context.Context, view *ledger.View, uid string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	pod, ok := view.Pod(uid)
	if !ok {
		return fmt.Errorf("pod %s is not in the view", uid)
	}
	p.sizes = append(p.sizes, pod.Pod.Containers[0].Requests[workload.CPU])
	set, _, _ := view.ContainerCPUs(ledger.Owner{Pod: uid, Container: pod.Pod.Containers[0].Name})
	p.sets = append(p.sets, set.String())
	if meanwhile := p.resizing; meanwhile != nil {
		p.mu.Unlock()
		meanwhile()
		p.mu.Lock()
	}
	return p.failing("resize")
}

func (p *cgroups) EnsureContainer(_ context.Context, view *ledger.View, s admission.Start) (string, error) {
	b := s.Binding
	p.mu.Lock()
	meanwhile := p.starting
	p.starting = nil
	p.placed = append(p.placed, view.Generation())
	p.again, p.still = append(p.again, s.Again), append(p.still, s.Still)
	p.mu.Unlock()
	if meanwhile != nil {
		meanwhile()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.failing("container"); err != nil {
		return "", err
	}
	if p.runtime {
		return "", nil
	}
	path := "/kubepods/pod" + b.Owner.Pod + "/" + b.Owner.Container
	p.containers[path] = b.Owner.String()
	if s.PID != 0 && !slices.Contains(p.runs[path], s.PID) {
		p.runs[path] = append(p.runs[path], s.PID)
	}
	return path, nil
}

func (p *cgroups) Vacant(_ context.Context, b ledger.Binding, starting int) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !slices.ContainsFunc(p.runs[b.CgroupPath], func(pid int) bool { return pid != starting }), p.failing("vacant")
}

// exits ends a process.
func (p *cgroups) exits(pid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for path, pids := range p.runs {
		p.runs[path] = slices.DeleteFunc(pids, func(p int) bool { return p == pid })
	}
}

func (p *cgroups) RemoveContainer(_ context.Context, b ledger.Binding) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.containers, b.CgroupPath)
	if _, known := p.ledger().Binding(b.ID); known && p.remakes {
		p.containers[b.CgroupPath] = b.Owner.String()
	}
	return nil
}

func (p *cgroups) UnknownPods(_ context.Context, view *ledger.View) (uids []string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for uid := range p.pods {
		if _, ok := view.Pod(uid); !ok {
			uids = append(uids, uid)
		}
	}
	return uids, p.failing("observe")
}

func (p *cgroups) RemoveUnknown(ctx context.Context, view *ledger.View, uid string) error {
	if p.stuck[uid] {
		<-ctx.Done()
		return ctx.Err()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := view.Pod(uid); !ok {
		delete(p.pods, uid)
	}
	return p.failing("sweep")
}

// plugins answer for every resource, and fail on demand.
type plugins struct {
	mu    sync.Mutex
	fail  error // once
	calls []string
	// offered are the calls of Preferred: the devices, those that are included, and how many.
	offered []string
	// started counts the reported starts.
	started atomic.Int64
	// during is called inside Allocate, to move the ledger meanwhile, and allocate,
	// which may end with an error.
	during   func()
	allocate func(ctx context.Context) error
}

// Preferred prefers the last ids.
func (p *plugins) Preferred(_ context.Context, _ string, available, must []string, size int) ([]string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.offered = append(p.offered, fmt.Sprint(available, must, size))
	return available[len(available)-size:], nil
}

func (p *plugins) Allocate(ctx context.Context, resource string, ids []string) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, resource+" "+fmt.Sprint(ids))
	if p.during != nil {
		p.during()
	}
	err := p.fail
	p.fail = nil
	if p.allocate != nil {
		err = p.allocate(ctx)
	}
	return []byte("response"), err
}

func (p *plugins) PreStart(context.Context, *ledger.View, ledger.Owner) error {
	p.started.Add(1)
	return nil
}

func (p *plugins) starts() int { return int(p.started.Load()) }

// fixture is an engine with everything below it.
type fixture struct {
	*live.Engine
	ledger  *ledger.Ledger
	journal *ledgertest.Journal
	cgroups *cgroups
	plugins *plugins
	// inventory of gpu, which session serves.
	inventory *device.Inventory
	session   device.Session
	bus       atomic.Pointer[hint.Bus]
	now       atomic.Int64 // seconds
}

// listed is a Sync of who lives, by a list that is made now.
func (h *fixture) listed(uids []string) admission.SyncRequest {
	return admission.SyncRequest{Living: uids, Known: h.ledger.View().Revision()}
}

const gpu = "example.com/gpu"

// build makes an engine on 2 nodes with 8 CPUs each, CPUs 0 and 8 reserved, and
// two GPUs on each node.
func build(t ledgertest.T, policy topology.Policy, j *ledgertest.Journal) *fixture {
	m := machinetest.Build("2s1n8c1t")
	cpus, err := cpu.New(cpu.Config{
		Policy: cpu.PolicyStatic, ReservedCPUs: m.CPUs().Intersect(m.CPUsInNode(0).Lowest(1).Union(m.CPUsInNode(1).Lowest(1))),
		Features: cpu.Features{BetaOptions: true, Features: workload.Features{PodLevelResources: true}, ResizeExclusiveCPUs: true},
	}, m)
	must(t, err)
	l := ledgertest.OpenRecording(t, journal.Options{
		Journal: j, Rules: ledger.Rules{Machine: m, ReservedCPUs: cpus.Reserved()},
	}, history.Limits{Entries: 1000}, time.Now)
	inventory := device.NewInventory(nil, time.Unix(0, 0))
	session := inventory.Registered(gpu, device.Options{}, time.Unix(0, 0))
	inventory.Listed(session, []device.Device{
		{ID: "g0", Healthy: true, Nodes: 1, Topology: true}, {ID: "g1", Healthy: true, Nodes: 1, Topology: true},
		{ID: "g2", Healthy: true, Nodes: 2, Topology: true}, {ID: "g3", Healthy: true, Nodes: 2, Topology: true},
	}, time.Unix(0, 0))
	h := &fixture{ledger: l.Ledger, journal: j, plugins: &plugins{}, inventory: inventory, session: session, cgroups: &cgroups{
		ledger: l.View, pods: map[string]bool{}, containers: map[string]string{}, runs: map[string][]int{}, fail: map[string]error{},
	}}
	bus, err := hint.NewBus(nil, []hint.Entry{
		{Provider: device.New(inventory, h.plugins), Mode: hint.Required},
		{Provider: cpus, Mode: hint.Required},
	}, nil)
	must(t, err)
	h.bus.Store(bus)
	h.now.Store(1000)
	merger, err := topology.New(topology.Config{Policy: policy, Scope: hint.ContainerScope}, m.NodeMask(), m.Distances())
	must(t, err)
	var ids atomic.Int64
	h.Engine = live.New(admission.New(admission.Config{
		Features:   workload.Features{PodLevelResources: true},
		DeferWaits: true, Resources: admission.Resources{Started: time.Unix(1000, 0), Grace: time.Hour},
	}, admission.Parts{
		Ledger: l.Ledger, History: l.History,
		Managers: func(*ledger.View) (*hint.Bus, *topology.Manager) { return h.bus.Load(), merger }, CgroupManager: h.cgroups,
		Starter: h.plugins,
		Lives:   func(ctx context.Context, uid string) ledger.UnknownLivePod { return h.cgroups.lives(ctx, uid) },
		Environment: admission.Environment{
			Now:   func() time.Time { return time.Unix(h.now.Load(), 0) },
			NewID: func() string { return "adm-" + strconv.FormatInt(ids.Add(1), 10) },
		},
	}), live.Options{})
	return h
}

// replaceDevices has another manager hand out the devices.
func (h *fixture) replaceDevices(t *testing.T, m *device.Manager) {
	t.Helper()
	entries := h.bus.Load().Entries()
	for i := range entries {
		if entries[i].Provider.Name() == device.Name {
			entries[i].Provider = m
		}
	}
	bus, err := hint.NewBus(nil, entries, nil)
	must(t, err)
	h.bus.Store(bus)
}

func must(t ledgertest.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
	}
}

// newFixture is build for an ordinary test.
func newFixture(t *testing.T, policy topology.Policy) *fixture {
	t.Helper()
	return build(t, policy, ledgertest.NewJournal())
}

// guaranteed makes a pod with one container of n CPUs and g GPUs.
func guaranteed(uid string, n, g int64) workload.Pod {
	q := workload.Quantities{workload.CPU: n * 1000, workload.Memory: 1 << 20}
	if g > 0 {
		q[gpu] = g
	}
	return workload.Pod{
		UID: uid, Name: uid, Namespace: "default",
		Containers: []workload.Container{{Name: "main", Requests: q, Limits: q}},
	}
}

func (h *fixture) admit(t ledgertest.T, p workload.Pod) admission.Verdict {
	t.Helper()
	v, err := h.Admit(context.Background(), admission.Request{Pod: p})
	must(t, err)
	return v
}

// cpus lists the exclusive CPUs of a pod's only container.
func (h *fixture) cpus(uid string) string {
	set, _, _ := h.ledger.View().ContainerCPUs(ledger.Owner{Pod: uid, Container: "main"})
	return set.String()
}

// kinds lists the kinds of a trace's steps.
func kinds(t *ledger.Trace) (out []ledger.StepKind) {
	for _, s := range t.Steps {
		out = append(out, s.Kind)
	}
	return out
}

// class is errdefs.ClassOf for a failure that must be one.
func class(t *testing.T, err error) errdefs.Class {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	return errdefs.ClassOf(err)
}

func has(kind ledger.StepKind, t *ledger.Trace) bool { return slices.Contains(kinds(t), kind) }
