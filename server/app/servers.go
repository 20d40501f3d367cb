package app

import (
	"context"
	"os"
	"runtime"

	"golang.org/x/time/rate"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	cpuv1 "github.com/berthd/berth/api/berth/cpu/v1"
	devicev1 "github.com/berthd/berth/api/berth/device/v1"
	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	memoryv1 "github.com/berthd/berth/api/berth/memory/v1"
	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/importer"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/rpc"
	"github.com/berthd/berth/server/rpc/admission"
	"github.com/berthd/berth/server/rpc/allocation"
	"github.com/berthd/berth/server/rpc/cpu"
	"github.com/berthd/berth/server/rpc/device"
	"github.com/berthd/berth/server/rpc/hintbus"
	"github.com/berthd/berth/server/rpc/inspect"
	"github.com/berthd/berth/server/rpc/lifecycle"
	"github.com/berthd/berth/server/rpc/memory"
	"github.com/berthd/berth/server/rpc/podresources"
	"github.com/berthd/berth/server/rpc/topology"
)

// buildServers makes the two gRPC servers and registers every service.
func (a *App) buildServers(context.Context) error {
	a.health = newHealth()
	a.access = rpc.NewAccess(selfUID(), a.Config.Access)
	a.policies = &policies{app: a}
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
	}
	a.main = rpc.NewServer(frame)
	read := convert.Reader{
		Features: a.Config.WorkloadFeatures(),
		Bounds:   workload.Bounds{Containers: a.Config.Limits.Containers},
	}
	a.history = allocation.NewHistory(a.Config.Limits.WatchEvents, a.Device)
	a.history.Start(a.Ledger.View())
	a.Ledger.Follow(a.history.Committed)
	engine := logRejections(a.metrics.Watch(a.Engine), a.Log.With("part", "admission"), a.Now)
	readers := podresources.Parts{Ledger: a.Ledger, CPUs: cpus{a}, Inventory: a.Device, Counter: a.metrics, Timeout: a.timeout}
	admissionv1.RegisterAdmissionServiceServer(a.main, admission.New(engine, a.Ledger, read))
	allocationv1.RegisterAllocationServiceServer(a.main, allocation.New(
		allocation.Config{Read: read, Cgroup: a.containerConfig}, allocation.Parts{
			Slot: rpc.Slot, Turn: rpc.Turn,
			Engine: engine, Noter: a.Engine, Complete: a.Engine.Complete, Ledger: a.Ledger, Paths: a.reconcile, Inventory: a.Device, History: a.history,
			Placements: a.reconcile.Placements,
			Contradictions: func(owner ledger.Owner, text string) {
				a.Log.Warn("device plugins contradict each other", "part", "deviceplugin", "container", owner.String(), "used", text)
			},
		}))
	lifecyclev1.RegisterLifecycleServiceServer(a.main, lifecycle.New(ownProcesses{a.Engine, os.DirFS("/proc"), selfUID()}, a.Ledger))
	cpuv1.RegisterCPUServiceServer(a.main, cpu.New(cpus{a}, a.Ledger, a.Engine, read))
	memoryv1.RegisterMemoryServiceServer(a.main, memory.New(
		memory.Parts{Manager: a.memoryOn, Ledger: a.Ledger, Hinter: a.Engine, KernelFree: a.kernelFree()}, read))
	devicev1.RegisterDeviceServiceServer(a.main, device.New(
		device.Parts{Inventory: a.Device, Plugins: a.plugins, Ledger: a.Ledger, Hinter: a.Engine}, read))
	topologyv1.RegisterTopologyServiceServer(a.main, topology.New(a.policies, a.Ledger))
	if err := a.registerNode(a.main); err != nil {
		return err
	}
	hintv1.RegisterHintBusServiceServer(a.main, hintbus.New(ownProviders{a.external, selfUID()}, a.Ledger))
	inspectv1.RegisterInspectServiceServer(a.main, inspect.New(
		inspect.Parts{Ledger: a.Ledger, Importer: importer.Importer{Engine: a.Engine}, Read: read, Settings: a.settingsOf, Kernel: a.reconcile.Findings, Start: a.StartLines, Recovered: a.recovered}))
	podresources.RegisterV1(a.main, readers, read.Features)
	healthpb.RegisterHealthServer(a.main, a.health)
	reflection.Register(a.main)

	// The directory's mode protects the readers' socket, as a kubelet's does.
	frame.Access = nil
	a.readersLimit = rate.NewLimiter(rate.Limit(a.Config.Limits.PodResourcesPerSecond), a.Config.Limits.PodResourcesBurst)
	frame.Limiter = a.readersLimit
	a.readers = rpc.NewServer(frame)
	podresources.Register(a.readers, readers, read.Features)
	reflection.Register(a.readers)

	for service := range a.main.GetServiceInfo() {
		a.health.SetServingStatus(service, healthpb.HealthCheckResponse_NOT_SERVING)
	}
	a.monitor = a.newMonitor()
	return nil
}

// memoryOn returns the memory manager that decides on a view.
func (a *App) memoryOn(view *ledger.View) memory.Manager { return a.Managers.On(view).Memory }

// settingsOf tells those of the manager behind a kubelet's state file.
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
