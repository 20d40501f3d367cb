package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

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
	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/protocol"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/servertest"
)

// fake is a berthd whose state is simulated: two pods on a machine of two nodes.
// It records the requests.
type fake struct {
	mu    sync.Mutex
	asked []proto.Message

	// empty is a berthd that knows neither pods nor devices.
	empty bool
	// sick is one whose ledger breaks its rules.
	sick bool
	// claims is one with claims on dynamic resources.
	claims bool
	// twist changes what services answer.
	twist func(grpc.ServiceRegistrar) grpc.ServiceRegistrar
	// readings is how often usage was read.
	readings uint64
	// leaves is the number of the list from which the first pod is missing; 0 is none.
	leaves atomic.Int32
	// streams are what Watch serves.
	streams *streams
}

func (f *fake) ask(m proto.Message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, proto.Clone(m))
}

// start serves the fake on a socket and returns its path.
func (f *fake) start(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "b")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "berth.sock")
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	servertest.Serve(t, path, func(s *grpc.Server) {
		var r grpc.ServiceRegistrar = s
		if f.twist != nil {
			r = f.twist(s)
		}
		admissionv1.RegisterAdmissionServiceServer(r, fakeAdmission{fake: f})
		allocationv1.RegisterAllocationServiceServer(r, fakeAllocation{fake: f})
		lifecyclev1.RegisterLifecycleServiceServer(r, fakeLifecycle{fake: f})
		cpuv1.RegisterCPUServiceServer(r, fakeCPU{fake: f})
		memoryv1.RegisterMemoryServiceServer(r, fakeMemory{fake: f})
		devicev1.RegisterDeviceServiceServer(r, fakeDevice{fake: f})
		fitv1.RegisterFitServiceServer(r, fakeFit{fake: f})
		topologyv1.RegisterTopologyServiceServer(r, fakeTopology{fake: f})
		nodev1.RegisterNodeServiceServer(r, fakeNode{fake: f})
		inspectv1.RegisterInspectServiceServer(r, fakeInspect{fake: f})
		cgroupv1.RegisterCgroupServiceServer(r, fakeCgroup{fake: f})
		hintv1.RegisterHintBusServiceServer(r, fakeBus{fake: f})
		healthv1.RegisterHealthServer(r, fakeHealth{})
		podresourcesv1.RegisterPodResourcesListerServer(r, fakeLister{fake: f})
	})
	return path
}

const (
	webUID   = "11111111-0000-4000-8000-000000000001"
	otherUID = "22222222-0000-4000-8000-000000000002"
	twinUID  = "33333333-0000-4000-8000-000000000003"
)

func hintOf(preferred bool, ids ...uint32) *typesv1.TopologyHint {
	return &typesv1.TopologyHint{NumaNodes: &typesv1.NUMANodeSet{Ids: ids}, Preferred: preferred}
}

func cpuClaim(uid, container, cpus string) *typesv1.Claim {
	return &typesv1.Claim{
		PodUid: uid, ContainerName: container, Provider: "cpu", Resource: "cpu", Affinity: hintOf(true, 0),
		Payload: &typesv1.Claim_Cpu{Cpu: &typesv1.CPUClaim{Cpus: &typesv1.CPUSet{List: cpus},
			Sharing: typesv1.CPUSharing_CPU_SHARING_EXCLUSIVE}},
	}
}

func gpuClaim(uid, container string) *typesv1.Claim {
	return &typesv1.Claim{
		PodUid: uid, ContainerName: container, Provider: "device", Resource: "example.com/gpu", Affinity: hintOf(true, 0),
		Payload: &typesv1.Claim_Device{Device: &typesv1.DeviceClaim{Devices: []*typesv1.Device{{Id: "gpu-0",
			NumaNodes: &typesv1.NUMANodeSet{Ids: []uint32{0}}}}}},
	}
}

// flapped is the history of a device that was away for a minute an hour ago.
func flapped() []*typesv1.HealthChange {
	at := func(before time.Duration) *timestamppb.Timestamp { return timestamppb.New(testNow.Add(-before)) }
	return []*typesv1.HealthChange{
		{Time: at(48 * time.Hour), Health: typesv1.Health_HEALTH_HEALTHY}, {Time: at(time.Hour), Health: typesv1.Health_HEALTH_MISSING},
		{Time: at(59 * time.Minute), Health: typesv1.Health_HEALTH_HEALTHY},
	}
}

func sharedCPUs() *typesv1.CPUSet { return &typesv1.CPUSet{List: "0,3-7"} }

// requested returns the requests of the container app.
func requested() *typesv1.ResourceRequirements {
	amounts := map[string]string{"cpu": "2", "memory": "1073741824", "example.com/gpu": "1"}
	return &typesv1.ResourceRequirements{Requests: amounts, Limits: amounts}
}

// webContainers is what the containers of default/web got.
func webContainers() []*typesv1.ContainerAllocation {
	return []*typesv1.ContainerAllocation{
		{ContainerName: "log", Role: typesv1.ContainerRole_CONTAINER_ROLE_SIDECAR},
		{
			ContainerName: "app", Role: typesv1.ContainerRole_CONTAINER_ROLE_APP, Cpus: &typesv1.CPUSet{List: "1-2"}, ExclusiveCpus: true,
			Affinity: hintOf(true, 0),
			Claims: []*typesv1.Claim{cpuClaim(webUID, "app", "1-2"), gpuClaim(webUID, "app"), {
				PodUid: webUID, ContainerName: "app", Provider: "memory", Resource: "memory", Affinity: hintOf(true, 0),
				Payload: &typesv1.Claim_Memory{Memory: &typesv1.MemoryClaim{Blocks: []*typesv1.MemoryBlock{{
					NumaNodes: &typesv1.NUMANodeSet{Ids: []uint32{0}}, Bytes: 1 << 30}}}},
			}},
			ContainerIds: []string{"c0ffee"}, Resources: requested(),
		},
	}
}

func (f *fake) pods() []*typesv1.PodAllocation {
	if f.empty {
		return nil
	}
	if f.claims {
		return f.claimed()
	}
	return []*typesv1.PodAllocation{
		{
			Uid: webUID, Namespace: "default", Name: "web", QosClass: typesv1.QOSClass_QOS_CLASS_GUARANTEED,
			CgroupParent: "/kubepods/pod" + webUID, Containers: webContainers(),
			AdmissionId: "ADMISSION1", AdmitTime: timestamppb.New(testNow.Add(-5 * time.Minute)),
		},
		{
			Uid: otherUID, Namespace: "shop", Name: "twin", QosClass: typesv1.QOSClass_QOS_CLASS_BURSTABLE,
			CgroupParent: "/kubepods/burstable/pod" + otherUID,
			Containers:   []*typesv1.ContainerAllocation{{ContainerName: "c", Role: typesv1.ContainerRole_CONTAINER_ROLE_APP}},
			AdmissionId:  "ADMISSION2", AdmitTime: timestamppb.New(testNow.Add(-3 * 24 * time.Hour)),
		},
		{
			Uid: twinUID, Namespace: "test", Name: "twin", QosClass: typesv1.QOSClass_QOS_CLASS_BEST_EFFORT,
			Containers: []*typesv1.ContainerAllocation{{ContainerName: "c", Role: typesv1.ContainerRole_CONTAINER_ROLE_APP}},
		},
	}
}

const claimUID = "77777777-0000-4000-8000-000000000007"

// claimed are the pods of a fake with a claim that default/web uses, and one that nobody uses.
func (f *fake) claimed() []*typesv1.PodAllocation {
	pods := (&fake{}).pods()
	pods[0].GetContainers()[1].ExternalDevices = []*typesv1.ExternalDevice{{Resource: protocol.ClaimResource, Id: claimUID + ":place"},
		{Resource: protocol.ClaimResource, Id: claimUID + ":more"}}
	claim := func(uid, name, cpus string) *typesv1.PodAllocation {
		return &typesv1.PodAllocation{
			Uid: uid, Namespace: "default", Name: name, QosClass: typesv1.QOSClass_QOS_CLASS_GUARANTEED,
			ResourceClaimNodes: &typesv1.NUMANodeSet{Ids: []uint32{1}},
			Containers: []*typesv1.ContainerAllocation{{
				ContainerName: "claim", Role: typesv1.ContainerRole_CONTAINER_ROLE_APP, Cpus: &typesv1.CPUSet{List: cpus},
				ExclusiveCpus: true, Affinity: hintOf(true, 1),
				Claims: []*typesv1.Claim{cpuClaim(uid, "claim", cpus), {
					PodUid: uid, ContainerName: "claim", Provider: "memory", Resource: "memory", Affinity: hintOf(true, 1),
					Payload: &typesv1.Claim_Memory{Memory: &typesv1.MemoryClaim{Blocks: []*typesv1.MemoryBlock{{
						NumaNodes: &typesv1.NUMANodeSet{Ids: []uint32{1}}, Bytes: 1 << 30}}}},
				}},
			}},
			AdmissionId: "ADMISSION7", AdmitTime: timestamppb.New(testNow.Add(-10 * time.Minute)), Owner: "dra",
		}
	}
	used, spare := claim(claimUID, "web", "4-5"), claim("88888888-0000-4000-8000-000000000008", "spare", "6")
	used.ResourceClaimPods = []*typesv1.ClaimPod{{Name: "web", Uid: webUID}}
	spare.ResourceClaimPods = []*typesv1.ClaimPod{{Name: "late-1", Uid: "late-1-uid"}, {Name: "late-2", Uid: "late-2-uid"}}
	return append(pods, used, spare)
}

func (f *fake) pod(uid string) (*typesv1.PodAllocation, error) {
	for _, p := range f.pods() {
		if p.GetUid() == uid {
			for _, c := range command.AllClaims(p) {
				for _, d := range c.GetDevice().GetDevices() {
					d.Health, d.HealthHistory = typesv1.Health_HEALTH_HEALTHY, flapped()
				}
			}
			return p, nil
		}
	}
	return nil, errdefs.NotFoundf("pod %s is not known", uid)
}

type fakeAdmission struct {
	admissionv1.UnimplementedAdmissionServiceServer
	*fake
}

// Admit decides by the pod's name.
func (f fakeAdmission) Admit(_ context.Context, req *admissionv1.AdmitRequest) (*admissionv1.AdmitResponse, error) {
	f.ask(req)
	meta := req.GetPod().GetMetadata()
	out := &admissionv1.AdmitResponse{QosClass: typesv1.QOSClass_QOS_CLASS_GUARANTEED, AdmissionId: "ADMISSION9"}
	switch meta.GetName() {
	case "web":
		out.Verdict = admissionv1.Verdict_VERDICT_ADMITTED
		out.CgroupParent = "/kubepods/pod" + meta.GetUid()
		out.Allocations, out.SharedCpus = webContainers(), sharedCPUs()
		out.Trace = traces()[0]
	case "placed":
		out.Verdict = admissionv1.Verdict_VERDICT_ADMITTED
		out.Trace = placedTrace()
	case "without":
		out.Verdict = admissionv1.Verdict_VERDICT_ADMITTED
		out.Notes = []string{
			"container app requests 1 example.org/fpga, which has no provider here: the container does not get it",
			"container log requests 1 example.org/nic, which another program allocates (devices.elsewhere)",
		}
	case "big":
		out.Verdict = admissionv1.Verdict_VERDICT_REJECTED
		out.Reason = "TopologyAffinityError"
		out.Message = "Resources cannot be allocated with Topology locality"
		out.Trace = traces()[1]
	case "early":
		out.Verdict = admissionv1.Verdict_VERDICT_DEFERRED
		out.Message = "the ledger was rebuilt after damage; nothing exclusive is allocated until the agent has called SyncPods"
		out.RetryAfter = durationpb.New(5e9)
		out.Condition = &admissionv1.Condition{Reason: "StateUncertain", Domain: "berth"}
		out.Trace = traces()[3]
	case "wrong":
		var vs errdefs.Violations
		vs.Addf(`pod.spec.containers[0].resources.requests["cpu"]`, "-1: expected 0 or more")
		vs.Addf("pod.spec.containers[1].name", "%q is used twice", "c")
		return nil, vs.Err("pod default/wrong")
	case "changed":
		return nil, errdefs.Preconditionf("pod %s is admitted with another specification: only its resources may change, by Resize; otherwise Remove it first", meta.GetUid())
	case "panic":
		panic("made to")
	default:
		return nil, errdefs.Unavailablef("commit generation 13: no space left on device")
	}
	return out, nil
}

func (f fakeAdmission) RemovePod(_ context.Context, req *admissionv1.RemovePodRequest) (*admissionv1.RemovePodResponse, error) {
	f.ask(req)
	if req.GetPodUid() != webUID {
		return &admissionv1.RemovePodResponse{}, nil
	}
	return &admissionv1.RemovePodResponse{Removed: true, Released: webContainers()[1].GetClaims()}, nil
}

func (f fakeAdmission) SyncPods(_ context.Context, req *admissionv1.SyncPodsRequest) (*admissionv1.SyncPodsResponse, error) {
	f.ask(req)
	out := &admissionv1.SyncPodsResponse{}
	for _, p := range f.pods() {
		if !slices.Contains(req.GetActivePodUids(), p.GetUid()) {
			out.RemovedPodUids = append(out.RemovedPodUids, p.GetUid())
		}
	}
	return out, nil
}

type fakeAllocation struct {
	allocationv1.UnimplementedAllocationServiceServer
	*fake
}

func (f fakeAllocation) Get(_ context.Context, req *allocationv1.GetRequest) (*allocationv1.GetResponse, error) {
	p, err := f.pod(req.GetPodUid())
	if err != nil {
		return nil, err
	}
	out := &allocationv1.GetResponse{Pod: p, Revision: 12, SharedCpus: sharedCPUs(), Spec: &typesv1.Pod{
		Metadata: &typesv1.PodMetadata{Name: p.GetName(), Namespace: p.GetNamespace(), Uid: p.GetUid()},
		Spec:     &typesv1.PodSpec{Containers: []*typesv1.Container{{Name: "app", Resources: requested()}}},
		Status:   &typesv1.PodStatus{QosClass: "Guaranteed"},
	}}
	for i, c := range p.GetContainers() {
		out.Placements = append(out.Placements, &allocationv1.ContainerPlacement{
			ContainerName: c.GetContainerName(), Id: "0123abcd", Phase: allocationv1.ContainerPhase_CONTAINER_PHASE_RUNNING,
			AssignedCpus: c.GetCpus(), PossibleCpus: c.GetCpus(),
		})
		if c.GetContainerName() == "app" {
			out.Placements[i].Phase, out.Placements[i].AssignedCpus = allocationv1.ContainerPhase_CONTAINER_PHASE_PLANNED, nil
			out.Placements[i].BlockedBy, out.Placements[i].BlockTime = []*typesv1.ContainerRef{{PodUid: otherUID, ContainerName: "app"}},
				timestamppb.New(testNow)
		}
	}
	return out, nil
}

func (f fakeAllocation) GetRevision(context.Context, *allocationv1.GetRevisionRequest) (*allocationv1.GetRevisionResponse, error) {
	return &allocationv1.GetRevisionResponse{Revision: 12}, nil
}

func (f fakeAllocation) List(_ context.Context, req *allocationv1.ListRequest) (*allocationv1.ListResponse, error) {
	f.ask(req)
	out := &allocationv1.ListResponse{Revision: 12, SharedCpus: sharedCPUs()}
	pods := f.pods()
	if f.leaves.Add(-1) == 0 {
		pods = pods[1:]
	}
	for _, p := range pods {
		if (req.GetNamespace() == "" || req.GetNamespace() == p.GetNamespace()) && (req.GetName() == "" || req.GetName() == p.GetName()) {
			out.Pods = append(out.Pods, p)
		}
	}
	return out, nil
}

func (f fakeAllocation) Allocate(_ context.Context, req *allocationv1.AllocateRequest) (*allocationv1.AllocateResponse, error) {
	f.ask(req)
	if req.GetContainerName() != "app" {
		return nil, errdefs.NotFoundf("pod %s has no container %s", req.GetPodUid(), req.GetContainerName())
	}
	return &allocationv1.AllocateResponse{
		Notes: []string{`environment variable A: "1" of example.com/gpu is used, not "2" of example.com/nic`},
		Resources: &typesv1.LinuxResources{
			CpusetCpus: &typesv1.CPUSet{List: "1-2"}, CpusetMems: &typesv1.NUMANodeSet{Ids: []uint32{0}}, CpuShares: proto.Uint64(2048),
			CpuQuotaMicroseconds: proto.Int64(200000), CpuPeriodMicroseconds: proto.Uint64(100000),
			MemoryLimitBytes: proto.Int64(1 << 30), MemorySwapLimitBytes: proto.Int64(-1), OomScoreAdj: proto.Int32(-997),
			HugepageLimits: []*typesv1.HugepageLimit{{PageSizeBytes: 2 << 20, LimitBytes: proto.Int64(4 << 20)},
				{PageSizeBytes: 1 << 30, LimitBytes: proto.Int64(0)}},
			Unified: map[string]string{"memory.high": "900000000", "memory.min": "0"},
		},
		Edits: &typesv1.ContainerEdits{
			Devices: []*typesv1.DeviceNode{
				{HostPath: "/dev/gpu0", ContainerPath: "/dev/gpu0", Permissions: "rw"},
				{HostPath: "/dev/gpuctl", ContainerPath: "/dev/ctl", Permissions: "r"},
			},
			Mounts:      []*typesv1.Mount{{HostPath: "/opt/gpu", ContainerPath: "/usr/lib/gpu", ReadOnly: true}},
			Envs:        map[string]string{"GPU": "gpu-0", "GPU_MODE": "fast"},
			Annotations: map[string]string{"example.com/gpu": "0"},
			CdiDevices:  []*typesv1.CDIDevice{{Name: "example.com/gpu=gpu-0"}},
		},
		CgroupParent: "/kubepods/pod" + webUID, CgroupPath: "/kubepods/pod" + webUID + "/app",
		Allocation: webContainers()[1],
	}, nil
}

type fakeLifecycle struct {
	lifecyclev1.UnimplementedLifecycleServiceServer
	*fake
}

func (f fakeLifecycle) PreStartContainer(_ context.Context,
	req *lifecyclev1.PreStartContainerRequest) (*lifecyclev1.PreStartContainerResponse, error) {
	f.ask(req)
	out := &lifecyclev1.PreStartContainerResponse{CpusetCpus: &typesv1.CPUSet{List: "1-2"},
		CpusetMems: &typesv1.NUMANodeSet{Ids: []uint32{0}}}
	if req.GetPid() != 0 {
		out.CgroupPath = fmt.Sprintf("/kubepods/pod%s/%s", req.GetPodUid(), req.GetContainerName())
	}
	return out, nil
}

func (f fakeLifecycle) PostStopContainer(_ context.Context,
	req *lifecyclev1.PostStopContainerRequest) (*lifecyclev1.PostStopContainerResponse, error) {
	return &lifecyclev1.PostStopContainerResponse{Found: req.GetContainerId() == "c0ffee"}, nil
}
