package main

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	cgroupv1 "github.com/berthd/berth/api/berth/cgroup/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/managers/errdefs"
)

// Resize decides by the pod's uid, which is its name.
func (f fakeAdmission) Resize(_ context.Context, req *admissionv1.ResizeRequest) (*admissionv1.ResizeResponse, error) {
	f.ask(req)
	moves := len(req.GetContainers()) == 1 && req.GetContainers()[0].GetResources().GetRequests()["cpu"] == "4"
	switch req.GetPodUid() {
	case webUID, "u-web":
		if moves {
			return movedWeb(), nil
		}
		if repeated(req) {
			return &admissionv1.ResizeResponse{Verdict: admissionv1.Verdict_VERDICT_ADMITTED, Replayed: true,
				QosClass: typesv1.QOSClass_QOS_CLASS_GUARANTEED, Revision: 12, AdmissionId: "try-1",
				Disruption: admissionv1.Disruption_DISRUPTION_NONE}, nil
		}
		return &admissionv1.ResizeResponse{
			Verdict: admissionv1.Verdict_VERDICT_ADMITTED, QosClass: typesv1.QOSClass_QOS_CLASS_GUARANTEED,
			RestartContainers: []string{"app"},
			Disruption:        admissionv1.Disruption_DISRUPTION_RESTART, AdmissionId: "try-1", Revision: 13,
		}, nil
	case "u-big":
		return &admissionv1.ResizeResponse{
			Verdict: admissionv1.Verdict_VERDICT_REJECTED, Reason: "Infeasible",
			Message: `Resize is infeasible for Guaranteed Pods alongside CPU Manager policy "static"`,
		}, nil
	case twinUID:
		return &admissionv1.ResizeResponse{Verdict: admissionv1.Verdict_VERDICT_ADMITTED,
			Disruption: admissionv1.Disruption_DISRUPTION_MOVE_CPUS}, nil
	case "u-early":
		return &admissionv1.ResizeResponse{
			Verdict: admissionv1.Verdict_VERDICT_DEFERRED, Reason: "Deferred", RetryAfter: durationpb.New(5e9),
			Message: "Node didn't have enough resource: cpu, requested: 5001, used: 10000, capacity: 15000",
		}, nil
	default:
		return nil, errdefs.NotFoundf("pod %s is not admitted", req.GetPodUid())
	}
}

// repeated reports whether default/web has the amounts of a request.
func repeated(req *admissionv1.ResizeRequest) bool {
	for _, c := range req.GetContainers() {
		for _, amounts := range []map[string]string{c.GetResources().GetRequests(), c.GetResources().GetLimits()} {
			for name, text := range amounts {
				if !command.SameAmount(name, text, requested().GetLimits()[name]) {
					return false
				}
			}
		}
	}
	return req.GetResources() == nil
}

type fakeCgroup struct {
	cgroupv1.UnimplementedCgroupServiceServer
	*fake
}

func (f fakeCgroup) List(context.Context, *cgroupv1.ListRequest) (*cgroupv1.ListResponse, error) {
	p := func(n int64) *int64 { return &n }
	u := func(n uint64) *uint64 { return &n }
	out := &cgroupv1.ListResponse{
		Driver: "systemd", Version: 2,
		Cgroups: []*cgroupv1.Cgroup{
			{
				Name: "/kubepods", Literal: "/kubepods.slice", State: cgroupv1.State_STATE_VALID, Managed: true, MemoryUsageBytes: 3 << 30,
				Resources: &typesv1.LinuxResources{
					CpuWeight: u(586), CpuQuotaMicroseconds: p(-1), CpuPeriodMicroseconds: u(100000), MemoryLimitBytes: p(62 << 30),
					PidsLimit:      p(509000),
					HugepageLimits: []*typesv1.HugepageLimit{{PageSizeBytes: 2 << 20, LimitBytes: p(1 << 62)}},
					CpusetCpus:     &typesv1.CPUSet{List: "0-15"}, CpusetMems: &typesv1.NUMANodeSet{Ids: []uint32{0, 1}},
				},
			},
			{
				Name: "/kubepods/burstable", Literal: "/kubepods.slice/kubepods-burstable.slice", State: cgroupv1.State_STATE_INVALID,
				Reason: "has some missing controllers: cpuset", Managed: true, Resources: &typesv1.LinuxResources{CpuWeight: u(4)},
				Pending: []*cgroupv1.Write{{Cgroup: "/kubepods/burstable", File: "cpu.weight", NewValue: "186", Create: true}},
			},
			{
				Name: "/kubepods/burstable/podu1", Literal: "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podu1.slice",
				State: cgroupv1.State_STATE_VALID, Managed: true, PodUid: "u1", MemoryUsageBytes: 1 << 20,
				Resources: &typesv1.LinuxResources{
					CpuWeight: u(10), CpuQuotaMicroseconds: p(150000), CpuPeriodMicroseconds: u(100000), MemoryLimitBytes: p(512 << 20),
					PidsLimit: p(-1),
					HugepageLimits: []*typesv1.HugepageLimit{{PageSizeBytes: 2 << 20, LimitBytes: p(0)},
						{PageSizeBytes: 1 << 30, LimitBytes: p(1 << 30)}}, Unified: map[string]string{"memory.low": "134217728"},
				},
				Pending: []*cgroupv1.Write{{Cgroup: "/kubepods/burstable/podu1", File: "memory.max", OldValue: "536870912",
					NewValue: "268435456"}},
			},
			{Name: "/kubepods/besteffort", Literal: "/kubepods.slice/kubepods-besteffort.slice", State: cgroupv1.State_STATE_ABSENT,
				Managed: true},
		},
	}
	if !f.empty {
		out.Drifts = []*cgroupv1.Drift{
			{Cgroup: "/kubepods/besteffort", Want: "valid", Found: "absent", FindTime: timestamppb.New(testNow.Add(-time.Hour))},
			{Cgroup: "/kubepods/burstable/podu1", File: "memory.max", Want: "268435456", Found: "536870912",
				FindTime: timestamppb.New(testNow.Add(-90 * time.Second))},
		}
	}
	return out, nil
}

func (f fakeNode) GetCapacity(context.Context, *nodev1.GetCapacityRequest) (*nodev1.GetCapacityResponse, error) {
	return &nodev1.GetCapacityResponse{Capacity: map[string]string{
		"cpu": "16", "memory": "68719476736", "hugepages-2Mi": "1073741824", "ephemeral-storage": "107374182400", "pid": "511000",
		"pods": "110",
	}}, nil
}

func (f fakeNode) GetAllocatable(context.Context, *nodev1.GetAllocatableRequest) (*nodev1.GetAllocatableResponse, error) {
	out := &nodev1.GetAllocatableResponse{
		Allocatable: map[string]string{"cpu": "15", "memory": "65498251264", "hugepages-2Mi": "1073741824",
			"ephemeral-storage": "96636764160", "pods": "110"},
		Limit: map[string]string{"cpu": "15", "memory": "66571993088", "hugepages-2Mi": "1073741824",
			"ephemeral-storage": "107374182400", "pid": "509000"},
		Requested: map[string]string{"cpu": "2500m", "memory": "3221225472", "pods": "2"},
	}
	if f.claims {
		out.ResourceClaims = []*nodev1.ClaimNode{{NumaNode: 1, Cpus: &typesv1.CPUSet{List: "4-7"},
			Resources: map[string]string{"memory": "2147483648"}, CpuStep: 1}}
	}
	return out, nil
}

func (f fakeNode) GetReservation(context.Context, *nodev1.GetReservationRequest) (*nodev1.GetReservationResponse, error) {
	return &nodev1.GetReservationResponse{
		Reservation: map[string]string{"cpu": "1", "memory": "2252341248", "ephemeral-storage": "10737418240"},
		System:      map[string]string{"cpu": "500m", "memory": "1073741824", "pid": "1000"},
		Kube:        map[string]string{"cpu": "500m", "memory": "1073741824", "pid": "1000"},
		Eviction:    map[string]string{"memory": "104857600", "ephemeral-storage": "10737418240"},
	}, nil
}

// GetConfig is that of a node without cgroups of pods where there is nothing else either.
func (f fakeNode) GetConfig(context.Context, *nodev1.GetConfigRequest) (*nodev1.GetConfigResponse, error) {
	if f.empty {
		return &nodev1.GetConfigResponse{
			CgroupVersion: 1, CgroupDriver: "cgroupfs", CgroupRoot: "/", PodCgroupRoot: "/", Controllers: []string{"cpu", "memory"},
			EnforceNodeAllocatable: []string{"none"},
		}, nil
	}
	return &nodev1.GetConfigResponse{
		CgroupVersion: 2, CgroupDriver: "systemd", CgroupRoot: "/", PodCgroupRoot: "/kubepods.slice",
		Controllers:            []string{"cpu", "cpuset", "memory"},
		EnforceNodeAllocatable: []string{"pods", "kube-reserved"}, KubeReservedCgroup: "/kube.slice", NodeFit: true, CgroupsPerQos: true,
		RuntimeEndpoint: "unix:///run/containerd/containerd.sock",
		MountedSubsystems: []*nodev1.MountedSubsystem{
			{Name: "cpu", MountPoint: "/sys/fs/cgroup/cpu,cpuacct", HierarchyId: 3, Version: 1},
			{Name: "unified", MountPoint: "/sys/fs/cgroup/unified", Version: 2},
		},
	}, nil
}

func (f fakeNode) GetStatus(context.Context, *nodev1.GetStatusRequest) (*nodev1.GetStatusResponse, error) {
	return &nodev1.GetStatusResponse{
		SoftRequirements: []string{"CPU hardcapping unsupported"}, KernelSettings: []string{"kernel/panic is 0, expected 10"},
		ResetExtendedResources: f.empty,
		SchedulerExcess:        []string{"the scheduler counts 16 of cpu as allocatable, and pods can have 15: give berthd the kubelet's reservations (--kubelet-config)"},
		SystemContainers: []*nodev1.SystemContainer{
			{Part: nodev1.SystemContainer_PART_BERTHD, Cgroup: "/system.slice/berthd.service", Pid: 812},
			{Part: nodev1.SystemContainer_PART_RUNTIME, Problem: "nobody serves /run/containerd/containerd.sock"},
			{Part: nodev1.SystemContainer_PART_PODS, Cgroup: "/kubepods.slice"},
		},
	}, nil
}

// GetUsage is a second later with every call.
func (f fakeNode) GetUsage(_ context.Context, req *nodev1.GetUsageRequest) (*nodev1.GetUsageResponse, error) {
	f.ask(req)
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.readings
	f.readings++
	out := &nodev1.GetUsageResponse{ReadTime: timestamppb.New(testNow.Add(time.Duration(n) * time.Second))}
	if f.empty {
		return out, nil
	}
	u := func(v uint64) *uint64 { return &v }
	for cpu := range uint32(8) {
		out.CpuTimes = append(out.CpuTimes, &nodev1.CPUTime{Cpu: cpu, BusyNanoseconds: n * uint64(cpu) * 1e8})
	}
	out.Containers = []*nodev1.ContainerUsage{{
		PodUid: webUID, ContainerName: "app", ContainerId: "c0ffee", CpuNanoseconds: n * 15e8, MemoryBytes: 2 << 30,
		WorkingSetBytes: 1 << 30,
		Periods:         u(n), ThrottledPeriods: u(n), ThrottledNanoseconds: u(n * 25e7), CpuPressureMicroseconds: u(n * 5e5),
		MemoryPressureMicroseconds: u(0),
		NumaMemory:                 []*nodev1.NUMAMemory{{NumaNode: 0, Bytes: 1 << 30}, {NumaNode: 1}},
		HugePages:                  []*nodev1.HugePageUsage{{PageSizeBytes: 2 << 20, Bytes: 64 << 20}},
	}}
	out.Drifts = []*cgroupv1.Drift{{PodUid: webUID, ContainerName: "app", Cgroup: "/kubepods/pod1/app", File: "cpuset.cpus", Want: "1-2",
		Found: "0-7", FindTime: timestamppb.New(testNow)}}
	return out, nil
}

// movedWeb is the answer to a resize of pod web that moves its container app to NUMA node 1.
func movedWeb() *admissionv1.ResizeResponse {
	cpus := func(list string) *typesv1.CPUSet { return &typesv1.CPUSet{List: list} }
	nodes := func(ids ...uint32) *typesv1.NUMANodeSet { return &typesv1.NUMANodeSet{Ids: ids} }
	step := func(kind typesv1.MoveStepKind, from, to string, before, after *typesv1.NUMANodeSet, bytes uint64) *typesv1.MoveStep {
		return &typesv1.MoveStep{
			Kind: kind, PodUid: webUID, ContainerName: "app", CpusBefore: cpus(from), CpusAfter: cpus(to), MemoryNodesBefore: before,
			MemoryNodesAfter: after, Bytes: bytes,
		}
	}
	return &admissionv1.ResizeResponse{
		Verdict: admissionv1.Verdict_VERDICT_ADMITTED, Disruption: admissionv1.Disruption_DISRUPTION_MOVE_MEMORY, AdmissionId: "try-1",
		Revision: 13,
		Allocations: []*typesv1.ContainerAllocation{{ContainerName: "app", Cpus: cpus("1-2,4-7"), ExclusiveCpus: true,
			Claims: []*typesv1.Claim{{
				Provider: "cpu", Resource: "cpu", Payload: &typesv1.Claim_Cpu{Cpu: &typesv1.CPUClaim{Cpus: cpus("1-2,4-7")}},
			}}}},
		Plan: &typesv1.MovePlan{
			ContainerCount: 1, CpuCount: 4, Bytes: 2 << 30,
			Steps: []*typesv1.MoveStep{
				step(typesv1.MoveStepKind_MOVE_STEP_KIND_WIDEN, "1-2", "1-2,4-7", nodes(0), nodes(0, 1), 0),
				step(typesv1.MoveStepKind_MOVE_STEP_KIND_MIGRATE, "1-2,4-7", "1-2,4-7", nodes(0, 1), nodes(1), 2<<30),
				step(typesv1.MoveStepKind_MOVE_STEP_KIND_NARROW, "1-2,4-7", "4-7", nodes(0, 1), nodes(1), 0),
			},
			Claims: []*typesv1.Claim{{
				PodUid: webUID, ContainerName: "app", Provider: "cpu", Resource: "cpu",
				Payload: &typesv1.Claim_Cpu{Cpu: &typesv1.CPUClaim{Cpus: cpus("4-7"), Sharing: typesv1.CPUSharing_CPU_SHARING_EXCLUSIVE}},
			}},
		},
	}
}

// Defragment decides by the pod's name: web fits, gone never does, big fits after web has moved, and early does not
// fit although web has moved.
func (f fakeAdmission) Defragment(req *admissionv1.DefragmentRequest, to grpc.ServerStreamingServer[admissionv1.DefragmentResponse]) error {
	plan := &admissionv1.DefragmentPlan{Verdict: admissionv1.Verdict_VERDICT_REJECTED, Reason: "TopologyAffinityError",
		Message: "it cannot be aligned"}
	send := func(event *admissionv1.DefragmentResponse) error { return to.Send(event) }
	name := req.GetPod().GetMetadata().GetName()
	switch name {
	case "web":
		plan = &admissionv1.DefragmentPlan{Verdict: admissionv1.Verdict_VERDICT_ADMITTED, Fits: true}
	case "gone":
		plan.Why = "it would not fit either without all that can move"
	default:
		plan.Fits = true
		plan.Allocation = &typesv1.PodAllocation{
			Uid: "new", Namespace: "default", Name: name,
			Containers: []*typesv1.ContainerAllocation{{ContainerName: "app", Claims: []*typesv1.Claim{cpuClaim("new", "app", "1-3"), {
				PodUid: "new", ContainerName: "app", Provider: "device", Resource: "example.com/gpu",
				Payload: &typesv1.Claim_Device{Device: &typesv1.DeviceClaim{Devices: []*typesv1.Device{{Id: "gpu-1"}}}},
			}}}},
		}
		plan.Moves = []*admissionv1.PlannedMove{{PodUid: webUID, Namespace: "default", Name: "web", Plan: movedWeb().GetPlan()}}
	}
	if err := send(&admissionv1.DefragmentResponse{Event: &admissionv1.DefragmentResponse_Plan{Plan: plan}}); err != nil ||
		req.GetDryRun() {
		return err
	}
	result := &admissionv1.DefragmentResult{Fits: plan.GetFits()}
	if len(plan.GetMoves()) > 0 {
		result.Moved = 1
		for _, e := range []*admissionv1.DefragmentResponse{
			{Event: &admissionv1.DefragmentResponse_Progress{Progress: &admissionv1.MoveProgress{PodUid: webUID}}},
			{Event: &admissionv1.DefragmentResponse_Progress{Progress: &admissionv1.MoveProgress{PodUid: webUID, ArrivedBytes: 1 << 30,
				AllBytes: 2 << 30}}},
			{Event: &admissionv1.DefragmentResponse_Moved{Moved: &admissionv1.PodMoved{
				PodUid: webUID, Duration: durationpb.New(1200 * time.Millisecond), Throttled: durationpb.New(0),
				CpuPressure: durationpb.New(3 * time.Millisecond),
				BytesBefore: map[uint32]uint64{0: 2 << 30}, BytesAfter: map[uint32]uint64{0: 4096, 1: 2 << 30},
			}}},
		} {
			if err := send(e); err != nil {
				return err
			}
		}
	}
	if name == "early" {
		result.Fits, result.Why = false, "other pods have taken the room meanwhile: it cannot be aligned"
	}
	return send(&admissionv1.DefragmentResponse{Event: &admissionv1.DefragmentResponse_Result{Result: result}})
}
