package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// resourcesServer answers as a kubelet does.
type resourcesServer struct {
	podresourcesv1.UnimplementedPodResourcesListerServer
	pods []*podresourcesv1.PodResources
	// get and list are their errors. By default a pod that is not there is an error without a code.
	get, list error
}

func (s *resourcesServer) Get(_ context.Context, req *podresourcesv1.GetPodResourcesRequest) (*podresourcesv1.GetPodResourcesResponse, error) {
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

// TestKubeletDevices reads the devices of pods from a server of the kubelet's API.
func TestKubeletDevices(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "devices") // the paths of sockets are short (unix(7))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	r, err := newPodResources(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.close() })
	if got, err := r.Devices(t.Context(), "default", "web"); got != nil || err != nil {
		t.Errorf("without a kubelet: %v, %v", got, err)
	}
	kubelet := &resourcesServer{pods: []*podresourcesv1.PodResources{
		{Name: "web", Namespace: "other", Containers: []*podresourcesv1.ContainerResources{{Name: "main", Devices: []*podresourcesv1.ContainerDevices{deviceOn("other", 0)}}}},
		{Name: "web", Namespace: "default", Containers: []*podresourcesv1.ContainerResources{{Name: "main", Devices: []*podresourcesv1.ContainerDevices{
			deviceOn("a", 1), deviceOn("a", 0), deviceOn("b"), // an old kubelet has a device once for each node
		}}}},
		{Name: "bad", Namespace: "default", Containers: []*podresourcesv1.ContainerResources{{Name: "main", Devices: []*podresourcesv1.ContainerDevices{deviceOn("c", 64)}}}},
	}}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresourcesv1.RegisterPodResourcesListerServer(server, kubelet)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)

	for name, get := range map[string]error{
		"Get":                         nil,
		"a kubelet without Get":       status.Error(codes.Unimplemented, "unknown method Get"),
		"a kubelet whose Get is off":  fmt.Errorf("PodResources API Get method disabled"),
		"a kubelet that lost the pod": fmt.Errorf("pod web in namespace default not found"),
	} {
		kubelet.get = get
		got, err := r.Devices(t.Context(), "default", "web")
		if text := fmt.Sprint(got["main"], err); err != nil || len(got) != 1 || len(got["main"]) != 2 ||
			fmt.Sprint(got["main"][0].GetNumaNodes().GetIds()) != "[0 1]" || got["main"][1].GetId() != "b" || got["main"][1].GetNumaNodes() != nil {
			t.Errorf("%s: %s", name, text)
		}
	}
	kubelet.get = nil
	if got, err := r.Devices(t.Context(), "default", "gone"); len(got) > 0 || err != nil {
		t.Errorf("a pod that the kubelet does not know: %v, %v", got, err)
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
