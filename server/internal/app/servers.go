package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	cgroupv1 "github.com/berthd/berth/api/berth/cgroup/v1"
	cpuv1 "github.com/berthd/berth/api/berth/cpu/v1"
	devicev1 "github.com/berthd/berth/api/berth/device/v1"
	fitv1 "github.com/berthd/berth/api/berth/fit/v1"
	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	memoryv1 "github.com/berthd/berth/api/berth/memory/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	qosv1 "github.com/berthd/berth/api/berth/qos/v1"
	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
	"github.com/berthd/berth/api/bundle"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/version"
	cgroups "github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/importer"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/memory"
	nodes "github.com/berthd/berth/managers/node"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/cgroupapi"
	"github.com/berthd/berth/server/internal/host/procfs"
	"github.com/berthd/berth/server/internal/host/sysctl"
	"github.com/berthd/berth/server/internal/privileges"
	"github.com/berthd/berth/server/internal/rpc"
	"github.com/berthd/berth/server/internal/rpc/admission"
	"github.com/berthd/berth/server/internal/rpc/allocation"
	"github.com/berthd/berth/server/internal/rpc/cgroup"
	"github.com/berthd/berth/server/internal/rpc/fit"
	"github.com/berthd/berth/server/internal/rpc/hintbus"
	"github.com/berthd/berth/server/internal/rpc/inspect"
	"github.com/berthd/berth/server/internal/rpc/lifecycle"
	"github.com/berthd/berth/server/internal/rpc/node"
	"github.com/berthd/berth/server/internal/rpc/podresources"
	"github.com/berthd/berth/server/internal/rpc/qos"
	handlers "github.com/berthd/berth/server/internal/rpc/state"
	"github.com/berthd/berth/server/internal/rpc/topology"
	"github.com/berthd/berth/server/internal/socket"
	"github.com/berthd/berth/server/internal/system"
	"github.com/berthd/berth/server/internal/usage"
)

// Bounds of the socket of podresources, whose readers have no roles: the size of a request, which has a few names, and
// the open connections.
const (
	readerBytes       = 64 << 10
	readerConnections = 256
)

// servers are the two gRPC servers and their sockets.
type servers struct {
	// main serves agents; readers serves podresources, and is nil on a node that is only observed. main is nil, too, if nothing is served.
	main, readers *rpc.Server
	// readersLimit is the rate limit of podresources.
	readersLimit *rate.Limiter
	// readerSocket is nil if podresources is switched off.
	agentSocket, readerSocket *socket.Keeper
	health                    *healthServer
	page                      *rpc.Page
}

// newServers makes the servers, without services, and their sockets.
func newServers(g *given, access *rpc.Access) *servers {
	c := g.Config
	s := &servers{health: newHealth(), page: rpc.NewPage()}
	if g.Observed != nil && g.Observed.Gate == nil {
		return s // nothing is served on a socket
	}
	frame := rpc.Config{
		Access: access,
		Bounds: rpc.Bounds{
			Connections: c.Limits.UserConnections, Calls: c.Limits.UserCalls,
			Bytes: c.Limits.UserBytes, Slots: runtime.GOMAXPROCS(0) / 4,
		},
		MaxReceiveBytes: c.Limits.MessageBytes,
		MaxElements:     c.Limits.MessageElements,
		Ceiling:         c.Limits.Call.Duration,
		Log:             g.Log.With("part", "rpc"),
		Observe:         g.Metrics.Call,
		TraceUnary:      g.Tracer.Unary(),
		TraceStream:     g.Tracer.Stream(),
		Begin:           recordCall(g.Now),
		Page:            s.page,
	}
	s.agentSocket = socket.New(c.Listen, socket.Options{
		DirMode: privileges.ListenDirMode, Mode: c.SocketMode(), Group: c.ListenGroup,
	}, g.Log)
	if g.Observed != nil {
		frame.Gate = g.Observed.Gate
		s.main = rpc.NewServer(frame)
		return s // the kubelet serves readers
	}
	s.main = rpc.NewServer(frame)

	// The directory's mode protects the readers' socket, as a kubelet's does.
	frame.Access, frame.Begin = nil, nil
	s.readersLimit = rate.NewLimiter(rate.Limit(c.Limits.PodResourcesPerSecond), c.Limits.PodResourcesBurst)
	frame.Limiter = s.readersLimit
	frame.MaxReceiveBytes = readerBytes
	s.readers = rpc.NewServer(frame)
	if path := c.PodResourcesSocket(); path != "" {
		s.readerSocket = socket.New(path, socket.Options{DirMode: 0o750, Mode: 0o755}, g.Log)
	}
	return s
}

// listen opens the sockets of agents and of readers.
func (s *servers) listen(g *given) error {
	if err := s.agentSocket.Listen(g.Service.Socket(g.Config.Listen)); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	checkReach(g.Config, g.Log)
	if s.readerSocket != nil {
		if err := s.readerSocket.Listen(g.Service.Socket(g.Config.PodResourcesSocket())); err != nil {
			return errors.Join(err, s.agentSocket.Close())
		}
	}
	if left := g.Service.Left(); len(left) > 0 {
		return errors.Join(
			errdefs.Invalidf("systemd passes socket %s, which is neither listen (%s) nor in podResourcesDir (%s): change ListenStream= of the socket unit, or the configuration",
				left[0], g.Config.Listen, g.Config.PodResourcesSocket()),
			s.closeSockets())
	}
	return nil
}

func (s *servers) closeSockets() error {
	err := s.agentSocket.Close()
	if s.readerSocket != nil {
		err = errors.Join(err, s.readerSocket.Close())
	}
	return err
}

// registerServers registers every service at its server.
func (a *App) registerServers() error {
	main, readers := a.servers.main, a.servers.readers
	if main == nil {
		return nil // another server gets them
	}
	if err := a.RegisterServices(main); err != nil {
		return err
	}
	healthpb.RegisterHealthServer(main, a.servers.health)
	reflection.Register(main)
	if readers != nil {
		podresources.Register(readers, a.readers(), a.given.Config.WorkloadFeatures())
		reflection.Register(readers)
	}
	for service := range main.GetServiceInfo() {
		a.servers.health.SetServingStatus(service, healthpb.HealthCheckResponse_NOT_SERVING)
	}
	return nil
}

// readers are the parts of podresources.
func (a *App) readers() podresources.Parts {
	return podresources.Parts{Ledger: a.Ledger, CPUs: cpus{a.deciding.managers}, Inventory: a.devices.manager, Counter: a.given.Metrics,
		Timeout: a.timeout}
}

// RegisterServices registers the services of agents.
func (a *App) RegisterServices(main grpc.ServiceRegistrar) error {
	g, l, k, devs, d := a.given, a.Ledger, a.kernel, a.devices, a.deciding
	read := a.read()
	counted := &schedulers{node: d.managers.wholeNode, claims: func() workload.Quantities { return d.managers.inForce().ClaimAmounts() }}
	engine := newVerdicts(d.engine, g.Metrics, g.Log.With("part", "admission"), g.Now)
	admissionv1.RegisterAdmissionServiceServer(main, admission.New(engine, l, read, counted, defragmenter(g, d)))
	allocationv1.RegisterAllocationServiceServer(main, allocation.New(
		allocation.Config{Read: read, Cgroup: k.containerConfig}, allocation.Parts{
			Slot: rpc.Slot, Turn: rpc.Turn,
			Engine: engine, Noter: d.engine, Complete: d.engine.Complete, Ledger: l, Paths: k.loop, Inventory: devs.manager,
			History:    a.history,
			Placements: k.loop.Placements,
			Contradictions: func(owner ledger.Owner, text string) {
				g.Log.Warn("device plugins contradict each other", "part", "deviceplugin", "container", owner.String(), "used", text)
			},
		}))
	lifecyclev1.RegisterLifecycleServiceServer(main, lifecycle.New(ownProcesses{d.engine, os.DirFS("/proc"), selfUID()}, l, d))
	states := handlers.Parts{Ledger: l, Hinter: d.engine, Read: read}
	cpuv1.RegisterCPUServiceServer(main, handlers.CPUs(states, cpus{d.managers}))
	memoryv1.RegisterMemoryServiceServer(main, handlers.Memory(states, func(view *ledger.View) (handlers.MemoryManager, error) {
		set, err := a.policies.at(view)
		if err != nil {
			return nil, err
		}
		return set.Memory, nil
	}, kernelFree(g.Config)))
	devicev1.RegisterDeviceServiceServer(main, handlers.Devices(states, devs.manager, devs.plugins))
	fitv1.RegisterFitServiceServer(main, fit.New(fit.Parts{Ledger: l, Present: d.managers.inFlight, Managers: a.policies.at,
		Inventory: devs.manager.Inventory, Read: read, Admission: d.engine.Config, Mover: k.moves, Now: g.Now}))
	topologyv1.RegisterTopologyServiceServer(main, topology.New(a.policies, l, d.engine, read))
	if err := a.registerNode(main, counted); err != nil {
		return err
	}
	hintv1.RegisterHintBusServiceServer(main, hintbus.New(ownProviders{d.external, d.access, selfUID()}, l))
	inspectv1.RegisterInspectServiceServer(main, inspect.New(
		inspect.Parts{
			Ledger: l, Importer: importer.Importer{Engine: d.engine.Engine}, Read: read,
			Settings: func(kind kubelet.Kind) kubelet.Settings {
				return settingsOf(d.managers.inForce(), devs.manager.Inventory(), kind)
			},
			Kernel: kernelFindings(k, d),
			Start:  func() []string { return append(slices.Clone(g.Notes), a.state.lines(g.Config)...) },
			Recovered: func() inspect.Recovered {
				return inspect.Recovered{Decisions: a.state.start.Recovery, OlderCopy: a.state.start.OlderCopy}
			},
			Bundle: func(ctx context.Context) (*bundle.Bundle, error) {
				return newBundle(ctx, g, a.policies.files(), l.View(), a.state.sets.facts, devs.inventory.Snapshot())
			},
		}))
	podresources.RegisterV1(main, a.readers(), read.Features)
	return nil
}

// settingsOf returns the settings of the manager behind a kubelet's state file.
func settingsOf(p *managerset.Set, inventory *device.Snapshot, kind kubelet.Kind) (s kubelet.Settings) {
	switch kind {
	case kubelet.CPU:
		s.Policy = p.CPU.Describe().Policy
	case kubelet.Memory:
		s.Policy, s.ReservedMemory = p.Memory.Describe().Policy, p.Memory.Reserved()
		for _, reserved := range s.ReservedMemory { // a kubelet cannot reserve huge pages
			maps.DeleteFunc(reserved, func(resource string, _ uint64) bool { return workload.Resource(resource).IsHugePages() })
		}
	case kubelet.Device:
		s.HealthyDevices = map[string][]string{}
		for r := range inventory.Resources() {
			for _, d := range r.Devices {
				if r.Healthy(d) {
					s.HealthyDevices[r.Name] = append(s.HealthyDevices[r.Name], d.ID)
				}
			}
		}
	}
	return s
}

// newBundle returns what decisions can be computed again from, without the history.
func newBundle(ctx context.Context, g *given, files config.Config, view *ledger.View, facts nodes.Facts, devices *device.Snapshot) (
	*bundle.Bundle, error) {
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return nil, err
	}
	b := &bundle.Bundle{
		About: bundle.About{Format: bundle.Format, Time: g.Now().UTC(), Berthd: version.Of().Version,
			Kernel: strings.TrimSpace(string(kernel))},
		Machine: view.Machine(), Config: &files, Devices: bundle.Resources(devices),
		Node:  nodes.Facts{MaxPIDs: facts.MaxPIDs, StorageBytes: facts.StorageBytes},
		State: history.SnapshotOf(view),
	}
	b.Metrics, err = g.Metrics.Text(ctx)
	return b, err
}

// registerNode registers the services about the node as a whole and its cgroups.
func (a *App) registerNode(s grpc.ServiceRegistrar, counted *schedulers) error {
	k, d := a.kernel, a.deciding
	loop, layout, facts := k.loop, k.layout, k.qos.Cgroup.Facts
	byHand := &cgroupapi.Cgroups{Loop: loop, Alone: d.engine.Alone, Unseen: k.observer.Unseen}
	pods := &cgroupapi.Pods{Cgroups: byHand}
	cgroupv1.RegisterCgroupServiceServer(s, cgroup.New(byHand, byHand, layout, facts))
	cgroupv1.RegisterPodCgroupServiceServer(s, cgroup.NewPods(pods, pods))
	qosv1.RegisterQOSServiceServer(s, qos.New(loop, layout))

	root, err := layout.Literal(layout.Root())
	if err != nil {
		return err
	}
	podRoot, err := layout.Literal(k.podRoot())
	if err != nil {
		return err
	}
	c := a.given.Config
	nodev1.RegisterNodeServiceServer(s, node.New(node.Parts{
		Machine: a.machine.inUse, Places: a.machine.offlinePlaces, Node: d.managers.wholeNode, Ledger: a.Ledger,
		Status: func(context.Context) (*nodev1.GetStatusResponse, error) {
			return nodeStatus(c, k, a.state.start.NoDevices, counted.excess()), nil
		},
		Claims: func() (nodes []managerset.ClaimNode, onePool bool) {
			view, set := d.managers.InForce(a.Ledger.View)
			return set.ClaimNodes(view), set.Rules.OnePool
		},
		Config: &nodev1.GetConfigResponse{
			CgroupVersion: int32(facts.Version), CgroupDriver: string(facts.Driver),
			CgroupRoot: root, PodCgroupRoot: podRoot, Controllers: facts.Controllers,
			EnforceNodeAllocatable: c.Node.Enforce,
			SystemReservedCgroup:   c.Node.SystemReservedCgroup, KubeReservedCgroup: c.Node.KubeReservedCgroup,
			NodeFit: c.Node.NodeFit, DriftPolicy: convert.EnumOf[nodev1.DriftPolicy](c.Cgroups.DriftPolicy),
			PodPidsLimit:    c.Cgroups.PodPIDsLimit,
			RuntimeEndpoint: c.RuntimeEndpoint, CgroupsPerQos: c.Cgroups.PerQOS,
			MountedSubsystems:  subsystems(facts.Subsystems),
			SystemCgroupsLimit: convert.AmountTexts(d.managers.wholeNode().SystemCgroupsLimit(), nil),
			DevicesUnknown:     convert.EnumOf[nodev1.UnknownDevicePolicy](c.Devices.Unknown), DevicesElsewhere: c.Devices.Elsewhere,
		},
		Version: Version(), Reload: a.reloader.Reload, SetHugePages: a.machine.setHugePages, Usage: usageReader(a.given, k, a.Ledger.View),
	}))
	return nil
}

// nodeStatus describes the running system, and its missing features.
func nodeStatus(c config.Config, k *kernel, noDevices bool, excess []string) *nodev1.GetStatusResponse {
	out := &nodev1.GetStatusResponse{
		ResetExtendedResources: noDevices, SchedulerExcess: excess, SoftRequirements: lacksQuotas(k.qos.Cgroup.Facts, os.DirFS("/")),
	}
	if found := k.system.Load(); found != nil {
		out.SystemContainers = append(out.SystemContainers, *found...)
	}
	if podRoot, err := k.layout.Literal(k.podRoot()); err == nil {
		out.SystemContainers = append(out.SystemContainers, &nodev1.SystemContainer{Part: nodev1.SystemContainer_PART_PODS,
			Cgroup: podRoot})
	}
	if !c.KernelCgroups() || c.Node.KernelTunables == config.TunablesIgnore {
		return out
	}
	differences, err := sysctl.Compare(os.DirFS("/proc"), sysctl.Wanted())
	for _, d := range differences {
		out.KernelSettings = append(out.KernelSettings, d.String())
	}
	if err != nil {
		out.KernelSettings = append(out.KernelSettings, fmt.Sprint(err))
	}
	return out
}

// subsystems gives the message form.
func subsystems(all []cgroups.Subsystem) (out []*nodev1.MountedSubsystem) {
	for _, s := range all {
		out = append(out, &nodev1.MountedSubsystem{
			Name: s.Name, MountPoint: s.MountPoint, HierarchyId: uint32(s.Hierarchy), Version: uint32(s.Version),
		})
	}
	return out
}

// lacksQuotas reports a tree of version 1 without CPU quotas, in the kubelet's words. Its cpu
// controller may have been built without them. Version 2 always has them.
func lacksQuotas(facts cgroups.Facts, root fs.FS) []string {
	i := slices.IndexFunc(facts.Subsystems, func(s cgroups.Subsystem) bool { return s.Name == "cpu" && s.Version == cgroups.V1 })
	if i < 0 {
		return nil
	}
	for _, file := range []string{"cpu.cfs_period_us", "cpu.cfs_quota_us"} {
		if _, err := fs.Stat(root, path.Join(strings.TrimPrefix(facts.Subsystems[i].MountPoint, "/"), file)); err != nil {
			return []string{"CPU hardcapping unsupported"}
		}
	}
	return nil
}

// kernelFindings returns what reads the differences between the kernel and the ledger.
func kernelFindings(k *kernel, d *deciding) func() []check.Finding {
	return func() []check.Finding { return append(k.loop.Findings(), memory.TakenFindings(d.ledger.View())...) }
}

// startMetrics gives the metrics what they read.
func startMetrics(ctx context.Context, g *given, k *kernel, devs devices, d *deciding, events *allocation.History) {
	sources := system.Sources{
		View: d.ledger.View, Sockets: devs.registry.Sockets, Kernel: kernelFindings(k, d), Phases: k.loop.Phases,
		Settings: func() system.Settings {
			return settings(d.managers.inForce(), k.qos.Cgroup, g.Config.WorkloadFeatures().PodLevelResourceManagers)
		},
		Allocatable: func() workload.Quantities { return d.managers.inForce().Node.Allocatable() },
		Watchers:    func() int { return events.Streams() },
		LedgerBytes: func() int64 {
			info, err := os.Stat(filepath.Join(g.Config.StateDir, LedgerFile))
			if err != nil {
				return 0
			}
			return info.Size()
		},
		History: func() (history.Stats, bool) { return d.engine.History.Stats(context.WithoutCancel(ctx)) },
		Plugins: devs.manager.Inventory,
	}
	switch meter, ok := k.tree.(cgroups.Meter); {
	case g.Observed != nil:
		sources.Bindings = g.Observed.bindings
		sources.Usage = ofContainer(g.Observed.find(sources.View), g.Observed.usage)
	case ok:
		sources.Usage = ofContainer(k.loop.CgroupOf, meter.Usage)
	}
	g.Metrics.Start(sources)
}

// settings are the current settings that the metrics depend on.
func settings(p *managerset.Set, q cgroups.Config, podLevel bool) system.Settings {
	d := p.CPU.Describe()
	fullCores, _ := strconv.ParseBool(d.Options[cpu.FullPCPUsOnly])
	return system.Settings{
		StaticCPUs: d.Policy == cpu.PolicyStatic, FullCores: fullCores,
		Topology: p.Topology.Policy(), Scope: p.Topology.Scope(),
		PodLevelResourceManagers: podLevel,
		MemoryQoS:                q.MemoryQoS,
		TieredReservation:        q.MemoryQoS && q.Facts.Version == cgroups.V2 && q.ReservationPolicy == cgroups.ReserveTiered,
	}
}

// usageReader reads the CPU and memory usage of CPUs and containers for the API.
func usageReader(g *given, k *kernel, view func() *ledger.View) *usage.Reader {
	s := usage.Sources{View: view, Drifts: k.loop.Drifts, Now: g.Now}
	meter, ok := k.tree.(cgroups.Meter)
	switch {
	case g.Observed != nil:
		s.Bindings, s.CPUs = g.Observed.bindings, g.Observed.cpus
		s.Details = ofContainer(g.Observed.find(view), g.Observed.details)
		return usage.New(s)
	case ok:
		s.Details = ofContainer(k.loop.CgroupOf, meter.Details)
	}
	if g.Config.Machine == "" {
		s.CPUs = func() (map[int]time.Duration, error) { return procfs.CPUTimes(os.DirFS("/proc")) }
	}
	return usage.New(s)
}

// ofContainer returns a function that reads the cgroup of a container; false if it cannot be read.
func ofContainer[U any](find func(ledger.Binding) (cgroups.Name, bool), read func(context.Context, cgroups.Name) (U, error)) func(
	context.Context, ledger.Binding) (U, bool) {
	return func(ctx context.Context, b ledger.Binding) (used U, ok bool) {
		name, ok := find(b)
		if !ok {
			return used, false
		}
		used, err := read(ctx, name)
		return used, err == nil
	}
}
