package system

import (
	"context"
	"iter"
	"net/http"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/placement"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/deviceplugin/registry"
	"github.com/berthd/berth/server/internal/reconcile"
	"github.com/berthd/berth/server/internal/rpc/podresources"
)

// Metrics count what berthd does; *metrics.Set implements it, and says what each method counts.
type Metrics interface {
	// Start gives them what they read. It is called once, before the first admission.
	Start(Sources)
	// Handler serves them, without those of the kubelet if kubelet is false. Text is its page without those.
	Handler(kubelet bool) http.Handler
	Text(context.Context) ([]byte, error)

	Call(method, code string, took time.Duration)
	Count(name podresources.Metric, version string)
	Admission(pod *workload.Pod, v admission.Verdict, took time.Duration, err error)
	Resize(r live.Resized, took time.Duration, err error)
	Step(step, provider string, took time.Duration)
	Registered(resource string)
	Allocated(resource string, took time.Duration)
	Pass(reconcile.Outcome)
	Cgroup(op reconcile.Operation, took time.Duration)
	CgroupVersion(cgroup.Version)
	OldRuntime()
	MachineChanged()
	MachineFailed()
	Moved(live.Moved)
	Replaced(live.Loss, error)
}

// Sources hold what the set reads.
type Sources struct {
	// View gives the current view.
	View func() *ledger.View
	// Settings returns the current settings.
	Settings func() Settings
	// Sockets lists the plugin sockets in the watched directory.
	Sockets func() []registry.Socket
	// Kernel lists differences between the kernel and the ledger; may be nil.
	Kernel func() []check.Finding
	// Phases counts the containers in each phase; nil if unknown.
	Phases func() map[placement.Phase]int
	// Bindings returns the containers of pods; nil means those of the view.
	Bindings func(*ledger.View) iter.Seq[ledger.Binding]
	// Usage reads a container's usage; false if it is unknown. It is nil with simulated cgroups.
	Usage func(ctx context.Context, b ledger.Binding) (cgroup.Usage, bool)
	// Allocatable gives what the node's pods may have; nil for nothing.
	Allocatable func() workload.Quantities
	// Watchers counts the open Watch streams. LedgerBytes is the size of the ledger's file.
	// History describes the history of calls; false without one. Plugins has the device resources
	// with the states of their plugins. All may be nil.
	Watchers    func() int
	LedgerBytes func() int64
	History     func() (history.Stats, bool)
	Plugins     func() *device.Snapshot
}

// Settings is the configuration that counting depends on.
type Settings struct {
	// StaticCPUs means that the CPU manager gives CPUs out, FullCores that it gives
	// whole cores only (the option full-pcpus-only).
	StaticCPUs, FullCores bool
	// Topology and Scope are the topology manager's.
	Topology topology.Policy
	Scope    hint.Scope
	// PodLevelResourceManagers and MemoryQoS are the features of those names. TieredReservation
	// means that memory QoS is active and guarantees requests.
	PodLevelResourceManagers     bool
	MemoryQoS, TieredReservation bool
}

// Uncounted counts nothing.
type Uncounted struct{}

// Start implements Metrics.
func (Uncounted) Start(Sources) {}

// Handler implements Metrics.
func (Uncounted) Handler(bool) http.Handler { return http.NotFoundHandler() }

// Text implements Metrics.
func (Uncounted) Text(context.Context) ([]byte, error) { return nil, nil }

// Call implements Metrics.
func (Uncounted) Call(string, string, time.Duration) {}

// Count implements Metrics.
func (Uncounted) Count(podresources.Metric, string) {}

// Admission implements Metrics.
func (Uncounted) Admission(*workload.Pod, admission.Verdict, time.Duration, error) {}

// Resize implements Metrics.
func (Uncounted) Resize(live.Resized, time.Duration, error) {}

// Step implements Metrics.
func (Uncounted) Step(string, string, time.Duration) {}

// Registered implements Metrics.
func (Uncounted) Registered(string) {}

// Allocated implements Metrics.
func (Uncounted) Allocated(string, time.Duration) {}

// Pass implements Metrics.
func (Uncounted) Pass(reconcile.Outcome) {}

// Cgroup implements Metrics.
func (Uncounted) Cgroup(reconcile.Operation, time.Duration) {}

// CgroupVersion implements Metrics.
func (Uncounted) CgroupVersion(cgroup.Version) {}

// OldRuntime implements Metrics.
func (Uncounted) OldRuntime() {}

// MachineChanged implements Metrics.
func (Uncounted) MachineChanged() {}

// MachineFailed implements Metrics.
func (Uncounted) MachineFailed() {}

// Moved implements Metrics.
func (Uncounted) Moved(live.Moved) {}

// Replaced implements Metrics.
func (Uncounted) Replaced(live.Loss, error) {}
