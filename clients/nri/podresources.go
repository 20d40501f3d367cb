package main

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/numa"
)

// maxResources bounds a list of the resources of all pods in bytes, as clients of the kubelet do.
const maxResources = 16 << 20

// podResources reads from a kubelet's PodResources API which devices its pods have.
type podResources struct {
	path   string
	conn   *grpc.ClientConn
	lister podresourcesv1.PodResourcesListerClient
}

// newPodResources connects when the API is first needed: the kubelet may start later.
func newPodResources(path string) (*podResources, error) {
	conn, err := dialKubelet(path)
	if err != nil {
		return nil, err
	}
	return &podResources{path: path, conn: conn, lister: podresourcesv1.NewPodResourcesListerClient(conn)}, nil
}

func (r *podResources) close() error { return r.conn.Close() }

// Devices implements policy.DeviceSource.
func (r *podResources) Devices(ctx context.Context, namespace, name string) (map[string][]*typesv1.ExternalDevice, error) {
	if _, err := os.Stat(r.path); errors.Is(err, fs.ErrNotExist) {
		return nil, nil // no kubelet, or not yet
	}
	pod, err := r.pod(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	out := map[string][]*typesv1.ExternalDevice{}
	for _, c := range pod.GetContainers() {
		for _, d := range c.GetDevices() {
			nodes, err := nodesOf(d)
			if err != nil {
				return nil, err
			}
			for _, id := range d.GetDeviceIds() {
				out[c.GetName()] = merged(out[c.GetName()], &typesv1.ExternalDevice{Resource: d.GetResourceName(), Id: id, NumaNodes: nodes})
			}
		}
	}
	return out, nil
}

// pod returns a pod's resources; nil if it has none. A kubelet answers Get with an error of no
// certain code if Get is switched off, and also if it does not know the pod: the list then has
// the answer.
func (r *podResources) pod(ctx context.Context, namespace, name string) (*podresourcesv1.PodResources, error) {
	getting, cancel := context.WithTimeout(ctx, podsTimeout)
	answer, err := r.lister.Get(getting, &podresourcesv1.GetPodResourcesRequest{PodName: name, PodNamespace: namespace})
	cancel()
	switch status.Code(err) {
	case codes.OK:
		return answer.GetPodResources(), nil
	case codes.NotFound:
		return nil, nil
	case codes.Unknown, codes.Unimplemented:
	default:
		return nil, err
	}
	listing, cancel := context.WithTimeout(ctx, podsTimeout)
	defer cancel()
	list, err := r.lister.List(listing, &podresourcesv1.ListPodResourcesRequest{}, grpc.MaxCallRecvMsgSize(maxResources))
	if err != nil {
		return nil, err
	}
	for _, pod := range list.GetPodResources() {
		if pod.GetNamespace() == namespace && pod.GetName() == name {
			return pod, nil
		}
	}
	return nil, nil
}

// nodesOf reads the NUMA nodes of a device; nil if it is near to none.
func nodesOf(d *podresourcesv1.ContainerDevices) (*typesv1.NUMANodeSet, error) {
	var mask numa.Mask
	for _, n := range d.GetTopology().GetNodes() {
		if n.GetID() < 0 || n.GetID() >= numa.MaxNodes {
			return nil, errdefs.Invalidf("the kubelet reports a device of %s on NUMA node %d, expected 0 to %d", d.GetResourceName(), n.GetID(), numa.MaxNodes-1)
		}
		mask = mask.With(int(n.GetID()))
	}
	return convert.SomeNodes(mask), nil
}

// merged adds a device to a container's. Kubelets before 1.23 report a device once for each of its
// NUMA nodes.
func merged(list []*typesv1.ExternalDevice, d *typesv1.ExternalDevice) []*typesv1.ExternalDevice {
	for _, have := range list {
		if have.GetResource() == d.GetResource() && have.GetId() == d.GetId() {
			have.NumaNodes = convert.SomeNodes(convert.Nodes(have.GetNumaNodes()) | convert.Nodes(d.GetNumaNodes()))
			return list
		}
	}
	return append(list, d)
}
