package policy

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/nri/abilities"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
)

// Config has the parts and settings of a policy.
type Config struct {
	Client *berth.Client
	// Kubelet is the first source of a pod's specification; nil if not configured.
	Kubelet Source
	// Devices has the devices that the kubelet has allocated to pods; nil for none.
	Devices DeviceSource
	// Prepared returns the CPUs of the prepared claims that known does not have; nil if there are no claims. With an
	// error the CPUs are valid, but there may be more.
	Prepared func(known func(uid string) bool) (cpuset.Set, error)
	// NodeName is the node's name at the API server; the kubelet adds it to the names of static pods.
	NodeName string
	// Manifests is a folder of pod manifests, such as that of a kubelet's static
	// pods; empty for none. It is read for each pod.
	Manifests string
	// Annotation is the key under which pods carry their specification as JSON; empty if
	// annotations are ignored.
	Annotation string
	// Pass lets containers start on the shared CPUs if berthd refuses them or is unavailable.
	// PassNamespaces does so for some namespaces only.
	Pass           bool
	PassNamespaces []string
	// Established reports whether berthd has been ready on this node once. Before, containers start as with Pass. nil if it has.
	Established func() bool
	// Tell sends an event about a pod, and does not wait for it; nil if nobody reads them.
	Tell func(PodEvent)
	// Timeout returns how long the runtime waits for a response; nil for no deadline except the
	// caller's context.
	Timeout func() time.Duration
	Host
	Scheduler
	// Refused is called for each refusal of a pod, with the reason of the verdict. Repeated means
	// that a refused pod was tried again and nothing had become free; reason is empty then. nil if
	// refusals are not counted.
	Refused func(reason string, repeated bool)
	// Unsolicited is whether updates may be sent to the runtime without an event; empty for UnsolicitedAuto. NRIVersion returns the
	// version of NRI that the runtime reports, and nil if it reports none.
	Unsolicited abilities.Unsolicited
	NRIVersion  func() string
	// Now is the clock; nil for the system's.
	Now func() time.Time
	Log *slog.Logger
}

// Host connects a policy with the kernel of the node.
type Host struct {
	// CPUsOf reads the CPUs that a process may run on; fs.ErrNotExist or ESRCH if it has
	// ended.
	CPUsOf func(pid int) (cpuset.Set, error)
	// Online reads the CPUs of the node; nil if that is not possible.
	Online func() (cpuset.Set, error)
	// BornAt reads when a process began, as a number that differs for another process with the
	// same pid; nil if pids are not used again.
	BornAt func(pid int) (uint64, error)
	// Move sets the CPUs of a sandbox's own process; nil if those processes are not moved. id is the
	// sandbox's, cgroup the pod's according to the runtime, which may be empty. Class PermissionDenied
	// means that the process is in another cgroup.
	Move func(pid int, id, cgroup string, cpus cpuset.Set) error
	// PodQuota sets the CPU quota of a pod's cgroup in microseconds of each period, -1 for none, and
	// returns the one before. With 0 it changes nothing. nil if pods keep their quotas; fs.ErrNotExist if the cgroup has gone.
	PodQuota func(cgroup string, quota int64) (before int64, err error)
	// Memory reads where the memory of a container is. cgroup is its cgroup as NRI names it, and pid a process that must be in
	// it, 0 for none. nil if cgroups are not read. An error is why the memory cannot move, or cannot be seen.
	Memory func(cgroup string, pid int) (Memory, error)
}

// Scheduler connects a policy with the API server's view of the node.
type Scheduler struct {
	// Allocatable returns what the scheduler counts as allocatable on the node; empty if that is
	// unknown, nil if there is no API server. Excess is called with berthd's sentences about it, each
	// time that berthd gets the list of living pods.
	Allocatable func() map[string]string
	Excess      func(sentences []string)
	// Started is called when a container has started for the first time, and does not wait; nil if nobody reads Pending.
	Started func()
}

// Policy handles a runtime's events. Its exported methods are the event handlers of package stub
// of NRI, and Follow. Each job has a type of its own, and its state is there.
type Policy struct {
	*common
	mu       sync.Mutex  // held over each event and each pass, and over their calls of berthd
	followed atomic.Bool // changes of berthd's ledger arrive

	gate     *gate
	runtime  *abilities.Runtime
	kernel   *kernel
	tracks   *tracks
	awaited  *awaitedPods
	quotas   *quotas
	view     *view
	ends     *ends
	sizes    *sizes
	placer   *placer
	writer   *writer
	reporter *reporter
}

// New returns a policy without pods. Each job gets those that it needs, all of which are made before it.
func New(c Config) *Policy {
	if c.Now == nil {
		c.Now = time.Now
	}
	all := &common{c.Client, c.Log, c.Now, &agenda{kicked: make(chan struct{}, 1)},
		&node{sandboxes: map[string]*sandbox{}, members: map[string]*member{}, started: c.Started}}
	p := &Policy{common: all, kernel: &kernel{c.CPUsOf, c.BornAt, c.Move, c.Online}}
	p.gate = &gate{pass: c.Pass, namespaces: c.PassNamespaces, established: c.Established}
	p.runtime = abilities.New(c.Log, c.Unsolicited, c.NRIVersion, c.Timeout)
	p.tracks = &tracks{common: all, kernel: p.kernel}
	p.awaited = &awaitedPods{common: all, mu: &p.mu, kubelet: c.Kubelet, pods: map[string]awaited{}}
	p.quotas = &quotas{common: all, gate: p.gate, set: c.PodQuota}
	found := &finder{common: all, kubelet: c.Kubelet, manifests: c.Manifests, annotation: c.Annotation, nodeName: c.NodeName}
	given := &devices{all, c.Devices}
	prepared := &claims{common: all, runtime: p.runtime, devices: given, files: c.Prepared}
	p.view = &view{common: all, tracks: p.tracks, kernel: p.kernel, claims: prepared, awaited: p.awaited, Scheduler: c.Scheduler}
	p.ends = &ends{all, p.tracks, p.kernel, p.runtime, p.awaited, p.quotas}
	p.sizes = &sizes{common: all, gate: p.gate, tracks: p.tracks, view: p.view, finder: found}
	stored := &refusals{all, map[string]refused{}, c.Refused}
	admitted := &admissions{all, p.tracks, p.view, p.awaited, found, given, stored, p.ends, p.sizes}
	p.placer = &placer{common: all, gate: p.gate, tracks: p.tracks, kernel: p.kernel, view: p.view, claims: prepared, finder: found,
		sizes: p.sizes, admissions: admitted, tell: c.Tell}
	p.writer = &writer{common: all, mu: &p.mu, gate: p.gate, tracks: p.tracks, runtime: p.runtime, view: p.view}
	p.reporter = &reporter{common: all, mu: &p.mu, tracks: p.tracks, runtime: p.runtime, view: p.view, writer: p.writer, memory: c.Memory}
	return p
}

// Pending returns the pods, as NAMESPACE/NAME, whose containers have not all started in their sandbox. Most of them are in the phase
// Pending at the API server; a pod whose sandbox was replaced, or with a start that always fails, is not. A container that ended, and
// starts again in the same sandbox, has started. Init containers do not count. But without a specification a pod is pending only until
// the first of its containers has started.
func (p *Policy) Pending() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.node.unstarted()
}

// Ready returns an error if berthd is not followed, so that new pods cannot be placed, or if the runtime does not move containers.
func (p *Policy) Ready() error {
	if err := p.Stalled(); err != nil {
		return err
	}
	if !p.followed.Load() {
		return errdefs.Unavailablef("berthd at %s is not followed: it does not run, or is not ready", p.client.Endpoint())
	}
	return nil
}

// An event may use eventShare percent of the runtime's deadline. A pass of Follow, for which an
// event may have to wait, may use followShare percent.
const (
	eventShare  = 60
	followShare = 25
)

// within limits a context to a part of the runtime's deadline. A runtime disconnects a plugin
// that exceeds the deadline, and continues without it.
func (p *Policy) within(ctx context.Context, percent time.Duration) (context.Context, context.CancelFunc) {
	if p.runtime.Timeout == nil {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, p.runtime.Timeout()*percent/100)
}

// begin starts the handling of an event. It locks mu, and records that earlier responses have
// been applied. Call end after the event.
func (p *Policy) begin(ctx context.Context) (within context.Context, end func()) {
	within, cancel := p.within(ctx, eventShare)
	p.mu.Lock()
	p.tracks.arrived()
	return within, func() {
		p.mu.Unlock()
		cancel()
	}
}

// Recount sends again what the scheduler counts as allocatable, because it has changed.
func (p *Policy) Recount() {
	p.mu.Lock()
	p.agenda.unreconciled = true
	p.mu.Unlock()
	p.agenda.kick()
}

// Requests reports whether updates may be requested from the runtime at any time. Otherwise they reach it with answers to its events.
func (p *Policy) Requests() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.runtime.Requests
}

// EverReady reports whether berthd has been ready on this node once. Before, nobody relies on it, and containers start without an
// allocation.
func (p *Policy) EverReady() bool { return p.gate.everReady() }

// SetStandby makes this policy place nothing and move nothing, for a reason, because another program assigns the CPUs of
// the node. Containers start as without it. With nil it works again, and compares all running containers with the ledger.
func (p *Policy) SetStandby(reason error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.gate.standby
	if p.gate.standby = reason; (before == nil) == (reason == nil) {
		return
	}
	p.agenda.unreconciled = true
	if reason != nil {
		p.log.Error("no container is placed or moved", "error", reason)
	} else {
		p.log.Info("containers are placed again")
	}
	p.agenda.kick()
}

// Stalled returns an error if the runtime does not carry out updates.
func (p *Policy) Stalled() error {
	if stalled := p.writer.stalled.Load(); stalled != nil {
		return *stalled
	}
	return nil
}

// Standby returns the reason for which nothing is placed and moved; nil if there is none.
func (p *Policy) Standby() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gate.standby
}
