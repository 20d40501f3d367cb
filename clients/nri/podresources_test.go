package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/protocol"
	"github.com/berthd/berth/clients/nri/cdi"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/numa"
)

// resourcesServer answers as a kubelet does.
type resourcesServer struct {
	podresourcesv1.UnimplementedPodResourcesListerServer
	pods []*podresourcesv1.PodResources
	// get and list are their errors. By default a pod that is not there is an error without a code.
	get, list   error
	allocatable *podresourcesv1.AllocatableResourcesResponse
}

func (s *resourcesServer) GetAllocatableResources(context.Context,
	*podresourcesv1.AllocatableResourcesRequest) (*podresourcesv1.AllocatableResourcesResponse, error) {
	if s.allocatable == nil {
		return &podresourcesv1.AllocatableResourcesResponse{}, nil
	}
	return s.allocatable, nil
}

func (s *resourcesServer) Get(_ context.Context, req *podresourcesv1.GetPodResourcesRequest) (*podresourcesv1.GetPodResourcesResponse,
	error) {
	for _, p := range s.pods {
		if p.GetName() == req.GetPodName() && p.GetNamespace() == req.GetPodNamespace() && s.get == nil {
			return &podresourcesv1.GetPodResourcesResponse{PodResources: p}, nil
		}
	}
	if s.get != nil {
		return nil, s.get
	}
	return nil, fmt.Errorf("pod %s in namespace %s not found", req.GetPodName(), req.GetPodNamespace())
}

func (s *resourcesServer) List(context.Context, *podresourcesv1.ListPodResourcesRequest) (*podresourcesv1.ListPodResourcesResponse, error) {
	return &podresourcesv1.ListPodResourcesResponse{PodResources: s.pods}, s.list
}

func deviceOn(id string, nodes ...int64) *podresourcesv1.ContainerDevices {
	d := &podresourcesv1.ContainerDevices{ResourceName: "example.com/gpu", DeviceIds: []string{id}}
	if len(nodes) > 0 {
		d.Topology = &podresourcesv1.TopologyInfo{}
	}
	for _, n := range nodes {
		d.Topology.Nodes = append(d.Topology.Nodes, &podresourcesv1.NUMANode{ID: n})
	}
	return d
}

// newResources returns a reader of a kubelet's API, and a function that starts the kubelet.
func newResources(t *testing.T) (r *podResources, serve func(*resourcesServer)) {
	t.Helper()
	dir, err := os.MkdirTemp("", "devices") // the paths of sockets are short (unix(7))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	if r, err = newPodResources(path, &cdi.Reader{}, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	return r, func(kubelet *resourcesServer) {
		t.Helper()
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer()
		podresourcesv1.RegisterPodResourcesListerServer(server, kubelet)
		go func() { _ = server.Serve(l) }()
		t.Cleanup(server.Stop)
	}
}

// TestKubeletDevices reads the devices of pods from a server of the kubelet's API.
func TestKubeletDevices(t *testing.T) {
	t.Parallel()
	r, serve := newResources(t)
	if got, err := r.Devices(t.Context(), "default", "web"); errdefs.ClassOf(err) != errdefs.NotFound ||
		!strings.Contains(err.Error(), "--pod-resources") {
		t.Errorf("without a kubelet, or before it has its socket: %v, %v", got, err)
	}
	kubelet := &resourcesServer{pods: []*podresourcesv1.PodResources{
		{Name: "web", Namespace: "other", Containers: []*podresourcesv1.ContainerResources{{Name: "main",
			Devices: []*podresourcesv1.ContainerDevices{deviceOn("other", 0)}}}},
		{Name: "web", Namespace: "default", Containers: []*podresourcesv1.ContainerResources{{Name: "main",
			Devices: []*podresourcesv1.ContainerDevices{
				deviceOn("a", 1), deviceOn("a", 0), deviceOn("b"), // an old kubelet has a device once for each node
			}}}},
		{Name: "bad", Namespace: "default", Containers: []*podresourcesv1.ContainerResources{{Name: "main",
			Devices: []*podresourcesv1.ContainerDevices{deviceOn("c", 64)}}}},
	}}
	serve(kubelet)
	for name, get := range map[string]error{
		"Get":                         nil,
		"a kubelet without Get":       status.Error(codes.Unimplemented, "unknown method Get"),
		"a kubelet whose Get is off":  fmt.Errorf("PodResources API Get method disabled"),
		"a kubelet that lost the pod": fmt.Errorf("pod web in namespace default not found"),
	} {
		kubelet.get = get
		got, err := r.Devices(t.Context(), "default", "web")
		if text := fmt.Sprint(got["main"], err); err != nil || len(got) != 1 || len(got["main"]) != 2 ||
			fmt.Sprint(got["main"][0].GetNumaNodes().GetIds()) != "[0 1]" || got["main"][1].GetId() != "b" ||
			got["main"][1].GetNumaNodes() != nil {
			t.Errorf("%s: %s", name, text)
		}
	}
	kubelet.get = nil
	if got, err := r.Devices(t.Context(), "default", "gone"); errdefs.ClassOf(err) != errdefs.NotFound {
		t.Errorf("a pod that the kubelet does not have: %v, %v", got, err)
	}
	if got, err := r.Devices(t.Context(), "default", "bad"); err == nil {
		t.Errorf("a device on NUMA node 64: %v", got)
	}
	kubelet.get = status.Error(codes.Unavailable, "too many requests")
	if got, err := r.Devices(t.Context(), "default", "web"); err == nil {
		t.Errorf("a kubelet that cannot say: %v", got)
	}
	kubelet.get, kubelet.list = fmt.Errorf("off"), fmt.Errorf("off, too")
	if got, err := r.Devices(t.Context(), "default", "web"); err == nil {
		t.Errorf("a kubelet that cannot list: %v", got)
	}
}

// TestDevicesArePublished: devices that pods have are not free. A kubelet that has just started, and lists no pods yet, does not say which
// pods have devices.
func TestDevicesArePublished(t *testing.T) {
	t.Parallel()
	r, serve := newResources(t)
	if got, err := r.published(t.Context()); got != nil || err != nil {
		t.Errorf("without a kubelet: %v, %v", got, err)
	}
	kubelet := &resourcesServer{}
	serve(kubelet)
	if got, err := r.published(t.Context()); got != nil || err != nil {
		t.Errorf("a kubelet without devices: %v, %v", got, err)
	}
	kubelet.allocatable = &podresourcesv1.AllocatableResourcesResponse{
		Devices: []*podresourcesv1.ContainerDevices{deviceOn("a", 0), deviceOn("b", 1)}}
	if got, err := r.published(t.Context()); errdefs.ClassOf(err) != errdefs.Unavailable {
		t.Errorf("a kubelet without pods: %v, %v", got, err)
	}
	kubelet.pods = []*podresourcesv1.PodResources{{Name: "web", Containers: []*podresourcesv1.ContainerResources{{Name: "main",
		Devices: []*podresourcesv1.ContainerDevices{deviceOn("a", 0)}}}}}
	got, err := r.published(t.Context())
	if err != nil || len(got) != 2 || !got[0].Used || got[1].Used {
		t.Errorf("one of two devices is used: %+v, %v", got, err)
	}
}

// TestDynamicDevices finds the NUMA nodes of devices of claims. What cannot be found is said once, and
// the device is known without nodes.
func TestDynamicDevices(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"sys/dev/char/226:128/device/numa_node": "1\n",
		"cdi/gpu.json": `{"cdiVersion": "0.8.0", "kind": "gpu.example.com/claim", "devices": [{"name": "c1", "containerEdits": {"deviceNodes": [
			{"path": "/dev/dri/renderD128", "type": "c", "major": 226, "minor": 128}]}}]}`,
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var log strings.Builder
	r := &podResources{cdi: &cdi.Reader{Directories: []string{dir + "/cdi"}, Dev: dir, Sys: dir + "/sys"},
		log: slog.New(slog.NewTextHandler(&log, nil))}
	claimed := func(device, name string) *podresourcesv1.ClaimResource {
		return &podresourcesv1.ClaimResource{DriverName: "gpu.example.com", PoolName: "n1", DeviceName: device,
			CdiDevices: []*podresourcesv1.CDIDevice{{Name: name}}}
	}
	share := claimed("gpu-1", "gpu.example.com/claim=c1")
	share.ShareId = new("s")
	pod := &podresourcesv1.PodResources{Name: "web", Namespace: "default",
		Containers: []*podresourcesv1.ContainerResources{{Name: "main", DynamicResources: []*podresourcesv1.DynamicResource{
			{ClaimName: "a", ClaimResources: []*podresourcesv1.ClaimResource{claimed("gpu-0", "gpu.example.com/claim=c1"), share}},
			{ClaimName: "b", ClaimResources: []*podresourcesv1.ClaimResource{claimed("gpu-2", "gpu.example.com/claim=gone"),
				{DriverName: "gpu.example.com", PoolName: "n1", DeviceName: "gpu-3"}}},
		}}}}
	for range 2 {
		out := newPodDevices()
		if err := r.addDynamic(t.Context(), pod, out); err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, d := range out.lists["main"] {
			claim := d.GetClaim()
			got += fmt.Sprintf("%s %s %s of %s: %s %s %s %s %s\n", d.GetResource(), d.GetId(), convert.Nodes(d.GetNumaNodes()),
				claim.GetName(), claim.GetDriver(), claim.GetPool(), claim.GetDevice(), claim.GetShareId(), claim.GetCdiDevices())
		}
		if want := `gpu.example.com/dra n1/gpu-0 1 of a: gpu.example.com n1 gpu-0  [gpu.example.com/claim=c1]
gpu.example.com/dra n1/gpu-1/s 1 of a: gpu.example.com n1 gpu-1 s [gpu.example.com/claim=c1]
gpu.example.com/dra n1/gpu-2  of b: gpu.example.com n1 gpu-2  [gpu.example.com/claim=gone]
gpu.example.com/dra n1/gpu-3  of b: gpu.example.com n1 gpu-3  []
`; got != want {
			t.Errorf("got\n%swant\n%s", got, want)
		}
	}
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "gpu.example.com/claim=gone") {
		t.Errorf("the log has\n%s", text)
	}
	for range maxDynamic {
		claim := pod.Containers[0].DynamicResources[0]
		claim.ClaimResources = append(claim.ClaimResources, share)
	}
	if err := r.addDynamic(t.Context(), pod, newPodDevices()); err == nil {
		t.Error("a pod with many devices is not refused")
	}
}

// draDevice is a device of a claim, as its driver has answered the kubelet.
type draDevice struct {
	driver, name string
	cdi          []string
}

// listed is what a kubelet lists of a claim. Those of 1.36 and 1.37 list the CDI names of a driver's earlier devices with each
// later one; fixed is a kubelet that does not.
func listed(fixed bool, devices ...draDevice) *podresourcesv1.DynamicResource {
	out, names := &podresourcesv1.DynamicResource{ClaimName: "a"}, map[string][]*podresourcesv1.CDIDevice{}
	for _, d := range devices {
		if fixed {
			names[d.driver] = nil
		}
		for _, name := range d.cdi {
			names[d.driver] = append(names[d.driver], &podresourcesv1.CDIDevice{Name: name})
		}
		out.ClaimResources = append(out.ClaimResources, &podresourcesv1.ClaimResource{DriverName: d.driver, PoolName: "n1",
			DeviceName: d.name, CdiDevices: names[d.driver]})
	}
	return out
}

// TestSeveralDevicesOfAClaim: each device of a claim has its own NUMA nodes, also those of berth-dra, which are NUMA nodes themselves.
func TestSeveralDevicesOfAClaim(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"sys/dev/char/226:0/device/numa_node": "0\n", "sys/dev/char/226:1/device/numa_node": "1\n",
		"cdi/gpu.json": `{"cdiVersion": "0.8.0", "kind": "gpu.example.com/claim", "devices": [
			{"name": "c0", "containerEdits": {"deviceNodes": [{"path": "/dev/dri/0", "type": "c", "major": 226, "minor": 0}]}},
			{"name": "c1", "containerEdits": {"deviceNodes": [{"path": "/dev/dri/1", "type": "c", "major": 226, "minor": 1}]}}]}`,
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	r := &podResources{cdi: &cdi.Reader{Directories: []string{dir + "/cdi"}, Dev: dir, Sys: dir + "/sys"},
		log: slog.New(slog.DiscardHandler)}
	const gpu, own = "gpu.example.com", "dra.berthd.github.io"
	all := []draDevice{
		{own, "numa-0", []string{own + "/claim=u:left"}}, {own, "numa-1", []string{own + "/claim=u:right"}},
		{own, "numa-64", []string{own + "/claim=u:far"}},
		{own, "numa-2", []string{gpu + "/claim=u:left"}},
		{gpu, "gpu-0", []string{gpu + "/claim=c0"}}, {gpu, "gpu-1", []string{gpu + "/claim=c1"}},
		{gpu, "gpu-2", []string{gpu + "/claim=c0", gpu + "/claim=c1"}},
		{"nic.example.com", "nic-0", []string{own + "/claim=u:left"}},
	}
	for _, fixed := range []bool{false, true} {
		out := newPodDevices()
		err := r.addDynamic(t.Context(), &podresourcesv1.PodResources{Containers: []*podresourcesv1.ContainerResources{
			{Name: "main", DynamicResources: []*podresourcesv1.DynamicResource{listed(fixed, all...)}},
		}}, out)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, d := range out.lists["main"] {
			got += fmt.Sprintf("%s %s %s\n", d.GetResource(), d.GetId(), convert.Nodes(d.GetNumaNodes()))
			if claim := d.GetClaim(); claim.GetName() != "a" || len(claim.GetCdiDevices()) == 0 ||
				strings.HasSuffix(d.GetId(), claim.GetDevice()) == (d.GetResource() == protocol.ClaimResource) {
				t.Errorf("fixed %t: %v", fixed, d)
			}
		}
		want := "dra.berthd.github.io/claim u:left 0\ndra.berthd.github.io/claim u:right 1\ndra.berthd.github.io/claim u:far \n" +
			"dra.berthd.github.io/dra n1/numa-2 \ngpu.example.com/dra n1/gpu-0 0\ngpu.example.com/dra n1/gpu-1 1\ngpu.example.com/dra n1/gpu-2 0-1\n" +
			"nic.example.com/dra n1/nic-0 \n"
		if got != want {
			t.Errorf("fixed %t: got\n%swant\n%s", fixed, got, want)
		}
	}
}

// TestManyDevicesOfThePod: plugins may have thousands of devices, and a bound is named.
func TestManyDevicesOfThePod(t *testing.T) {
	t.Parallel()
	found := newPodDevices()
	for i := range maxDevices {
		for _, nodes := range []numa.Mask{1, 2} {
			if err := found.add(place{container: "main", resource: "example.com/memory", id: fmt.Sprint(i)}, nodes, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	err := found.add(place{container: "main", resource: "example.com/memory", id: "more"}, 0, nil)
	if errdefs.ClassOf(err) != errdefs.Exhausted || len(found.lists["main"]) != maxDevices {
		t.Errorf("%d devices, then %v", len(found.lists["main"]), err)
	}
	if got := convert.Nodes(found.lists["main"][7].GetNumaNodes()); got != 3 {
		t.Errorf("a device of two nodes has %s", got)
	}
}
