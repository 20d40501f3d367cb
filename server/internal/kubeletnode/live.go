package kubeletnode

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/numa"
)

// Bounds of a call of podresources: its time and the bytes of its answer.
const (
	answerTime  = 5 * time.Second
	answerBytes = 64 << 20
)

// Ask asks the kubelet for its devices with their NUMA nodes, if it runs: if its socket is below the root, which is the directory dir.
func (n *Node) Ask(ctx context.Context, root fs.FS, dir string) {
	name := path.Join(n.Dir, "pod-resources", "kubelet.sock")
	if info, err := fs.Stat(root, name); err != nil || info.Mode().Type() != fs.ModeSocket {
		return // there is no kubelet
	}
	const what = "devices of the running kubelet"
	devices, err := allocatable(ctx, filepath.Join(dir, name))
	if err != nil {
		n.Sources = append(n.Sources, Source{what, name, fmt.Errorf("/%s: %w", name, err)})
		return
	}
	n.Sources = append(slices.DeleteFunc(n.Sources, func(s Source) bool { return s.What == freeDevices }), Source{what, name, nil})
	n.Devices = devices
}

// allocatable returns the healthy devices of podresources.
func allocatable(ctx context.Context, socket string) (map[string][]device.Device, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(answerBytes)))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	lister := podresourcesv1.NewPodResourcesListerClient(conn)
	answer, err := lister.GetAllocatableResources(ctx, &podresourcesv1.AllocatableResourcesRequest{})
	if err != nil {
		return nil, err
	}
	out := map[string][]device.Device{}
	seen := map[[2]string]int{}
	for _, d := range answer.GetDevices() {
		for _, id := range d.GetDeviceIds() {
			key := [2]string{d.GetResourceName(), id}
			at, known := seen[key]
			if !known { // a device that is near to several nodes may come several times
				at = len(out[key[0]])
				seen[key] = at
				out[key[0]] = append(out[key[0]], device.Device{ID: id, Healthy: true})
			}
			one := &out[key[0]][at]
			for _, node := range d.GetTopology().GetNodes() {
				if node.GetID() < 0 || node.GetID() >= numa.MaxNodes {
					return nil, errdefs.Invalidf("device %.80q of %.80q: NUMA node %d: expected 0 to %d", id, key[0], node.GetID(),
						numa.MaxNodes-1)
				}
				one.Nodes, one.Topology = one.Nodes.With(int(node.GetID())), true
			}
		}
	}
	return out, nil
}
