package allocation_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/reconcile"
	"github.com/berthd/berth/server/internal/rpc/allocation"
	"github.com/berthd/berth/server/internal/rpc/rpctest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	_ allocation.Engine = (*admission.Engine)(nil)
	_ allocation.Paths  = (*reconcile.Loop)(nil)
)

// engine admits every pod to a ledger with a claim on CPUs 6-7, except those
// that it has a verdict on.
type engine struct {
	ledger   *ledger.Ledger
	verdicts map[string]admission.Verdict // by uid
}

func (e *engine) Admit(ctx context.Context, req admission.Request) (admission.Verdict, error) {
	if v, ok := e.verdicts[req.Pod.UID]; ok {
		return v, nil
	}
	record := ledgertest.With(&ledger.Pod{Pod: req.Pod, QoS: workload.Guaranteed}, ledgertest.Exclusive(req.Pod.Containers[0].Name, "6-7"))
	view, err := e.ledger.Update(ctx, func(d *ledger.Draft) error { d.PutPod(record); return nil })
	return admission.Verdict{Outcome: admission.Admitted, Pod: record, View: view}, err
}

// paths names cgroups by pod and container.
type paths struct{}

func (paths) ContainerPath(p *ledger.Pod, container string) (string, error) {
	return "/kubepods/pod" + p.UID() + "/" + container, nil
}

// inventory is what plugins have reported.
type inventory struct{ of *device.Inventory }

func (i inventory) Inventory() *device.Snapshot { return i.of.Snapshot() }

// answer is a plugin's answer in wire form.
func answer(t *testing.T, r *pluginapi.ContainerAllocateResponse) []byte {
	t.Helper()
	b, err := proto.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// facts puts three pods into a ledger: "a" with CPUs, memory and devices, "b"
// without anything, "x" with an answer that cannot be read.
func facts(t *testing.T) *ledger.Ledger {
	t.Helper()
	l := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("2n4c2t,mem=8Gi")})
	gpu := ledgertest.Devices("main", "example.com/gpu", "g0")
	gpu.Devices.Response = answer(t, &pluginapi.ContainerAllocateResponse{
		Envs:        map[string]string{"GPU": "g0", "A": "1"},
		Annotations: map[string]string{"example.com/gpu": "g0"},
		Devices:     []*pluginapi.DeviceSpec{{ContainerPath: "/dev/gpu", HostPath: "/dev/gpu0", Permissions: "rw"}},
		CdiDevices:  []*pluginapi.CDIDevice{{Name: "example.com/gpu=1"}, {Name: "example.com/gpu=0"}},
	})
	nic := ledgertest.Devices("main", "example.com/nic", "n0")
	nic.Devices.Response = answer(t, &pluginapi.ContainerAllocateResponse{
		Envs:   map[string]string{"NIC": "n0", "A": "2"},
		Mounts: []*pluginapi.Mount{{ContainerPath: "/nic", HostPath: "/run/nic", ReadOnly: true}},
	})
	a := ledgertest.With(ledgertest.Pod("a", "init:prepare", "main"),
		ledgertest.Exclusive("main", "2-3"), ledgertest.Memory("main", "memory", "0-1", 1<<30), gpu, nic)
	a.Pod.QoS, a.CgroupParent, a.AdmittedAt = a.QoS, "/kubepods/poda", time.Unix(1000, 0)
	a.Pod.Containers[1].Limits = workload.Quantities{workload.CPU: 2000, workload.Memory: 1 << 30, "hugepages-2Mi": 4 << 20}
	a.Pod.Containers[1].Requests = a.Pod.Containers[1].Limits

	b := ledgertest.Pod("b", "main")
	b.QoS, b.Pod.Namespace, b.CgroupParent = workload.BestEffort, "away", "/kubepods/besteffort/podb"
	b.Pod.Labels = map[string]string{"app": "web", "tier": "test"}
	broken := ledgertest.Devices("main", "example.com/tpu", "t0")
	broken.Devices.Response = []byte{0xff}
	x := ledgertest.With(ledgertest.Pod("x", "main"), broken)
	x.OwnedBy = "kubernetes"
	_, err := l.Update(t.Context(), func(d *ledger.Draft) error {
		d.PutPod(a)
		d.PutPod(b)
		d.PutPod(x)
		d.Bind(ledger.Binding{ID: "c2", Owner: ledger.Owner{Pod: "a", Container: "main"}, Sequence: 2})
		d.Bind(ledger.Binding{ID: "c1", Owner: ledger.Owner{Pod: "a", Container: "main"}, Sequence: 1})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// without has a note for every container.
type without struct{}

func (without) Notes(_ *ledger.View, p *ledger.Pod, container string) []admission.Note {
	return []admission.Note{{Text: p.UID() + "/" + container + " goes without"}}
}

func serve(t *testing.T, version cgroup.Version, verdicts map[string]admission.Verdict) allocationv1.AllocationServiceClient {
	t.Helper()
	return serveParts(t, version, verdicts, func(*allocation.Parts) {})
}

// serveParts is serve with other parts.
func serveParts(t *testing.T, version cgroup.Version, verdicts map[string]admission.Verdict,
	change func(*allocation.Parts)) allocationv1.AllocationServiceClient {
	t.Helper()
	l := facts(t)
	config := cgroup.DefaultConfig(cgroup.Facts{Version: version, PageBytes: 4096, HugePageSizes: []int64{2 << 20, 1 << 30},
		SwapLimits: true})
	config.MemoryBytes = 16 << 30
	parts := allocation.Parts{
		Engine: &engine{l, verdicts}, Noter: without{}, Ledger: history.Ledger{Ledger: l}, Paths: paths{},
		Inventory: inventory{device.NewInventory(nil, time.Unix(0, 0))},
	}
	change(&parts)
	return allocationv1.NewAllocationServiceClient(rpctest.Serve(t, func(s grpc.ServiceRegistrar) {
		allocationv1.RegisterAllocationServiceServer(s, allocation.New(allocation.Config{Cgroup: func() cgroup.Config { return config }},
			parts))
	}))
}

// onA is what container main of pod a holds.
func onA() *typesv1.ContainerAllocation {
	claim := func(provider, resource string) *typesv1.Claim {
		return &typesv1.Claim{Provider: provider, Resource: resource}
	}
	cpu, gpu, nic, memory := claim("cpu", "cpu"), claim("device", "example.com/gpu"), claim("device", "example.com/nic"),
		claim("memory", "memory")
	cpu.Payload = &typesv1.Claim_Cpu{Cpu: &typesv1.CPUClaim{Cpus: &typesv1.CPUSet{List: "2-3"},
		Sharing: typesv1.CPUSharing_CPU_SHARING_EXCLUSIVE}}
	gpu.Payload = &typesv1.Claim_Device{Device: &typesv1.DeviceClaim{Devices: []*typesv1.Device{{Id: "g0"}}}}
	nic.Payload = &typesv1.Claim_Device{Device: &typesv1.DeviceClaim{Devices: []*typesv1.Device{{Id: "n0"}}}}
	memory.Payload = &typesv1.Claim_Memory{Memory: &typesv1.MemoryClaim{Blocks: []*typesv1.MemoryBlock{
		{NumaNodes: &typesv1.NUMANodeSet{Ids: []uint32{0, 1}}, Bytes: 1 << 30},
	}}}
	return &typesv1.ContainerAllocation{
		ContainerName: "main", Role: typesv1.ContainerRole_CONTAINER_ROLE_APP, Cpus: &typesv1.CPUSet{List: "2-3"}, ExclusiveCpus: true,
		Claims: []*typesv1.Claim{cpu, gpu, nic, memory}, ContainerIds: []string{"c1", "c2"},
		CpuLocations: []*typesv1.CPULocation{{Cpu: 2, Core: 2}, {Cpu: 3, Core: 3}},
		NodeMemory:   []*typesv1.NodeMemory{{Resource: "memory", Bytes: 1 << 30}},
		Resources: &typesv1.ResourceRequirements{
			Requests: map[string]string{"cpu": "2", "memory": "1073741824", "hugepages-2Mi": "4194304"},
			Limits:   map[string]string{"cpu": "2", "memory": "1073741824", "hugepages-2Mi": "4194304"},
		},
	}
}

func TestAllocateAnswersAllThatARuntimeNeeds(t *testing.T) {
	t.Parallel()
	huge := []*typesv1.HugepageLimit{{PageSizeBytes: 2 << 20, LimitBytes: proto.Int64(4 << 20)},
		{PageSizeBytes: 1 << 30, LimitBytes: proto.Int64(0)}}
	for name, row := range map[string]struct {
		version cgroup.Version
		linux   *typesv1.LinuxResources
	}{
		"v1": {cgroup.V1, &typesv1.LinuxResources{
			CpusetCpus: &typesv1.CPUSet{List: "2-3"}, CpusetMems: &typesv1.NUMANodeSet{Ids: []uint32{0, 1}}, CpuShares: proto.Uint64(2048),
			CpuQuotaMicroseconds: proto.Int64(-1), CpuPeriodMicroseconds: proto.Uint64(100000),
			MemoryLimitBytes: proto.Int64(1 << 30), MemorySwapLimitBytes: proto.Int64(1 << 30), HugepageLimits: huge,
			OomScoreAdj: proto.Int32(-997),
		}},
		"v2": {cgroup.V2, &typesv1.LinuxResources{
			CpusetCpus: &typesv1.CPUSet{List: "2-3"}, CpusetMems: &typesv1.NUMANodeSet{Ids: []uint32{0, 1}}, CpuShares: proto.Uint64(2048),
			CpuQuotaMicroseconds: proto.Int64(-1), CpuPeriodMicroseconds: proto.Uint64(100000),
			MemoryLimitBytes: proto.Int64(1 << 30), HugepageLimits: huge, OomScoreAdj: proto.Int32(-997),
			Unified: map[string]string{"memory.oom.group": "1", "memory.swap.max": "0", "memory.min": "0", "memory.low": "0",
				"memory.high": "max"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := serve(t, row.version, nil).Allocate(t.Context(),
				&allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_PodUid{PodUid: "a"}, ContainerName: "main"})
			if err != nil {
				t.Fatal(err)
			}
			want := &allocationv1.AllocateResponse{
				Resources: row.linux,
				Edits: &typesv1.ContainerEdits{
					Devices:     []*typesv1.DeviceNode{{ContainerPath: "/dev/gpu", HostPath: "/dev/gpu0", Permissions: "rw"}},
					Mounts:      []*typesv1.Mount{{ContainerPath: "/nic", HostPath: "/run/nic", ReadOnly: true}},
					Envs:        map[string]string{"A": "1", "GPU": "g0", "NIC": "n0"},
					Annotations: map[string]string{"example.com/gpu": "g0"},
					CdiDevices:  []*typesv1.CDIDevice{{Name: "example.com/gpu=0"}, {Name: "example.com/gpu=1"}},
				},
				CgroupParent: "/kubepods/poda", CgroupPath: "/kubepods/poda/main",
				Allocation: onA(),
				Notes: []string{`environment variable A: "1" of example.com/gpu is used, not "2" of example.com/nic`,
					"a/main goes without"},
				Revision: 1,
			}
			if !proto.Equal(got, want) {
				t.Errorf("got\n\t%v\nwant\n\t%v", got, want)
			}
		})
	}
}

func TestAllocateOfASharedContainer(t *testing.T) {
	t.Parallel()
	got, err := serve(t, cgroup.V2, nil).Allocate(t.Context(),
		&allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_PodUid{PodUid: "b"}, ContainerName: "main"})
	if err != nil {
		t.Fatal(err)
	}
	if got.GetResources().GetCpusetCpus().GetList() != "0-1,4-15" || got.GetResources().GetCpusetMems() != nil {
		t.Errorf("runs on %q with memory of %q, want the shared pool and no nodes", got.GetResources().GetCpusetCpus(),
			got.GetResources().GetCpusetMems())
	}
	if got.GetAllocation().GetExclusiveCpus() || proto.Size(got.GetEdits()) != 0 {
		t.Errorf("a container without claims got %v", got)
	}
}

// pod is a pod of one container as a caller sends it.
func pod(uid string) *typesv1.Pod {
	return &typesv1.Pod{
		Metadata: &typesv1.PodMetadata{Name: "web", Uid: uid},
		Spec:     &typesv1.PodSpec{Containers: []*typesv1.Container{{Name: "main"}}},
	}
}

func TestAllocateAdmitsFirst(t *testing.T) {
	t.Parallel()
	client := serve(t, cgroup.V1, nil)
	for range 2 {
		got, err := client.Allocate(t.Context(),
			&allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_Pod{Pod: pod("new")}, ContainerName: "main"})
		if err != nil || got.GetResources().GetCpusetCpus().GetList() != "6-7" {
			t.Fatalf("%v, %v; want CPUs 6-7", got, err)
		}
	}
	got, err := client.Get(t.Context(), &allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: "new"}})
	if err != nil || got.GetPod().GetName() != "web" {
		t.Errorf("%v, %v; want the pod that was admitted", got, err)
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	client := serve(t, cgroup.V1, map[string]admission.Verdict{
		"rejected": {
			Outcome: admission.Rejected, Reason: errdefs.TopologyAffinityError,
			Message: "Resources cannot be allocated with Topology locality",
			Trace: &ledger.Trace{Steps: []ledger.Step{{Kind: ledger.StepAnswered, Provider: "device"},
				{Kind: ledger.StepRefused, Provider: "cpu", Resource: "cpu"}}},
		},
		"unexplained": {Outcome: admission.Rejected, Reason: errdefs.UnexpectedAdmissionError, Message: "no"},
		"deferred":    {Outcome: admission.Deferred, Message: "the agent has not called SyncPods"},
		"unhealthy": {
			Outcome: admission.Deferred, Message: "no healthy device",
			Condition: &admission.Condition{Type: "NoHealthyDevice", Provider: "device", Resource: "example.com/gpu"},
		},
		"waiting": {
			Outcome: admission.Deferred, Message: "no plugin", RetryAfter: 7 * time.Second,
			Condition: &admission.Condition{Type: "PluginAway", Provider: "device", Resource: "example.com/gpu"},
		},
	})
	for name, row := range map[string]struct {
		req  *allocationv1.AllocateRequest
		want rpctest.Failure
	}{
		"nothing": {&allocationv1.AllocateRequest{}, rpctest.Failure{
			Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Fields: []string{"container_name", "pod_uid"},
			Message: "request is invalid: container_name: is required (and 1 more)",
		}},
		"invalid pod": {&allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_Pod{Pod: pod("")}, ContainerName: "main"},
			rpctest.Failure{
				Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Fields: []string{"pod.metadata.uid"},
				Message: "pod default/web () is invalid: pod.metadata.uid: is required",
			}},
		"unknown pod": {&allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_PodUid{PodUid: "who"},
			ContainerName: "main"}, rpctest.Failure{
			Code: codes.NotFound, Reason: "POD_NOT_FOUND", Message: "pod who is not admitted",
		}},
		"unknown container": {&allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_PodUid{PodUid: "a"},
			ContainerName: "who"}, rpctest.Failure{
			Code: codes.NotFound, Reason: "CONTAINER_NOT_FOUND", Message: `pod a has no container "who"`,
		}},
		"unknown container of a pod to admit": {&allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_Pod{Pod: pod("new")},
			ContainerName: "who"}, rpctest.Failure{
			Code: codes.NotFound, Reason: "CONTAINER_NOT_FOUND", Message: `pod new has no container "who"`,
		}},
		"rejected": {&allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_Pod{Pod: pod("rejected")},
			ContainerName: "main"}, rpctest.Failure{
			Code: codes.FailedPrecondition, Reason: "POD_REJECTED", VerdictReason: "TopologyAffinityError", Provider: "cpu",
			Resource: "cpu",
			Message:  "pod rejected is rejected: Resources cannot be allocated with Topology locality",
		}},
		"unexplained": {&allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_Pod{Pod: pod("unexplained")},
			ContainerName: "main"}, rpctest.Failure{
			Code: codes.FailedPrecondition, Reason: "POD_REJECTED", VerdictReason: "UnexpectedAdmissionError",
			Message: "pod unexplained is rejected: no",
		}},
		"waiting": {&allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_Pod{Pod: pod("waiting")}, ContainerName: "main"},
			rpctest.Failure{
				Code: codes.Unavailable, Reason: "PLUGIN_AWAY", VerdictReason: "PluginAway", Retry: true, RetryAfter: 7 * time.Second,
				Provider: "device", Resource: "example.com/gpu",
				Message: "pod waiting is deferred: no plugin",
			}},
		"waiting for a device": {&allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_Pod{Pod: pod("unhealthy")},
			ContainerName: "main"}, rpctest.Failure{
			Code: codes.Unavailable, Reason: "POD_DEFERRED", VerdictReason: "NoHealthyDevice", Retry: true, Provider: "device",
			Resource: "example.com/gpu",
			Message:  "pod unhealthy is deferred: no healthy device",
		}},
		"deferred": {&allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_Pod{Pod: pod("deferred")},
			ContainerName: "main"}, rpctest.Failure{
			Code: codes.Unavailable, Reason: "TEMPORARILY_UNAVAILABLE", Retry: true,
			Message: "pod deferred is deferred: the agent has not called SyncPods",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := client.Allocate(t.Context(), row.req)
			row.want.Check(t, err)
		})
	}
	t.Run("owner without a pod", func(t *testing.T) {
		t.Parallel()
		_, err := client.Allocate(t.Context(), &allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_PodUid{PodUid: "a"},
			ContainerName: "main", Owner: "me"})
		rpctest.Failure{
			Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Fields: []string{"owner"},
			Message: "request is invalid: owner: expected only with a pod: the pod of pod_uid has its owner",
		}.Check(t, err)
	})
	t.Run("answer that cannot be read", func(t *testing.T) {
		t.Parallel()
		_, err := client.Allocate(t.Context(), &allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_PodUid{PodUid: "x"},
			ContainerName: "main"})
		if got := status.Code(err); got != codes.DataLoss {
			t.Errorf("%v, want DATA_LOSS", err)
		}
	})
	t.Run("get", func(t *testing.T) {
		t.Parallel()
		_, err := client.Get(t.Context(), &allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: "who"}})
		rpctest.Failure{Code: codes.NotFound, Reason: "POD_NOT_FOUND", Message: "pod who is not admitted"}.Check(t, err)
		_, err = client.Get(t.Context(), &allocationv1.GetRequest{})
		rpctest.Failure{
			Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Fields: []string{"pod_uid"},
			Message: "request is invalid: pod_uid: is required",
		}.Check(t, err)
	})
}

func TestGetAndList(t *testing.T) {
	t.Parallel()
	client := serve(t, cgroup.V1, nil)
	got, err := client.Get(t.Context(), &allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: "a"}})
	if err != nil {
		t.Fatal(err)
	}
	prepare := &typesv1.ContainerAllocation{ContainerName: "prepare", Role: typesv1.ContainerRole_CONTAINER_ROLE_INIT}
	want := &typesv1.PodAllocation{
		Uid: "a", Namespace: "default", Name: "pod-a", QosClass: typesv1.QOSClass_QOS_CLASS_GUARANTEED,
		CgroupParent: "/kubepods/poda", AdmissionId: "admission-a", AdmitTime: timestamppb.New(time.Unix(1000, 0)), Owner: "default",
		Containers: []*typesv1.ContainerAllocation{prepare, onA()},
	}
	if spec := got.GetSpec(); spec.GetMetadata().GetName() != "pod-a" || len(spec.GetSpec().GetInitContainers()) != 1 ||
		!proto.Equal(spec.GetSpec().GetContainers()[0].GetResources(), onA().GetResources()) {
		t.Errorf("the pod as it was admitted: %v", spec)
	}
	if !proto.Equal(got.GetPod(), want) || got.GetRevision() != 1 || got.GetSharedCpus().GetList() != "0-1,4-15" {
		t.Errorf("revision %d, got\n\t%v\nwant\n\t%v", got.GetRevision(), got.GetPod(), want)
	}
	if now, err := client.GetRevision(t.Context(), &allocationv1.GetRevisionRequest{}); err != nil || now.GetRevision() != 1 {
		t.Errorf("revision %v, %v", now, err)
	}
	for name, row := range map[string]struct {
		filter *allocationv1.ListRequest
		want   []string
	}{
		"all":       {&allocationv1.ListRequest{}, []string{"b", "a", "x"}},
		"namespace": {&allocationv1.ListRequest{Namespace: "default"}, []string{"a", "x"}},
		"name":      {&allocationv1.ListRequest{Name: "pod-x"}, []string{"x"}},
		"resource":  {&allocationv1.ListRequest{Resource: "example.com/nic"}, []string{"a"}},
		"owner":     {&allocationv1.ListRequest{Owner: "kubernetes"}, []string{"x"}},
		"default":   {&allocationv1.ListRequest{Owner: "default"}, []string{"b", "a"}},
		"uid":       {&allocationv1.ListRequest{PodUid: "a"}, []string{"a"}},
		"label":     {&allocationv1.ListRequest{LabelSelector: "app=web"}, []string{"b"}},
		"labels":    {&allocationv1.ListRequest{LabelSelector: "app=web,tier!=test"}, nil},
		"no label":  {&allocationv1.ListRequest{LabelSelector: "!app"}, []string{"a", "x"}},
		"both":      {&allocationv1.ListRequest{Namespace: "away", Resource: "cpu"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := client.List(t.Context(), row.filter)
			if err != nil {
				t.Fatal(err)
			}
			var uids []string
			for _, p := range got.GetPods() {
				uids = append(uids, p.GetUid())
			}
			if !slices.Equal(uids, row.want) || got.GetRevision() != 1 {
				t.Errorf("revision %d: %v, want %v", got.GetRevision(), uids, row.want)
			}
		})
	}
}

// TestContradictionsAreReported: they are in the log, too.
func TestContradictionsAreReported(t *testing.T) {
	t.Parallel()
	var told []string
	client := serveParts(t, cgroup.V2, nil, func(p *allocation.Parts) {
		p.Contradictions = func(owner ledger.Owner, text string) { told = append(told, owner.String()+": "+text) }
	})
	for _, pod := range []string{"a", "b"} {
		if _, err := client.Allocate(t.Context(),
			&allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_PodUid{PodUid: pod}, ContainerName: "main"}); err != nil {
			t.Fatal(err)
		}
	}
	if want := `a/main: environment variable A: "1" of example.com/gpu is used, not "2" of example.com/nic`; len(told) != 1 ||
		told[0] != want {
		t.Errorf("told %q, want %q", told, want)
	}
}
