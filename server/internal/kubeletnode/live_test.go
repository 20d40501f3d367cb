package kubeletnode

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// answering is a kubelet's podresources.
type answering struct {
	podresourcesv1.UnimplementedPodResourcesListerServer
	devices []*podresourcesv1.ContainerDevices
}

func (a *answering) GetAllocatableResources(context.Context, *podresourcesv1.AllocatableResourcesRequest) (
	*podresourcesv1.AllocatableResourcesResponse, error) {
	return &podresourcesv1.AllocatableResourcesResponse{Devices: a.devices}, nil
}

// TestAsk: a running kubelet says where its devices are. One that answers with nodes that no machine has is not believed.
func TestAsk(t *testing.T) {
	t.Parallel()
	near := func(resource, id string, nodes ...int64) *podresourcesv1.ContainerDevices {
		d := &podresourcesv1.ContainerDevices{ResourceName: resource, DeviceIds: []string{id}}
		for _, n := range nodes {
			if d.Topology == nil {
				d.Topology = &podresourcesv1.TopologyInfo{}
			}
			d.Topology.Nodes = append(d.Topology.Nodes, &podresourcesv1.NUMANode{ID: n})
		}
		return d
	}
	for name, row := range map[string]struct {
		devices []*podresourcesv1.ContainerDevices
		want    string
		missing bool
	}{
		"near": {
			devices: []*podresourcesv1.ContainerDevices{
				near("a/x", "0", 1), near("a/x", "1"), near("b/y", "2", 0), near("b/y", "2", 1),
			},
			want: "map[a/x:[{0 true 1 true false} {1 true  false false}] b/y:[{2 true 0-1 true false}]]",
		},
		"nowhere": {devices: []*podresourcesv1.ContainerDevices{near("a/x", "0", 64)}, want: "map[]", missing: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, err := os.MkdirTemp("", "k") // the paths of sockets are short (unix(7))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(root) })
			socket := filepath.Join(root, defaultDir, "pod-resources", "kubelet.sock")
			err = os.MkdirAll(filepath.Dir(socket), 0o700)
			l, failed := net.Listen("unix", socket)
			if err = errors.Join(err, failed); err != nil {
				t.Fatal(err)
			}
			s := grpc.NewServer()
			podresourcesv1.RegisterPodResourcesListerServer(s, &answering{devices: row.devices})
			go func() { _ = s.Serve(l) }()
			t.Cleanup(s.Stop)
			n := &Node{Dir: defaultDir, Sources: []Source{{freeDevices, "", errors.New("unknown")}}}
			n.Ask(t.Context(), os.DirFS(root), root)
			if got := fmt.Sprint(n.Devices); got != row.want {
				t.Errorf("%s, want %s", got, row.want)
			}
			if missing := n.Sources[len(n.Sources)-1].Missing != nil; missing != row.missing || !missing && len(n.Sources) != 1 {
				t.Errorf("sources %v", n.Sources)
			}
		})
	}
}
