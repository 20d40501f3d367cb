package podresources_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/rpc/podresources"
	"github.com/berthd/berth/server/internal/rpc/rpctest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	_ podresources.CPUs      = (*cpu.Manager)(nil)
	_ podresources.Inventory = (*device.Manager)(nil)
)

// cpus may be given exclusively.
type cpus struct{ cpuset.Set }

func (c cpus) Allocatable() cpuset.Set { return c.Set }

// inventory gives one snapshot.
type inventory struct{ of *device.Inventory }

func (i inventory) Inventory() *device.Snapshot { return i.of.Snapshot() }

// counter keeps its counts by metric and version.
type counter struct {
	mu     sync.Mutex
	counts map[string]int
}

func (c *counter) Count(m podresources.Metric, version string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[string(m)+" "+version]++
}

// clients speak the protocol's two versions.
type clients struct {
	v1      v1.PodResourcesListerClient
	alpha   v1alpha1.PodResourcesListerClient
	counter *counter
}

func serve(t testing.TB, l *ledger.Ledger, inv *device.Inventory, features workload.Features) clients {
	t.Helper()
	return serveWith(t, l, inv, features, nil)
}

func serveWith(t testing.TB, l *ledger.Ledger, inv *device.Inventory, features workload.Features, timeout <-chan struct{}) clients {
	t.Helper()
	count := &counter{counts: map[string]int{}}
	conn := rpctest.Serve(t, func(s grpc.ServiceRegistrar) {
		podresources.Register(s, podresources.Parts{
			Ledger: l, CPUs: cpus{cpuset.Range(1, 3)}, Inventory: inventory{inv}, Counter: count, Timeout: timeout,
		}, features)
	})
	return clients{v1.NewPodResourcesListerClient(conn), v1alpha1.NewPodResourcesListerClient(conn), count}
}

// put commits records to a new ledger.
func put(t testing.TB, pods ...*ledger.Pod) *ledger.Ledger {
	t.Helper()
	l := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("2n32c2t,mem=8Gi,huge=2Mi:16"), Memory: []ledger.NodeMemory{
		{Node: 0, Resource: "hugepages-2Mi", Total: 32 << 20, Allocatable: 32 << 20},
		{Node: 0, Resource: "memory", Total: 8 << 30, Allocatable: 7 << 30},
		{Node: 1, Resource: "hugepages-1Gi"}, {Node: 1, Resource: "memory", Total: 8 << 30, Allocatable: 6 << 30},
	}})
	if _, err := l.Update(t.Context(), func(d *ledger.Draft) error {
		for _, p := range pods {
			d.PutPod(p)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return l
}

// devices is a claim on devices with the nodes that they had.
func devices(container, resource string, list ...ledger.Device) ledger.Claim {
	c := ledgertest.Devices(container, resource)
	c.Devices.Devices = list
	return c
}

// web is a pod with a container of every role. Its init container handed on what
// it had.
func web() *ledger.Pod {
	both := ledger.Device{ID: "both", Nodes: numa.Of(0, 1), Topology: true}
	near := ledger.Device{ID: "near", Nodes: numa.Of(0), Topology: true}
	nowhere := ledger.Device{ID: "nowhere", Topology: true}
	plain := ledger.Device{ID: "plain"}
	p := ledgertest.With(ledgertest.Pod("u2", "init:prepare", "sidecar:mesh", "main", "shared"),
		ledgertest.Exclusive("prepare", "10,2,20"), ledgertest.Exclusive("main", "10,2,20"), ledgertest.Exclusive("mesh", "5"),
		devices("prepare", "example.com/gpu", near),
		devices("main", "example.com/gpu", both, near, nowhere, plain),
		devices("main", "example.com/fpga", ledger.Device{ID: "f0"}),
		ledgertest.Memory("main", "memory", "0-1", 3<<30), ledgertest.Memory("main", "hugepages-2Mi", "1", 4<<20),
	)
	p.Pod.Name = "web"
	return p
}

// on is an entry's topology.
func on(nodes ...int64) *v1.TopologyInfo {
	out := &v1.TopologyInfo{}
	for _, n := range nodes {
		out.Nodes = append(out.Nodes, &v1.NUMANode{ID: n})
	}
	return out
}

// one is an entry of one device.
func one(resource, id string, topology *v1.TopologyInfo) *v1.ContainerDevices {
	return &v1.ContainerDevices{ResourceName: resource, DeviceIds: []string{id}, Topology: topology}
}

// webResources is what readers see of web.
func webResources() *v1.PodResources {
	return &v1.PodResources{Name: "web", Namespace: "default", Containers: []*v1.ContainerResources{
		{Name: "mesh", CpuIds: []int64{5}},
		{
			Name: "main", CpuIds: []int64{2, 10, 20},
			Devices: []*v1.ContainerDevices{
				one("example.com/fpga", "f0", nil),
				one("example.com/gpu", "nowhere", nil), one("example.com/gpu", "plain", nil),
				one("example.com/gpu", "both", on(0)), one("example.com/gpu", "near", on(0)),
				one("example.com/gpu", "both", on(1)),
			},
			Memory: []*v1.ContainerMemory{
				{MemoryType: "hugepages-2Mi", Size: 4 << 20, Topology: on(1)},
				{MemoryType: "memory", Size: 3 << 30, Topology: on(0, 1)},
			},
		},
		{Name: "shared"},
	}}
}

func empty() *device.Inventory { return device.NewInventory(nil, time.Unix(0, 0)) }

func TestList(t *testing.T) {
	t.Parallel()
	away, early := ledgertest.Pod("u0", "c"), ledgertest.Pod("u9", "c")
	away.Pod.Namespace, away.Pod.Name = "zone", "a"
	early.Pod.Name = "api"
	c := serve(t, put(t, web(), away, early), empty(), workload.Features{})
	bare := []*v1.ContainerResources{{Name: "c"}}
	want := &v1.ListPodResourcesResponse{PodResources: []*v1.PodResources{
		{Name: "api", Namespace: "default", Containers: bare},
		webResources(),
		{Name: "a", Namespace: "zone", Containers: bare},
	}}
	for range 3 {
		got, err := c.v1.List(t.Context(), &v1.ListPodResourcesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(got, want) {
			t.Fatalf("got\n\t%v\nwant\n\t%v", got, want)
		}
	}
}

func TestListOfNothing(t *testing.T) {
	t.Parallel()
	c := serve(t, put(t), empty(), workload.Features{})
	got, err := c.v1.List(t.Context(), &v1.ListPodResourcesRequest{})
	if err != nil || len(got.GetPodResources()) != 0 {
		t.Errorf("%v, %v; want no pods", got, err)
	}
	old, err := c.alpha.List(t.Context(), &v1alpha1.ListPodResourcesRequest{})
	if err != nil || len(old.GetPodResources()) != 0 {
		t.Errorf("%v, %v; want no pods", old, err)
	}
}

func TestGet(t *testing.T) {
	t.Parallel()
	old, again := ledgertest.With(ledgertest.Pod("u3", "c"), ledgertest.Exclusive("c", "30")),
		ledgertest.With(ledgertest.Pod("u1", "c"), ledgertest.Exclusive("c", "31"))
	old.Pod.Name, old.AdmittedAt = "again", time.Unix(1, 0)
	again.Pod.Name, again.AdmittedAt = "again", time.Unix(2, 0)
	c := serve(t, put(t, web(), old, again), empty(), workload.Features{})
	got, err := c.v1.Get(t.Context(), &v1.GetPodResourcesRequest{PodName: "web", PodNamespace: "default"})
	if err != nil {
		t.Fatal(err)
	}
	if want := (&v1.GetPodResourcesResponse{PodResources: webResources()}); !proto.Equal(got, want) {
		t.Errorf("got\n\t%v\nwant\n\t%v", got, want)
	}
	got, err = c.v1.Get(t.Context(), &v1.GetPodResourcesRequest{PodName: "again", PodNamespace: "default"})
	if err != nil || !slices.Equal(got.GetPodResources().GetContainers()[0].GetCpuIds(), []int64{31}) {
		t.Errorf("of two pods of one name: %v, %v; want the later one", got, err)
	}
	_, err = c.v1.Get(t.Context(), &v1.GetPodResourcesRequest{PodName: "web", PodNamespace: "zone"})
	rpctest.Failure{Code: codes.Unknown, Message: "pod web in namespace zone not found"}.Check(t, err)
}

func TestGetAllocatableResources(t *testing.T) {
	t.Parallel()
	inv := empty()
	at := time.Unix(0, 0)
	inv.Listed(inv.Registered("example.com/gpu", device.Options{}, at), []device.Device{
		{ID: "plain", Healthy: true}, {ID: "sick"},
		{ID: "both", Healthy: true, Nodes: numa.Of(0, 1), Topology: true},
		{ID: "nowhere", Healthy: true, Topology: true},
	}, at)
	inv.Listed(inv.Registered("example.com/fpga", device.Options{}, at),
		[]device.Device{{ID: "f0", Healthy: true, Nodes: numa.Of(1), Topology: true}}, at)
	gone := inv.Registered("example.com/nic", device.Options{}, at)
	inv.Listed(gone, []device.Device{{ID: "n0", Healthy: true}}, at)
	inv.Gone(gone, at)
	// What is in use is allocatable all the same.
	c := serve(t, put(t, web()), inv, workload.Features{})
	got, err := c.v1.GetAllocatableResources(t.Context(), &v1.AllocatableResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := &v1.AllocatableResourcesResponse{
		CpuIds: []int64{1, 2, 3},
		Memory: []*v1.ContainerMemory{
			{MemoryType: "hugepages-2Mi", Size: 32 << 20, Topology: on(0)},
			{MemoryType: "memory", Size: 7 << 30, Topology: on(0)}, {MemoryType: "memory", Size: 6 << 30, Topology: on(1)},
		},
		Devices: []*v1.ContainerDevices{
			one("example.com/fpga", "f0", on(1)),
			one("example.com/gpu", "nowhere", nil), one("example.com/gpu", "plain", nil),
			one("example.com/gpu", "both", on(0)), one("example.com/gpu", "both", on(1)),
		},
	}
	if !proto.Equal(got, want) {
		t.Errorf("got\n\t%v\nwant\n\t%v", got, want)
	}
}

// A pod with resources of its own: what it holds as a whole is listed only with
// the feature, and what its containers share is not listed (KEP-5526).
func TestPodLevelResources(t *testing.T) {
	t.Parallel()
	pod := func() *ledger.Pod {
		return ledgertest.With(ledgertest.Pod("u1", "own", "rest"),
			ledgertest.CPUs("", "8-11", ledger.CPUPod), ledgertest.Memory("", "memory", "0", 1<<30),
			ledgertest.CPUs("own", "8-9", ledger.CPUPodExclusive), ledgertest.CPUs("rest", "10-11", ledger.CPUPodShared))
	}
	want := &v1.PodResources{Name: "pod-u1", Namespace: "default", Containers: []*v1.ContainerResources{
		{Name: "own", CpuIds: []int64{8, 9}}, {Name: "rest"},
	}}
	for _, on37 := range []bool{false, true} {
		c := serve(t, put(t, pod()), empty(), workload.Features{PodLevelResources: on37, PodLevelResourceManagers: on37})
		got, err := c.v1.List(t.Context(), &v1.ListPodResourcesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if on37 {
			want.CpuIds = []int64{8, 9, 10, 11}
			want.Memory = []*v1.ContainerMemory{{MemoryType: "memory", Size: 1 << 30, Topology: on(0)}}
		}
		if !proto.Equal(got.GetPodResources()[0], want) {
			t.Errorf("feature %v: got\n\t%v\nwant\n\t%v", on37, got, want)
		}
	}
}

func TestV1Alpha1(t *testing.T) {
	t.Parallel()
	c := serve(t, put(t, web()), empty(), workload.Features{})
	got, err := c.alpha.List(t.Context(), &v1alpha1.ListPodResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var list []*v1alpha1.ContainerDevices
	for _, d := range webResources().GetContainers()[1].GetDevices() {
		list = append(list, &v1alpha1.ContainerDevices{ResourceName: d.GetResourceName(), DeviceIds: d.GetDeviceIds()})
	}
	want := &v1alpha1.ListPodResourcesResponse{PodResources: []*v1alpha1.PodResources{{
		Name: "web", Namespace: "default",
		Containers: []*v1alpha1.ContainerResources{{Name: "main", Devices: list}, {Name: "shared"}},
	}}}
	if !proto.Equal(got, want) {
		t.Errorf("got\n\t%v\nwant\n\t%v", got, want)
	}
}

func TestCounters(t *testing.T) {
	t.Parallel()
	c := serve(t, put(t, web()), empty(), workload.Features{})
	ctx := t.Context()
	_, _ = c.v1.List(ctx, &v1.ListPodResourcesRequest{})
	_, _ = c.v1.GetAllocatableResources(ctx, &v1.AllocatableResourcesRequest{})
	_, _ = c.v1.Get(ctx, &v1.GetPodResourcesRequest{PodName: "web", PodNamespace: "default"})
	_, _ = c.v1.Get(ctx, &v1.GetPodResourcesRequest{PodName: "nobody"})
	_, _ = c.alpha.List(ctx, &v1alpha1.ListPodResourcesRequest{})
	want := map[string]int{
		"kubelet_pod_resources_endpoint_requests_total v1":           4,
		"kubelet_pod_resources_endpoint_requests_total v1alpha1":     1,
		"kubelet_pod_resources_endpoint_requests_list v1":            1,
		"kubelet_pod_resources_endpoint_requests_get_allocatable v1": 1,
		"kubelet_pod_resources_endpoint_requests_get v1":             2,
		"kubelet_pod_resources_endpoint_errors_get v1":               1,
	}
	c.counter.mu.Lock()
	defer c.counter.mu.Unlock()
	if !maps.Equal(c.counter.counts, want) {
		t.Errorf("counted %v, want %v", c.counter.counts, want)
	}
	known := podresources.Metrics()
	for key := range c.counter.counts {
		if !slices.ContainsFunc(known, func(m podresources.Metric) bool { return strings.HasPrefix(key, string(m)+" ") }) {
			t.Errorf("%s is not among the metrics", key)
		}
	}
}

// BenchmarkList is an exporter's call on a full machine: 500 pods of 4
// containers, over the socket.
func BenchmarkList(b *testing.B) {
	var pods []*ledger.Pod
	for i := range 500 {
		uid := fmt.Sprintf("u%03d", i)
		pods = append(pods, ledgertest.With(ledgertest.Pod(uid, "a", "b", "c", "d"),
			devices("a", "example.com/gpu", ledger.Device{ID: uid, Nodes: numa.Of(i % 2), Topology: true})))
	}
	c := serve(b, put(b, pods...), empty(), workload.Features{})
	b.ResetTimer()
	for b.Loop() {
		if _, err := c.v1.List(b.Context(), &v1.ListPodResourcesRequest{}); err != nil {
			b.Fatal(err)
		}
	}
}

// TestAllocatableWaitsForPlugins calls right after a start, when plugins that were
// there before are not back: the answer comes when they are, or when the wait
// ends, and then has a note.
func TestAllocatableWaitsForPlugins(t *testing.T) {
	t.Parallel()
	at := time.Unix(0, 0)
	list := []device.Device{{ID: "g0", Healthy: true}}
	for name, row := range map[string]struct {
		happen  func(inv *device.Inventory, timeout chan struct{})
		timeout bool // the caller's own time is short, and decides
		devices int
		missing []string
	}{
		"back": {devices: 1, happen: func(inv *device.Inventory, _ chan struct{}) {
			inv.Listed(inv.Registered("example.com/gpu", device.Options{}, at), list, at)
		}},
		"not back": {missing: []string{"example.com/gpu"}, happen: func(_ *device.Inventory, timeout chan struct{}) {
			close(timeout)
		}},
		"back without a list": {missing: []string{"example.com/gpu"}, happen: func(inv *device.Inventory, timeout chan struct{}) {
			inv.Registered("example.com/gpu", device.Options{}, at)
			close(timeout)
		}},
		"caller with a short deadline": {missing: []string{"example.com/gpu"}, timeout: true,
			happen: func(*device.Inventory, chan struct{}) {}},
		"given up": {happen: func(inv *device.Inventory, _ chan struct{}) { inv.Expire(at.Add(2 * device.Grace)) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inv := device.NewInventory([]ledger.SeenResource{{Name: "example.com/gpu"}}, at)
			timeout := make(chan struct{})
			c := serveWith(t, put(t), inv, workload.Features{}, timeout)
			var header metadata.MD
			var got *v1.AllocatableResourcesResponse
			ask := func(limit time.Duration) error {
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				var err error
				got, err = c.v1.GetAllocatableResources(ctx, &v1.AllocatableResourcesRequest{}, grpc.Header(&header))
				return err
			}
			done := make(chan error, 1)
			go func() {
				if !row.timeout {
					done <- ask(time.Minute)
					return
				}
				// A machine may be too busy in the last second of such a caller.
				err := ask(3 * time.Second)
				for again := 0; status.Code(err) == codes.DeadlineExceeded && again < 20; again++ {
					err = ask(3 * time.Second)
				}
				done <- err
			}()
			row.happen(inv, timeout)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if len(got.GetDevices()) != row.devices || !slices.Equal(header.Get(podresources.MissingHeader), row.missing) {
				t.Errorf("%v, missing %q", got.GetDevices(), header.Get(podresources.MissingHeader))
			}
			if _, err := c.v1.List(t.Context(), &v1.ListPodResourcesRequest{}); err != nil {
				t.Errorf("List: %v", err)
			}
		})
	}
}
