package node_test

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	cgroupv1 "github.com/berthd/berth/api/berth/cgroup/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/managerset"
	nodes "github.com/berthd/berth/managers/node"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/reconcile"
	"github.com/berthd/berth/server/internal/rpc/node"
	"github.com/berthd/berth/server/internal/rpc/rpctest"
	"github.com/berthd/berth/server/internal/usage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func serve(t *testing.T, p node.Parts) nodev1.NodeServiceClient {
	t.Helper()
	return nodev1.NewNodeServiceClient(rpctest.Serve(t, func(s grpc.ServiceRegistrar) {
		nodev1.RegisterNodeServiceServer(s, node.New(p))
	}))
}

func get(t *testing.T, m *machine.Topology) *nodev1.GetMachineResponse {
	t.Helper()
	got, err := serve(t, node.Parts{Machine: func() *machine.Topology { return m }, Places: noPlaces}).GetMachine(t.Context(),
		&nodev1.GetMachineRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestGetMachine(t *testing.T) {
	t.Parallel()
	m := machinetest.Build("2s1n1c2t1m,adjacent,mem=1Gi,huge=2Mi:8", machinetest.Offline("3"))
	got := get(t, m)
	want := &nodev1.GetMachineResponse{
		Cpus: []*nodev1.CPU{
			{Cpu: 0, Core: 0, Socket: 0, NumaNode: 0, UncoreCache: 0},
			{Cpu: 1, Core: 0, Socket: 0, NumaNode: 0, UncoreCache: 0},
			{Cpu: 2, Core: 2, Socket: 1, NumaNode: 1, UncoreCache: 1},
		},
		Nodes: []*nodev1.NUMANode{
			{NumaNode: 0, Cpus: &typesv1.CPUSet{List: "0-1"}, MemoryBytes: 1 << 30,
				HugePages: []*nodev1.HugePages{{PageSizeBytes: 2 << 20, Count: 8}}, Distances: map[uint32]uint32{0: 10, 1: 20, 2: 20}},
			{NumaNode: 1, Cpus: &typesv1.CPUSet{List: "2"}, MemoryBytes: 1 << 30,
				HugePages: []*nodev1.HugePages{{PageSizeBytes: 2 << 20, Count: 8}}, Distances: map[uint32]uint32{0: 20, 1: 10, 2: 20}},
			{NumaNode: 2, Cpus: &typesv1.CPUSet{}, MemoryBytes: 1 << 30, Distances: map[uint32]uint32{0: 20, 1: 20, 2: 10}},
		},
		OfflineCpus: &typesv1.CPUSet{List: "3"}, IsolatedCpus: &typesv1.CPUSet{}, NohzFullCpus: &typesv1.CPUSet{},
		Fingerprint: m.Fingerprint(), SnapshotJson: got.GetSnapshotJson(),
	}
	if !proto.Equal(got, want) {
		t.Errorf("got\n\t%v\nwant\n\t%v", got, want)
	}
}

// TestMachineChanges: the answer is about the machine in use.
func TestMachineChanges(t *testing.T) {
	t.Parallel()
	whole := machinetest.Build("4c")
	less, err := whole.Without(cpuset.Of(2))
	if err != nil {
		t.Fatal(err)
	}
	used := whole
	client := serve(t, node.Parts{Machine: func() *machine.Topology { return used }, Places: noPlaces})
	for _, m := range []*machine.Topology{whole, whole, less, whole} {
		used = m
		got, err := client.GetMachine(t.Context(), &nodev1.GetMachineRequest{})
		if err != nil || got.GetFingerprint() != m.Fingerprint() || got.GetOfflineCpus().GetList() != m.Offline().String() ||
			len(got.GetCpus()) != m.CPUs().Len() {
			t.Errorf("%s offline: %v, %v", m.Offline(), got, err)
		}
	}
}

// TestMachineOfThePast: the machine of a state is that of its time. A CPU that was offline then has its place of today.
func TestMachineOfThePast(t *testing.T) {
	t.Parallel()
	whole := machinetest.Build("2s1n1c2t")
	less, err := whole.Without(cpuset.Of(3))
	if err != nil {
		t.Fatal(err)
	}
	h := history.New(history.Limits{Entries: 100}, time.Now)
	l, _ := ledgertest.OpenChanging(t, journal.Options{
		History: h, Journal: ledgertest.NewJournal(), Rules: ledger.Rules{Machine: less, ConfigDigest: "a"}, EpochID: 1 << 60,
		BootID: "boot",
	})
	put := func(uid string) *ledger.View {
		t.Helper()
		v, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(ledgertest.Pod(uid, "c")); return nil })
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	then := put("a")
	if _, err := l.SetRules(t.Context(), ledger.Rules{Machine: whole, ConfigDigest: "b"}); err != nil {
		t.Fatal(err)
	}
	now := put("b")
	client := serve(t, node.Parts{
		Machine: func() *machine.Topology { return whole }, Places: noPlaces, Ledger: history.Ledger{Ledger: l, History: h},
	})
	third := []*nodev1.CPU{{Cpu: 3, Core: 1, Socket: 1, NumaNode: 1, UncoreCache: 1}}
	for _, tt := range []struct {
		revision uint64
		cpus     int
		offline  string
		places   []*nodev1.CPU
		other    bool
	}{{then.Revision(), 3, "3", third, true}, {now.Revision(), 4, "", nil, false}} {
		got, err := client.GetMachine(t.Context(), &nodev1.GetMachineRequest{
			At: &typesv1.Moment{Moment: &typesv1.Moment_Revision{Revision: tt.revision}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(got.GetCpus()) != tt.cpus || got.GetOfflineCpus().GetList() != tt.offline || got.GetOtherPolicy() != tt.other ||
			got.GetRevision() != tt.revision || !proto.Equal(&nodev1.GetMachineResponse{OfflinePlaces: got.GetOfflinePlaces()},
			&nodev1.GetMachineResponse{OfflinePlaces: tt.places}) {
			t.Errorf("revision %d: %v", tt.revision, got)
		}
	}
	_, err = client.GetMachine(t.Context(), &nodev1.GetMachineRequest{At: &typesv1.Moment{}})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("a moment without a time and a revision: %v", err)
	}
}

// The snapshot makes the same machine elsewhere.
func TestSnapshotLoads(t *testing.T) {
	t.Parallel()
	for m := range machinetest.All() {
		t.Run(m.Snapshot().Name, func(t *testing.T) {
			t.Parallel()
			got := get(t, m)
			again, err := machine.Load(got.GetSnapshotJson())
			if err != nil {
				t.Fatal(err)
			}
			if again.Fingerprint() != got.GetFingerprint() || len(got.GetCpus()) != m.CPUs().Len() ||
				len(got.GetNodes()) != m.NodeMask().Len() {
				t.Errorf("fingerprint %s of %d CPUs and %d nodes; the snapshot's is %s", got.GetFingerprint(), len(got.GetCpus()),
					len(got.GetNodes()), again.Fingerprint())
			}
		})
	}
}

func TestAmounts(t *testing.T) {
	t.Parallel()
	m := machinetest.Build("4c,mem=1Gi")
	manager, err := nodes.New(nodes.Config{
		SystemReserved: workload.Quantities{workload.CPU: 500, nodes.PIDs: 10},
		KubeReserved:   workload.Quantities{workload.CPU: 250},
		EvictionHard:   nodes.Thresholds{workload.Memory: {Amount: 1 << 20}},
		MaxPods:        7,
	}, nodes.Facts{Machine: m, MaxPIDs: 100})
	if err != nil {
		t.Fatal(err)
	}
	l := ledgertest.New(t, ledger.Rules{Machine: m})
	pod := ledgertest.Pod("a", "c")
	pod.Pod.Containers[0].Requests = workload.Quantities{workload.CPU: 125}
	if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(pod); return nil }); err != nil {
		t.Fatal(err)
	}
	config := &nodev1.GetConfigResponse{CgroupVersion: 2, EnforceNodeAllocatable: []string{"pods"}}
	lacks := &nodev1.GetStatusResponse{SoftRequirements: []string{"soft"}, KernelSettings: []string{"kernel"}, ResetExtendedResources: true}
	client := serve(t, node.Parts{
		Machine: func() *machine.Topology { return m }, Node: func() *nodes.Manager { return manager },
		Ledger: history.Ledger{Ledger: l}, Config: config,
		Claims: func() ([]managerset.ClaimNode, bool) {
			return []managerset.ClaimNode{{Node: 1, CPUs: cpuset.Of(2, 3), Step: 2, Memory: workload.Quantities{workload.Memory: 4096}}},
				true
		},
		Status: func(context.Context) (*nodev1.GetStatusResponse, error) { return lacks, nil },
	})
	expect := func(got proto.Message, err error, want proto.Message) {
		t.Helper()
		if err != nil || !proto.Equal(got, want) {
			t.Errorf("got %v, %v, want %v", got, err, want)
		}
	}
	capacity, err := client.GetCapacity(t.Context(), &nodev1.GetCapacityRequest{})
	expect(capacity, err, &nodev1.GetCapacityResponse{Capacity: map[string]string{"cpu": "4", "memory": "1073741824", "pid": "100",
		"pods": "7"}})
	allocatable, err := client.GetAllocatable(t.Context(), &nodev1.GetAllocatableRequest{})
	expect(allocatable, err, &nodev1.GetAllocatableResponse{
		Allocatable:                   map[string]string{"cpu": "3250m", "memory": "1072693248", "pods": "7"},
		Absolute:                      map[string]string{"cpu": "3250m", "memory": "1073741824"},
		Limit:                         map[string]string{"cpu": "3250m", "memory": "1073741824", "pid": "90"},
		Requested:                     map[string]string{"cpu": "125m", "pods": "1"},
		ResourceClaimsFromAllocatable: true,
		ResourceClaims: []*nodev1.ClaimNode{
			{NumaNode: 1, Cpus: &typesv1.CPUSet{List: "2-3"}, Resources: map[string]string{"memory": "4096"}, CpuStep: 2},
		},
	})
	reservation, err := client.GetReservation(t.Context(), &nodev1.GetReservationRequest{})
	expect(reservation, err, &nodev1.GetReservationResponse{
		Reservation: map[string]string{"cpu": "750m", "memory": "1048576"},
		System:      map[string]string{"cpu": "500m", "pid": "10"},
		Kube:        map[string]string{"cpu": "250m"},
		Eviction:    map[string]string{"memory": "1048576"},
	})
	status, err := client.GetStatus(t.Context(), &nodev1.GetStatusRequest{})
	expect(status, err, lacks)
	got, err := client.GetConfig(t.Context(), &nodev1.GetConfigRequest{})
	expect(got, err, config)
}

type fixedUsage usage.Reading

func (f fixedUsage) Read(context.Context) (*usage.Reading, error) {
	r := usage.Reading(f)
	return &r, nil
}

// TestGetUsage: absent numbers stay absent, maps become lists in order.
func TestGetUsage(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	waited := 3 * time.Millisecond
	read := usage.Reading{
		Time: at, CPUs: map[int]time.Duration{3: 3, 1: 1}, Omitted: 4,
		Containers: []usage.Container{
			{Owner: ledger.Owner{Pod: "a", Container: "c"}, ID: "id", Details: cgroup.Details{
				Usage:     cgroup.Usage{CPU: 9, MemoryBytes: 8, WorkingSetBytes: 7},
				Quota:     &cgroup.Throttling{Periods: 6, Throttled: 5, Time: 4},
				NUMABytes: map[int]uint64{1: 2, 0: 1}, HugePageBytes: map[int64]uint64{2 << 20: 3}, CPUPressure: &waited,
			}},
			{Owner: ledger.Owner{Pod: "b", Container: "c"}, ID: "bare"},
		},
		Drifts: []reconcile.Drift{{Name: cgroup.ParseCgroupfs("/kubepods/poda"), Owner: ledger.Owner{Pod: "a"}, File: "cpu.max",
			Want: "w", Found: "f", Since: at}},
	}
	got, err := serve(t, node.Parts{Usage: fixedUsage(read)}).GetUsage(t.Context(), &nodev1.GetUsageRequest{})
	if err != nil {
		t.Fatal(err)
	}
	u := func(v uint64) *uint64 { return &v }
	want := &nodev1.GetUsageResponse{
		ReadTime: timestamppb.New(at), CpuTimes: []*nodev1.CPUTime{{Cpu: 1, BusyNanoseconds: 1}, {Cpu: 3, BusyNanoseconds: 3}},
		OmittedContainers: 4,
		Containers: []*nodev1.ContainerUsage{
			{
				PodUid: "a", ContainerName: "c", ContainerId: "id", CpuNanoseconds: 9, MemoryBytes: 8, WorkingSetBytes: 7,
				Periods: u(6), ThrottledPeriods: u(5), ThrottledNanoseconds: u(4), CpuPressureMicroseconds: u(3000),
				NumaMemory: []*nodev1.NUMAMemory{{NumaNode: 0, Bytes: 1}, {NumaNode: 1, Bytes: 2}},
				HugePages:  []*nodev1.HugePageUsage{{PageSizeBytes: 2 << 20, Bytes: 3}},
			},
			{PodUid: "b", ContainerName: "c", ContainerId: "bare"},
		},
		Drifts: []*cgroupv1.Drift{{PodUid: "a", Cgroup: "/kubepods/poda", File: "cpu.max", Want: "w", Found: "f",
			FindTime: timestamppb.New(at)}},
	}
	if !proto.Equal(got, want) {
		t.Errorf("got\n\t%v\nwant\n\t%v", got, want)
	}
}

func noPlaces(*machine.Topology) []machine.CPU { return nil }
