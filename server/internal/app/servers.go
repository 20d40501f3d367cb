package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
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
	"google.golang.org/grpc/credentials/insecure"
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
	"github.com/berthd/berth/api/page"
	"github.com/berthd/berth/api/version"
	cgroups "github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/importer"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/managerset"
	nodes "github.com/berthd/berth/managers/node"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/cgroupapi"
	"github.com/berthd/berth/server/internal/host/procfs"
	"github.com/berthd/berth/server/internal/host/sysctl"
	"github.com/berthd/berth/server/internal/metrics"
	"github.com/berthd/berth/server/internal/reconcile"
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
	"github.com/berthd/berth/server/internal/rpc/state"
	"github.com/berthd/berth/server/internal/rpc/topology"
	"github.com/berthd/berth/server/internal/socket"
	"github.com/berthd/berth/server/internal/usage"
)

// Bounds of the socket of podresources, whose readers have no roles: the size of a request, which has a few names, and
// the open connections.
const (
	readerBytes       = 64 << 10
	readerConnections = 256
)

// buildServers makes the two gRPC servers and registers every service.
func (a *App) buildServers(context.Context) error {
	a.health = newHealth()
	a.page = rpc.NewPage()
	a.policies = &policies{app: a}
	a.schedulers = &schedulers{node: a.wholeNode, claims: func() workload.Quantities { return a.inForce().ClaimAmounts() }}
	frame := rpc.Config{
		Access: a.access,
		Bounds: rpc.Bounds{
			Connections: a.Config.Limits.UserConnections, Calls: a.Config.Limits.UserCalls,
			Bytes: a.Config.Limits.UserBytes, Slots: runtime.GOMAXPROCS(0) / 4,
		},
		MaxReceiveBytes: a.Config.Limits.MessageBytes,
		MaxElements:     a.Config.Limits.MessageElements,
		Ceiling:         a.Config.Limits.Call.Duration,
		Log:             a.Log.With("part", "rpc"),
		Observe:         a.metrics.Call,
		TraceUnary:      a.Tracer.Unary(),
		TraceStream:     a.Tracer.Stream(),
		Begin:           a.recordCall,
		Page:            a.page,
	}
	a.main = rpc.NewServer(frame)
	read := convert.Reader{
		Features: a.Config.WorkloadFeatures(),
		Bounds:   workload.Bounds{Containers: a.Config.Limits.Containers},
	}
	a.history = allocation.NewHistory(a.Config.Limits.WatchEvents, a.Device)
	a.history.Start(a.Ledger.View())
	a.Ledger.Follow(a.history.Committed)
	engine := newVerdicts(a.Engine, a.metrics, a.Log.With("part", "admission"), a.Now)
	readers := podresources.Parts{Ledger: a.Ledger, CPUs: cpus{a}, Inventory: a.Device, Counter: a.metrics, Timeout: a.timeout}
	admissionv1.RegisterAdmissionServiceServer(a.main, admission.New(engine, a.Ledger, read, a.schedulers, a.defragmenter()))
	allocationv1.RegisterAllocationServiceServer(a.main, allocation.New(
		allocation.Config{Read: read, Cgroup: a.containerConfig}, allocation.Parts{
			Slot: rpc.Slot, Turn: rpc.Turn,
			Engine: engine, Noter: a.Engine, Complete: a.Engine.Complete, Ledger: a.Ledger, Paths: a.reconcile, Inventory: a.Device,
			History:    a.history,
			Placements: a.reconcile.Placements,
			Contradictions: func(owner ledger.Owner, text string) {
				a.Log.Warn("device plugins contradict each other", "part", "deviceplugin", "container", owner.String(), "used", text)
			},
		}))
	lifecyclev1.RegisterLifecycleServiceServer(a.main, lifecycle.New(ownProcesses{a.Engine, os.DirFS("/proc"), selfUID()}, a.Ledger, a))
	states := state.Parts{Ledger: a.Ledger, Hinter: a.Engine, Read: read}
	cpuv1.RegisterCPUServiceServer(a.main, state.CPUs(states, cpus{a}))
	memoryv1.RegisterMemoryServiceServer(a.main, state.Memory(states, a.memoryAt, a.kernelFree()))
	devicev1.RegisterDeviceServiceServer(a.main, state.Devices(states, a.Device, a.plugins))
	fitv1.RegisterFitServiceServer(a.main, fit.New(fit.Parts{Ledger: a.Ledger, Present: a.inFlight, Managers: a.managersAt,
		Inventory: a.Device.Inventory, Read: read, Admission: a.Engine.Config, Mover: a.moves, Now: a.Now}))
	topologyv1.RegisterTopologyServiceServer(a.main, topology.New(a.policies, a.Ledger, a.Engine, read))
	if err := a.registerNode(a.main); err != nil {
		return err
	}
	hintv1.RegisterHintBusServiceServer(a.main, hintbus.New(ownProviders{a.external, a.access, selfUID()}, a.Ledger))
	inspectv1.RegisterInspectServiceServer(a.main, inspect.New(
		inspect.Parts{Ledger: a.Ledger, Importer: importer.Importer{Engine: a.Engine}, Read: read, Settings: a.settingsOf,
			Kernel: a.reconcile.Findings, Start: a.StartLines, Recovered: a.recovered, Bundle: a.bundle}))
	podresources.RegisterV1(a.main, readers, read.Features)
	healthpb.RegisterHealthServer(a.main, a.health)
	reflection.Register(a.main)

	// The directory's mode protects the readers' socket, as a kubelet's does.
	frame.Access, frame.Begin = nil, nil
	a.readersLimit = rate.NewLimiter(rate.Limit(a.Config.Limits.PodResourcesPerSecond), a.Config.Limits.PodResourcesBurst)
	frame.Limiter = a.readersLimit
	frame.MaxReceiveBytes = readerBytes
	a.readers = rpc.NewServer(frame)
	podresources.Register(a.readers, readers, read.Features)
	reflection.Register(a.readers)

	a.agentSocket = socket.New(a.Config.Listen, socket.Options{
		DirMode: listenDirMode, Mode: a.Config.SocketMode(), Group: a.Config.ListenGroup,
	}, a.Log)
	if path := a.Config.PodResourcesSocket(); path != "" {
		a.readerSocket = socket.New(path, socket.Options{DirMode: 0o750, Mode: 0o755}, a.Log)
	}
	a.monitor = a.newMonitor()
	for service := range a.main.GetServiceInfo() {
		a.health.SetServingStatus(service, healthpb.HealthCheckResponse_NOT_SERVING)
	}
	return nil
}

// memoryAt returns the memory manager that decides on a view, which may be one of the past.
func (a *App) memoryAt(view *ledger.View) (state.MemoryManager, error) {
	set, err := a.managersAt(view)
	if err != nil {
		return nil, err
	}
	return set.Memory, nil
}

// settingsOf returns the settings of the manager behind a kubelet's state file.
func (a *App) settingsOf(kind kubelet.Kind) (s kubelet.Settings) {
	switch p := a.inForce(); kind {
	case kubelet.CPU:
		s.Policy = p.CPU.Describe().Policy
	case kubelet.Memory:
		s.Policy, s.ReservedMemory = p.Memory.Describe().Policy, p.Memory.Reserved()
	case kubelet.Device:
		s.HealthyDevices = map[string][]string{}
		for r := range a.Device.Inventory().Resources() {
			for _, d := range r.Devices {
				if r.Healthy(d) {
					s.HealthyDevices[r.Name] = append(s.HealthyDevices[r.Name], d.ID)
				}
			}
		}
	}
	return s
}

// bundle returns what decisions can be computed again from, without the history.
func (a *App) bundle(ctx context.Context) (*bundle.Bundle, error) {
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return nil, err
	}
	config, view := a.files(), a.Ledger.View()
	b := &bundle.Bundle{
		About: bundle.About{Format: bundle.Format, Time: a.Now().UTC(), Berthd: version.Of().Version,
			Kernel: strings.TrimSpace(string(kernel))},
		Machine: view.Machine(), Config: &config, Devices: bundle.Resources(a.inventory.Snapshot()),
		Node:  nodes.Facts{MaxPIDs: a.facts.MaxPIDs, StorageBytes: a.facts.StorageBytes},
		State: view.Snapshot(),
	}
	b.Metrics, err = a.metrics.Text(ctx)
	return b, err
}

// registerNode registers the services about the node as a whole and its cgroups.
func (a *App) registerNode(s grpc.ServiceRegistrar) error {
	loop, layout := a.reconcile, a.reconcile.Layout
	facts := loop.QoS.Cgroup.Facts
	byHand := &cgroupapi.Cgroups{Loop: loop, Alone: a.Engine.Alone}
	pods := &cgroupapi.Pods{Cgroups: byHand}
	cgroupv1.RegisterCgroupServiceServer(s, cgroup.New(byHand, byHand, layout, facts))
	cgroupv1.RegisterPodCgroupServiceServer(s, cgroup.NewPods(pods, pods))
	qosv1.RegisterQOSServiceServer(s, qos.New(loop, layout))

	root, err := layout.Literal(layout.Root())
	if err != nil {
		return err
	}
	podRoot, err := layout.Literal(a.podRoot())
	if err != nil {
		return err
	}
	c := a.Config
	nodev1.RegisterNodeServiceServer(s, node.New(node.Parts{
		Machine: a.machine, Places: a.offlinePlaces, Node: a.wholeNode, View: a.Ledger.View, Status: a.nodeStatus,
		Claims: func() (nodes []managerset.ClaimNode, onePool bool) {
			view, set := a.Managers.InForce(a.Ledger.View)
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
			MountedSubsystems: subsystems(facts.Subsystems), SystemCgroupsLimit: convert.AmountTexts(a.wholeNode().SystemCgroupsLimit(),
				nil),
			DevicesUnknown: convert.EnumOf[nodev1.UnknownDevicePolicy](c.Devices.Unknown), DevicesElsewhere: c.Devices.Elsewhere,
		},
		Version: Version(), Reload: a.Reload, SetHugePages: a.setHugePages, Usage: a.usageReader(),
	}))
	return nil
}

// podRoot is the cgroup that pods lie in: that of all pods, or the configured root where
// pods have none of their own.
func (a *App) podRoot() cgroups.Name {
	if !a.Config.Cgroups.PerQOS {
		return a.layout.Root()
	}
	return a.layout.Pods()
}

// nodeStatus describes the running system, and its missing features.
func (a *App) nodeStatus(ctx context.Context) (*nodev1.GetStatusResponse, error) {
	out := &nodev1.GetStatusResponse{ResetExtendedResources: a.start.NoDevices}
	if found := a.systemProcesses.Load(); found != nil {
		out.SystemContainers = append(out.SystemContainers, *found...)
	}
	if podRoot, err := a.layout.Literal(a.podRoot()); err == nil {
		out.SystemContainers = append(out.SystemContainers, &nodev1.SystemContainer{Part: nodev1.SystemContainer_PART_PODS,
			Cgroup: podRoot})
	}
	out.SchedulerExcess = a.schedulers.excess()
	out.SoftRequirements = lacksQuotas(a.reconcile.QoS.Cgroup.Facts, os.DirFS("/"))
	if a.Config.Cgroups.Tree == config.TreeMemory {
		return out, nil
	}
	differences, err := sysctl.Compare(os.DirFS("/proc"), sysctl.Wanted())
	for _, d := range differences {
		out.KernelSettings = append(out.KernelSettings, d.String())
	}
	if err != nil {
		out.KernelSettings = append(out.KernelSettings, fmt.Sprint(err))
	}
	return out, nil
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

// buildMetrics gives the metrics what they read.
func (a *App) buildMetrics(ctx context.Context) error {
	sources := metrics.Sources{
		View: a.Ledger.View, Settings: a.settings, Sockets: a.registry.Sockets, Kernel: a.reconcile.Findings, Phases: a.reconcile.Phases,
		Allocatable: func() workload.Quantities { return a.inForce().Node.Allocatable() },
		Watchers:    func() int { return a.history.Streams() },
		LedgerBytes: func() int64 {
			info, err := os.Stat(filepath.Join(a.Config.StateDir, LedgerFile))
			if err != nil {
				return 0
			}
			return info.Size()
		},
		History: func() (ledger.HistoryStats, bool) { return a.Ledger.HistoryStats(context.WithoutCancel(ctx)) },
		Plugins: a.Device.Inventory,
	}
	if meter, ok := a.tree.(cgroups.Meter); ok {
		sources.Usage = ofContainer(a.reconcile, meter.Usage)
	}
	a.metrics.Start(sources)
	return nil
}

// usageReader reads the CPU and memory usage of CPUs and containers for the API.
func (a *App) usageReader() *usage.Reader {
	s := usage.Sources{View: a.Ledger.View, Drifts: a.reconcile.Drifts, Now: a.Now}
	if meter, ok := a.tree.(cgroups.Meter); ok {
		s.Details = ofContainer(a.reconcile, meter.Details)
	}
	if a.Config.Machine == "" {
		s.CPUs = func() (map[int]time.Duration, error) { return procfs.CPUTimes(os.DirFS("/proc")) }
	}
	return usage.New(s)
}

// ofContainer returns a function that reads the cgroup of a container; false if it cannot be read.
func ofContainer[U any](loop *reconcile.Loop, read func(context.Context, cgroups.Name) (U, error)) func(context.Context,
	ledger.Binding) (U, bool) {
	return func(ctx context.Context, b ledger.Binding) (used U, ok bool) {
		name, ok := loop.CgroupOf(b)
		if !ok {
			return used, false
		}
		used, err := read(ctx, name)
		return used, err == nil
	}
}

// pageConn connects the page to berthd's own socket. It connects with the page's first call. What a
// caller may do is decided before (allowPage), and the limits of users hold for all of them together.
func (a *App) pageConn() (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///berthd",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return a.page.Dial(ctx, a.Config.Listen)
		}))
}

// pageHandler serves the page for a browser. On a socket there is a login: with a socket that ssh forwards, the kernel
// reports the user of ssh for everybody who can connect to the near end.
func (a *App) pageHandler(conn grpc.ClientConnInterface, login *page.Login) http.Handler {
	served := page.New(page.Options{Conn: conn, About: "berth", ReadPod: page.ReadPod, Turns: runtime.GOMAXPROCS(0) / 4})
	if login != nil {
		served = login.Only(userOf, served)
	}
	return a.allowPage(served)
}

// userOf is the user of a request's connection.
func userOf(r *http.Request) string {
	if who, ok := r.Context().Value(peerKey{}).(rpc.Peer); ok {
		return strconv.FormatUint(uint64(who.UID), 10)
	}
	return ""
}

// loginSuffix is the end of the name of the file next to the socket that has the page's link.
const loginSuffix = ".login"

// writeLogin writes the link of the page next to the socket of the page, with the socket's mode and group: who can
// open the socket can read it, and somebody at the near end of a forwarded socket cannot.
func (a *App) writeLogin(login *page.Login) error {
	path, ok := a.Config.HTTPSocket()
	if !ok || login == nil {
		return nil
	}
	mode, err := config.Mode(a.Config.HTTPMode, 0o660)
	if err != nil {
		return err
	}
	path += loginSuffix
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, "http://127.0.0.1:8087"+login.Path())
	if err == nil && a.Config.ListenGroup != "" {
		var gid int
		if gid, err = socket.Group(a.Config.ListenGroup); err == nil {
			err = f.Chown(-1, gid)
		}
	}
	if err == nil {
		err = f.Chmod(mode & 0o444) // last: until then only berthd reads it
	}
	return errors.Join(err, f.Close())
}

// peerKey is the context key of the rpc.Peer of a request's connection, or of the error of
// reading it. On a TCP port there is no value.
type peerKey struct{}

// withPeer puts the peer of a connection to the HTTP socket into the context of its requests.
func (a *App) withPeer(ctx context.Context, c net.Conn) context.Context {
	if _, ok := a.Config.HTTPSocket(); !ok {
		return ctx
	}
	who, err := rpc.PeerOfConn(c)
	if err != nil {
		return context.WithValue(ctx, peerKey{}, err)
	}
	return context.WithValue(ctx, peerKey{}, who)
}

// allowPage checks each caller's roles. The kernel does not report the user of a TCP connection.
// On a TCP port httpPage therefore allows or refuses all users of this machine, and admin is
// never granted.
func (a *App) allowPage(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		need := page.RoleOf(r)
		refusal := ""
		switch who := r.Context().Value(peerKey{}).(type) {
		case rpc.Peer:
			if !a.access.Allows(who, need) {
				refusal = fmt.Sprintf("the role %s is missing for uid %d: see access in the configuration", need, who.UID)
			}
			ctx, end := a.access.While(r.Context(), who, need)
			defer end()
			r = r.WithContext(ctx)
		case error:
			refusal = "the user of the connection is unknown"
		default:
			switch from, err := netip.ParseAddrPort(r.RemoteAddr); {
			case !a.Config.HTTPPage:
				refusal = "the page is off on this address, because every user of this machine can connect: use berthctl web, or a unix socket for http, or set httpPage: true"
			case err != nil || !from.Addr().IsLoopback():
				refusal = "the page is only for this machine"
			case need != page.Reader:
				refusal = fmt.Sprintf("the role %s cannot be had on an address: use berthctl web, or a unix socket for http", need)
			}
		}
		if refusal != "" {
			http.Error(w, refusal, http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}
