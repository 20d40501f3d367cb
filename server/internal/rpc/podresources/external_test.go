package podresources_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/rpc/podresources"
)

// byClaim is a device that a container has by a claim.
func byClaim(resource, id, claim, driver, name, share string, cdi ...string) workload.ExternalDevice {
	return workload.ExternalDevice{Resource: resource, ID: id, Claim: &workload.ExternalClaim{
		Name: claim, Driver: driver, Pool: "n1", Device: name, Share: share, CDI: cdi,
	}}
}

// beside is a pod beside a kubelet: its container main has a CPU of berthd, devices of the kubelet's plugins, and claims.
func beside() *ledger.Pod {
	p := ledgertest.With(ledgertest.Pod("u1", "init:prepare", "main"), ledgertest.Exclusive("main", "7"),
		devices("main", "example.com/gpu", ledger.Device{ID: "own"}))
	const own = "dra.berthd.github.io"
	p.Pod.Containers[0].ExternalDevices = []workload.ExternalDevice{
		{Resource: own + "/claim", ID: "c1:left", Unlisted: true}, {Resource: "example.com/nic", ID: "of-init"},
	}
	p.Pod.Containers[1].ExternalDevices = []workload.ExternalDevice{
		{Resource: "example.com/nic", ID: "b", Nodes: numa.Of(0, 1)}, {Resource: "example.com/nic", ID: "a"},
		{Resource: "example.com/fpga", ID: "f", Nodes: numa.Of(1)},
		byClaim(own+"/claim", "c1:right", "train", own, "numa-1", "s1", own+"/claim=c1:right"),
		byClaim("gpu.example.com/dra", "n1/gpu-0", "gpus", "gpu.example.com", "gpu-0", "", "gpu.example.com/a", "gpu.example.com/b"),
		byClaim(own+"/claim", "c1:left", "train", own, "numa-0", "s0", own+"/claim=c1:left"),
		// One device with two CDI names is two external devices.
		byClaim(own+"/claim", "c2:x", "twice", own, "numa-0", "s2", own+"/claim=c2:x", own+"/claim=c2:y"),
		byClaim(own+"/claim", "c2:y", "twice", own, "numa-0", "s2", own+"/claim=c2:x", own+"/claim=c2:y"),
	}
	return p
}

// claimed is a device of a claim as readers see it.
func claimed(driver, name, share string, cdi ...string) *v1.ClaimResource {
	out := &v1.ClaimResource{DriverName: driver, PoolName: "n1", DeviceName: name}
	if share != "" {
		out.ShareId = &share
	}
	for _, name := range cdi {
		out.CdiDevices = append(out.CdiDevices, &v1.CDIDevice{Name: name})
	}
	return out
}

// TestExternalDevices: what a kubelet has allocated to a container is listed beside what berthd has allocated.
func TestExternalDevices(t *testing.T) {
	t.Parallel()
	const own = "dra.berthd.github.io"
	want := &v1.PodResources{Name: "pod-u1", Namespace: "default", Containers: []*v1.ContainerResources{{
		Name: "main", CpuIds: []int64{7},
		Devices: []*v1.ContainerDevices{
			one("example.com/fpga", "f", on(1)), one("example.com/gpu", "own", nil),
			one("example.com/nic", "a", nil), one("example.com/nic", "b", on(0)), one("example.com/nic", "b", on(1)),
		},
		DynamicResources: []*v1.DynamicResource{
			{ClaimName: "gpus", ClaimNamespace: "default", ClaimResources: []*v1.ClaimResource{claimed("gpu.example.com", "gpu-0", "",
				"gpu.example.com/a", "gpu.example.com/b")}},
			{ClaimName: "train", ClaimNamespace: "default", ClaimResources: []*v1.ClaimResource{
				claimed(own, "numa-0", "s0", own+"/claim=c1:left"), claimed(own, "numa-1", "s1", own+"/claim=c1:right"),
			}},
			{ClaimName: "twice", ClaimNamespace: "default", ClaimResources: []*v1.ClaimResource{claimed(own, "numa-0", "s2",
				own+"/claim=c2:x", own+"/claim=c2:y")}},
		},
	}}}
	c := serve(t, put(t, beside()), empty(), workload.Features{})
	var header metadata.MD
	list, err := c.v1.List(t.Context(), &v1.ListPodResourcesRequest{}, grpc.Header(&header))
	if err != nil || len(list.GetPodResources()) != 1 || !proto.Equal(list.GetPodResources()[0], want) {
		t.Errorf("got\n\t%v, %v\nwant\n\t%v", list, err, want)
	}
	if missing := header.Get(podresources.MissingHeader); len(missing) != 0 {
		t.Errorf("the init container is not listed, so nothing is missing; got %q", missing)
	}
	got, err := c.v1.Get(t.Context(), &v1.GetPodResourcesRequest{PodName: "pod-u1", PodNamespace: "default"})
	if err != nil || !proto.Equal(got.GetPodResources(), want) {
		t.Errorf("got\n\t%v, %v\nwant\n\t%v", got, err, want)
	}
	old, err := c.alpha.List(t.Context(), &v1alpha1.ListPodResourcesRequest{})
	if err != nil || len(old.GetPodResources()[0].GetContainers()[0].GetDevices()) != 5 {
		t.Errorf("%v, %v", old, err)
	}
}

// TestUnlistedDevices: resources of devices whose ids are not known are named in the metadata.
func TestUnlistedDevices(t *testing.T) {
	t.Parallel()
	p := beside()
	p.Pod.Containers[1].ExternalDevices = []workload.ExternalDevice{{Resource: "example.com/memory", ID: "m and 299 more",
		Unlisted: true}, {Resource: "example.com/nic", ID: "a"}}
	c := serve(t, put(t, p), empty(), workload.Features{})
	want, header := []string{"example.com/memory"}, metadata.MD{}
	list, err := c.v1.List(t.Context(), &v1.ListPodResourcesRequest{}, grpc.Header(&header))
	if err != nil || !slices.Equal(header.Get(podresources.MissingHeader), want) ||
		len(list.GetPodResources()[0].GetContainers()[0].GetDevices()) != 2 {
		t.Errorf("List: %v, missing %q, %v", list, header.Get(podresources.MissingHeader), err)
	}
	header = metadata.MD{}
	if _, err := c.v1.Get(t.Context(), &v1.GetPodResourcesRequest{PodName: "pod-u1", PodNamespace: "default"},
		grpc.Header(&header)); err != nil || !slices.Equal(header.Get(podresources.MissingHeader), want) {
		t.Errorf("Get: missing %q, %v", header.Get(podresources.MissingHeader), err)
	}
	header = metadata.MD{}
	if _, err := c.v1.GetAllocatableResources(t.Context(), &v1.AllocatableResourcesRequest{}, grpc.Header(&header)); err != nil ||
		!slices.Equal(header.Get(podresources.MissingHeader), []string{"dra.berthd.github.io/claim", "example.com/memory",
			"example.com/nic"}) {
		t.Errorf("GetAllocatableResources: missing %q, %v", header.Get(podresources.MissingHeader), err)
	}
}

// TestReadersGetNoMoreThanFits: an agent cannot make the answers and their metadata larger than what readers accept, by names of
// resources or by NUMA nodes that the machine does not have.
func TestReadersGetNoMoreThanFits(t *testing.T) {
	t.Parallel()
	p := beside()
	many := []workload.ExternalDevice{{Resource: "example.com/nic", ID: "a", Nodes: numa.Of(1, 2, 40, 63)},
		{Resource: "example.com/nic", ID: "b", Nodes: numa.Of(63)}}
	for i := range 200 {
		many = append(many, workload.ExternalDevice{Resource: fmt.Sprintf("%s.example.com/r%03d", strings.Repeat("a", 60), i), ID: "x",
			Unlisted: true})
	}
	p.Pod.Containers[1].ExternalDevices = many
	c := serve(t, put(t, p), empty(), workload.Features{})
	header := metadata.MD{}
	list, err := c.v1.List(t.Context(), &v1.ListPodResourcesRequest{}, grpc.Header(&header))
	if err != nil {
		t.Fatal(err)
	}
	want := []*v1.ContainerDevices{one("example.com/gpu", "own", nil), one("example.com/nic", "b", nil), one("example.com/nic", "a", on(1))}
	if got := list.GetPodResources()[0].GetContainers()[0].GetDevices(); !slices.EqualFunc(got, want,
		func(a, b *v1.ContainerDevices) bool { return proto.Equal(a, b) }) {
		t.Errorf("got %v, want %v", got, want)
	}
	bytes, missing := 0, header.Get(podresources.MissingHeader)
	for _, name := range missing {
		bytes += len(podresources.MissingHeader) + len(name)
	}
	if len(missing) < 10 || missing[0] != many[2].Resource || missing[len(missing)-1] != podresources.MoreMissing || bytes > 4<<10 {
		t.Errorf("%d bytes of metadata: %q", bytes, missing)
	}
}

// TestContainersApart: containers that are admitted apart from their pod are listed as the containers of their pod.
func TestContainersApart(t *testing.T) {
	t.Parallel()
	apart := func(uid, pod, container, cpus string, admitted int64) *ledger.Pod {
		id, name := workload.Apart(uid, pod, container)
		p := ledgertest.With(ledgertest.Pod(id, container), ledgertest.Exclusive(container, cpus))
		p.Pod.Name, p.AdmittedAt = name, time.Unix(admitted, 0)
		return p
	}
	whole := ledgertest.Pod("w", "main")
	whole.Pod.Name = "whole"
	c := serve(t, put(t, apart("a", "web", "main", "3", 1), apart("a", "web", "helper", "4", 2), apart("b", "web", "main", "5", 3),
		whole, apart("w", "whole", "debugger", "6", 4)), empty(), workload.Features{})
	want := &v1.ListPodResourcesResponse{PodResources: []*v1.PodResources{
		{Name: "web", Namespace: "default", Containers: []*v1.ContainerResources{{Name: "helper", CpuIds: []int64{4}},
			{Name: "main", CpuIds: []int64{3}}}},
		{Name: "web", Namespace: "default", Containers: []*v1.ContainerResources{{Name: "main", CpuIds: []int64{5}}}},
		{Name: "whole", Namespace: "default", Containers: []*v1.ContainerResources{{Name: "main"}}},
	}}
	if got, err := c.v1.List(t.Context(), &v1.ListPodResourcesRequest{}); err != nil || !proto.Equal(got, want) {
		t.Errorf("got\n\t%v, %v\nwant\n\t%v", got, err, want)
	}
	got, err := c.v1.Get(t.Context(), &v1.GetPodResourcesRequest{PodName: "web", PodNamespace: "default"})
	if err != nil || !proto.Equal(got.GetPodResources(), want.GetPodResources()[1]) {
		t.Errorf("got %v, %v; want the pod that was admitted last", got, err)
	}
}

// TestClaimsAreNotAllocatable: nothing that a resource claim holds is allocatable or allocated to a container, so it is not counted
// twice, whether claims have a part of their own or one pool with pods.
func TestClaimsAreNotAllocatable(t *testing.T) {
	t.Parallel()
	for _, onePool := range []bool{false, true} {
		claim := ledgertest.With(ledgertest.Pod("c1", "place"), ledgertest.Exclusive("place", "3"),
			ledgertest.Memory("place", "memory", "1", 2<<30))
		claim.Pod.ResourceClaim = &workload.ResourceClaim{Devices: []workload.ClaimDevice{{Node: 1}}}
		rules := ledger.Rules{Machine: machinetest.Build("2n32c2t,mem=8Gi"), OnePool: onePool, Memory: []ledger.NodeMemory{
			{Node: 0, Resource: "memory", Total: 8 << 30, Allocatable: 7 << 30},
			{Node: 1, Resource: "memory", Total: 8 << 30, Allocatable: 6 << 30},
		}, ClaimMemory: []ledger.NodeMemory{{Node: 1, Resource: "memory", Total: 8 << 30, Allocatable: 2 << 30}}}
		if rules.ClaimCPUs = cpuset.Range(1, 3); !onePool {
			rules.ReservedCPUs, rules.ClaimCPUs = cpuset.Of(3), cpuset.Of(3)
		}
		l := ledgertest.New(t, rules)
		if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(claim); return nil }); err != nil {
			t.Fatal(err)
		}
		c := serve(t, l, device.NewInventory(nil, time.Unix(0, 0)), workload.Features{})
		got, err := c.v1.GetAllocatableResources(t.Context(), &v1.AllocatableResourcesRequest{})
		left := uint64(6 << 30)
		if onePool {
			left = 4 << 30
		}
		want := &v1.AllocatableResourcesResponse{CpuIds: []int64{1, 2}, Memory: []*v1.ContainerMemory{
			{MemoryType: "memory", Size: 7 << 30, Topology: on(0)}, {MemoryType: "memory", Size: left, Topology: on(1)},
		}}
		if err != nil || !proto.Equal(got, want) {
			t.Errorf("one pool %t: got\n\t%v, %v\nwant\n\t%v", onePool, got, err, want)
		}
		if list, err := c.v1.List(t.Context(), &v1.ListPodResourcesRequest{}); err != nil || len(list.GetPodResources()) != 0 {
			t.Errorf("one pool %t: a claim is listed as a pod: %v, %v", onePool, list, err)
		}
	}
}
