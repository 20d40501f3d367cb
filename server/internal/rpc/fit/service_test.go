package fit_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	fitv1 "github.com/berthd/berth/api/berth/fit/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/rpc/fit"
	"github.com/berthd/berth/server/internal/rpc/rpctest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const mi = 1 << 20

// serve serves a machine of two NUMA nodes, of which pods have a part. Pod a is kubernetes' and has
// exclusive CPUs, b is another agent's and has an external device, c has nothing of its own. Other
// pods are being admitted.
func serve(t *testing.T, memoryPolicy string, inFlight ...*ledger.Pod) fitv1.FitServiceClient {
	t.Helper()
	m := machinetest.Build("2n4c", machinetest.Memory(0, 1024*mi), machinetest.Memory(1, 512*mi), machinetest.HugePages(0, 2048, 4))
	set, err := managerset.New(managerset.Config{
		CPU: cpu.Config{Policy: cpu.PolicyStatic, ReservedCPUs: cpuset.Of(0)},
		Memory: memory.Config{
			Policy:         memoryPolicy,
			Reserved:       []memory.Reservation{{Node: 1, Resource: "memory", Bytes: 100 * mi}},
			SystemReserved: map[workload.Resource]uint64{"memory": 100 * mi},
		},
		Topology: topology.Config{Policy: topology.SingleNUMANode, Scope: hint.PodScope},
	}, m)
	if err != nil {
		t.Fatal(err)
	}
	inv := device.NewInventory(nil, time.Time{})
	inv.Listed(inv.Registered("example.com/gpu", device.Options{}, time.Time{}), []device.Device{
		{ID: "g0", Healthy: true, Nodes: numa.Of(0), Topology: true}, {ID: "g1", Healthy: true, Nodes: numa.Of(0).With(1), Topology: true},
		{ID: "g2", Nodes: numa.Of(1), Topology: true}, {ID: "g3", Healthy: true},
	}, time.Time{})
	if set, err = set.Join([]hint.Entry{{Provider: device.New(inv, nobody{}), Mode: hint.Required}}, nil); err != nil {
		t.Fatal(err)
	}
	l := ledgertest.New(t, set.Rules)
	put := func(p *ledger.Pod, name, owner string, qos workload.QoSClass, requests workload.Quantities) {
		t.Helper()
		p.Pod.Namespace, p.Pod.Name, p.OwnedBy, p.QoS = "default", name, owner, qos
		p.Pod.Containers[0].Requests = requests
		if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(p); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	claims := []ledger.Claim{ledgertest.Exclusive("main", "1-2"), ledgertest.Devices("main", "example.com/gpu", "g0")}
	if memoryPolicy == memory.PolicyStatic {
		claims = append(claims, ledgertest.Memory("main", "memory", "0", 16*mi))
	}
	put(ledgertest.With(ledgertest.Pod("a", "main"), claims...), "trainer", "kubernetes", workload.Guaranteed,
		workload.Quantities{"cpu": 2000, "memory": 16 * mi})
	put(ledgertest.Pod("b", "main"), "nic", "batch", workload.Burstable, workload.Quantities{"cpu": 1000, "example.com/nic": 1})
	put(ledgertest.Pod("c", "main"), "web", "kubernetes", workload.Burstable, workload.Quantities{"cpu": 1000, "memory": mi})
	return fitv1.NewFitServiceClient(rpctest.Serve(t, func(s grpc.ServiceRegistrar) {
		fitv1.RegisterFitServiceServer(s, fit.New(fit.Parts{Now: time.Now,
			Ledger: history.Ledger{Ledger: l}, Present: func() (*ledger.View, *managerset.Set) {
				d := ledger.NewDraft(l.View())
				for _, p := range inFlight {
					d.PutPod(p)
				}
				return d.View(), set
			},
			Managers: func(*ledger.View) (*managerset.Set, error) { return set, nil }, Inventory: inv.Snapshot,
			Admission: admission.Config{Resources: admission.Resources{Unknown: admission.RejectUnknown}},
		}))
	}))
}

// nobody is behind the devices: no plugin is called.
type nobody struct{}

func (nobody) Preferred(context.Context, string, []string, []string, int) ([]string, error) {
	return nil, errors.New("a plugin is called")
}
func (nobody) Allocate(context.Context, string, []string) ([]byte, error) {
	return nil, errors.New("a plugin is called")
}

func amount(name string, capacity, allocatable, available uint64) *fitv1.NodeResource {
	return &fitv1.NodeResource{Resource: name, Capacity: capacity, Allocatable: allocatable, Available: available, Aligned: true}
}

func TestFreeResources(t *testing.T) {
	t.Parallel()
	got, err := serve(t, memory.PolicyStatic).GetFreeResources(t.Context(), &fitv1.GetFreeResourcesRequest{Owner: "kubernetes"})
	if err != nil {
		t.Fatal(err)
	}
	want := &fitv1.FreeResources{
		Revision: 3, TopologyPolicy: "single-numa-node", TopologyScope: "pod", CpuPolicy: "static", MemoryPolicy: "Static",
		PodsFingerprint:    "pfp0v0018e4fd649bc246fb0", // default/trainer
		ContainerPlacement: "npv0v001::ve=leb89::cc=1::nn=2::bn=0",
		Nodes: []*fitv1.NUMANode{
			{NumaNode: 0, Distances: map[uint32]uint32{0: 10, 1: 12}, Resources: []*fitv1.NodeResource{
				amount("cpu", 4, 3, 1), amount("example.com/gpu", 2, 2, 1),
				amount("hugepages-2Mi", 8*mi, 8*mi, 8*mi), amount("memory", 1024*mi, 1016*mi, 1000*mi),
			}},
			{NumaNode: 1, Distances: map[uint32]uint32{0: 12, 1: 10}, Resources: []*fitv1.NodeResource{
				amount("cpu", 4, 4, 4), amount("example.com/gpu", 2, 1, 1), amount("memory", 512*mi, 412*mi, 412*mi),
			}},
		},
	}
	if !proto.Equal(got.GetFree(), want) {
		t.Errorf("\n%v\nwant\n%v", got.GetFree(), want)
	}
}

// TestPodsThatCount: whose pods the fingerprint is of, and which.
func TestPodsThatCount(t *testing.T) {
	t.Parallel()
	client := serve(t, memory.PolicyStatic)
	prints := map[string]bool{}
	for _, req := range []*fitv1.GetFreeResourcesRequest{
		{Owner: "kubernetes", NumaResources: []string{"example.com/nic"}}, {NumaResources: []string{"example.com/nic"}},
		{Owner: "batch", NumaResources: []string{"example.com/nic"}}, {Owner: "batch"}, {},
		{Owner: "kubernetes", PendingPods: []string{"default/trainer"}}, {Owner: "kubernetes", PendingPods: []string{"other/trainer"}},
	} {
		got, err := client.GetFreeResources(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		prints[got.GetFree().GetPodsFingerprint()] = true
	}
	if len(prints) != 4 { // trainer, trainer and nic, nic, none
		t.Errorf("fingerprints %v", prints)
	}
}

// TestUnaligned: memory that is placed anywhere is available on each node, whoever has some.
func TestUnaligned(t *testing.T) {
	t.Parallel()
	got, err := serve(t, memory.PolicyNone).GetFreeResources(t.Context(), &fitv1.GetFreeResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	r := got.GetFree().GetNodes()[0].GetResources()
	want := &fitv1.NodeResource{Resource: "memory", Capacity: 1024 * mi, Allocatable: 1016 * mi, Available: 1016 * mi}
	if last := r[len(r)-1]; !proto.Equal(last, want) {
		t.Errorf("%v, want %v", last, want)
	}
}

func TestInvalid(t *testing.T) {
	t.Parallel()
	client := serve(t, memory.PolicyNone)
	for _, c := range []struct {
		req    *fitv1.GetFreeResourcesRequest
		fields []string
	}{
		{&fitv1.GetFreeResourcesRequest{At: &typesv1.Moment{}}, []string{"at"}},
		{&fitv1.GetFreeResourcesRequest{Owner: "Not a label"}, []string{"owner"}},
		{&fitv1.GetFreeResourcesRequest{NumaResources: []string{"a/b", "", strings.Repeat("x", 1000)}},
			[]string{"numa_resources[1]", "numa_resources[2]"}},
		{&fitv1.GetFreeResourcesRequest{NumaResources: make([]string, 257)}, []string{"numa_resources"}},
		{&fitv1.GetFreeResourcesRequest{PendingPods: []string{"a/b", "a", "/b", "a/"}},
			[]string{"pending_pods[1]", "pending_pods[2]", "pending_pods[3]"}},
		{&fitv1.GetFreeResourcesRequest{PendingPods: make([]string, 4097)}, []string{"pending_pods"}},
	} {
		_, err := client.GetFreeResources(t.Context(), c.req)
		rpctest.Failure{Code: codes.InvalidArgument, Message: message(err), Reason: "REQUEST_INVALID", Fields: c.fields}.Check(t, err)
	}
}

// want is a pod of one container with CPUs and devices of its own.
func want(uid, cpus, devices string) *typesv1.Pod {
	r := map[string]string{"cpu": cpus, "memory": "16Mi", "example.com/gpu": devices}
	return &typesv1.Pod{
		Metadata: &typesv1.PodMetadata{Name: uid, Namespace: "default", Uid: uid},
		Spec: &typesv1.PodSpec{Containers: []*typesv1.Container{{Name: "main",
			Resources: &typesv1.ResourceRequirements{Requests: r, Limits: r}}}},
	}
}

// TestFit: node 0 has one CPU left and node 1 four; g1 is near to both.
func TestFit(t *testing.T) {
	t.Parallel()
	client := serve(t, memory.PolicyStatic)
	free, err := client.GetFreeResources(t.Context(), &fitv1.GetFreeResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	req := &fitv1.FitRequest{Pods: []*typesv1.Pod{
		want("fits", "2", "1"), want("second", "2", "1"), want("small", "2", "0"), want("large", "5", "0"), want("greedy", "1", "9"),
		want("unknown", "1", "0"),
	}}
	delete(req.Pods[5].Spec.Containers[0].Resources.Limits, "example.com/gpu") // the same map as the requests
	req.Pods[5].Spec.Containers[0].Resources.Limits["example.com/tpu"] = "1"
	// The same question has the same answer, because nothing changes.
	for range 2 {
		got, err := client.Fit(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		var fits []string
		for _, p := range got.GetPods() {
			fits = append(fits, p.GetUid()+" "+p.GetFit().String()+" "+p.GetReason())
		}
		if want := []string{
			"fits FIT_TIME_NOW ", "second FIT_TIME_LATER TopologyAffinityError", "small FIT_TIME_NOW ",
			"large FIT_TIME_NEVER TopologyAffinityError", "greedy FIT_TIME_NEVER TopologyAffinityError",
			"unknown FIT_TIME_NEVER OutOfexample.com/tpu",
		}; !slices.Equal(fits, want) {
			t.Errorf("got %q, want %q", fits, want)
		}
		if got.GetNow() != 2 || got.GetLater() != 1 || got.GetNever() != 3 || got.GetFree().GetRevision() != 3 ||
			!proto.Equal(got.GetFree().GetNodes()[1], free.GetFree().GetNodes()[1]) {
			t.Errorf("now %d, later %d, never %d, free %v", got.GetNow(), got.GetLater(), got.GetNever(), got.GetFree())
		}
	}
	// A pod that does not fit takes nothing from the next one.
	got, err := client.Fit(t.Context(), &fitv1.FitRequest{Pods: []*typesv1.Pod{want("large", "5", "0"), want("empty", "4", "0")}})
	if err != nil || got.GetNow() != 1 {
		t.Errorf("a pod after one that does not fit: %v, %v", got.GetPods(), err)
	}
}

// TestFitInFlight: what a running admission has reserved is not there for others.
func TestFitInFlight(t *testing.T) {
	t.Parallel()
	client := serve(t, memory.PolicyNone, ledgertest.With(ledgertest.Pod("d", "main"), ledgertest.Exclusive("main", "4-6")))
	got, err := client.Fit(t.Context(), &fitv1.FitRequest{Pods: []*typesv1.Pod{want("small", "1", "0"), want("new", "2", "0")}})
	if err != nil || got.GetNow() != 1 || got.GetLater() != 1 || got.GetFree().GetRevision() != 3 {
		t.Errorf("%v, %v", got, err)
	}
}

func TestFitInvalid(t *testing.T) {
	t.Parallel()
	client := serve(t, memory.PolicyNone)
	for _, c := range []struct {
		req    *fitv1.FitRequest
		fields []string
	}{
		{&fitv1.FitRequest{}, []string{"pods"}},
		{&fitv1.FitRequest{Pods: []*typesv1.Pod{want("a", "1", "0")}, MaxMoves: 17}, []string{"max_moves"}},
		{&fitv1.FitRequest{Pods: make([]*typesv1.Pod, 257)}, []string{"pods"}},
		{&fitv1.FitRequest{Pods: []*typesv1.Pod{want("a", "1", "0"), want("a", "1", "0")}}, []string{"pods[1].metadata.uid"}},
		{&fitv1.FitRequest{Pods: []*typesv1.Pod{want("a", "1", "0"), want("b", "many", "0")}},
			[]string{`pod.spec.containers[0].resources.requests["cpu"]`, `pod.spec.containers[0].resources.limits["cpu"]`}},
		{&fitv1.FitRequest{Pods: []*typesv1.Pod{want("a", "1", "0")}, At: &typesv1.Moment{}}, []string{"at"}},
	} {
		_, err := client.Fit(t.Context(), c.req)
		rpctest.Failure{Code: codes.InvalidArgument, Message: message(err), Reason: "REQUEST_INVALID", Fields: c.fields}.Check(t, err)
	}
}

// message is the text of an error, which tests of other packages fix.
func message(err error) string { return status.Convert(err).Message() }
