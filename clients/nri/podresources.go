package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	kubeletapi "github.com/berthd/berth/api/kubelet"
	"github.com/berthd/berth/api/protocol"
	"github.com/berthd/berth/clients/nri/cdi"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/numa"
)

// defaultPodResources is the socket of the kubelet's PodResources API.
const defaultPodResources = "/var/lib/kubelet/pod-resources/kubelet.sock"

// maxResources bounds a list of the resources of all pods in bytes, as clients of the kubelet do.
const maxResources = 16 << 20

// podResources reads from a kubelet's PodResources API which devices its pods have.
type podResources struct {
	path   string
	conn   *grpc.ClientConn
	lister podresourcesv1.PodResourcesListerClient
	cdi    *cdi.Reader
	log    *slog.Logger
	off    atomic.Bool // the kubelet's managers were off at the last look

	mu       sync.Mutex // guards reported
	reported string     // the problem with CDI files that is in the log
}

// newPodResources connects when the API is first needed: the kubelet may start later.
func newPodResources(path string, names *cdi.Reader, log *slog.Logger) (*podResources, error) {
	conn, err := kubeletapi.Dial(path)
	if err != nil {
		return nil, err
	}
	return &podResources{path: path, conn: conn, lister: podresourcesv1.NewPodResourcesListerClient(conn), cdi: names, log: log}, nil
}

// close ends the connection; of nil it does nothing.
func (r *podResources) close() {
	if r != nil {
		_ = r.conn.Close()
	}
}

// Devices implements policy.DeviceSource.
func (r *podResources) Devices(ctx context.Context, namespace, name string) (map[string][]*typesv1.ExternalDevice, error) {
	if _, err := os.Stat(r.path); errors.Is(err, fs.ErrNotExist) {
		return nil, errNoKubelet
	}
	pod, err := r.pod(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	found := newPodDevices()
	for _, c := range pod.GetContainers() {
		for _, d := range c.GetDevices() {
			nodes, err := nodesOf(d)
			if err != nil {
				return nil, err
			}
			for _, id := range d.GetDeviceIds() {
				if err := found.add(place{container: c.GetName(), resource: d.GetResourceName(), id: id}, nodes, nil); err != nil {
					return nil, fmt.Errorf("the devices of pod %s/%s: %w", namespace, name, err)
				}
			}
		}
	}
	return found.lists, r.addDynamic(ctx, pod, found)
}

// maxDevices bounds the devices of a pod. Plugins that count memory in devices have thousands.
const maxDevices = 100_000

// place is a device of a container, which may have it by several claims.
type place struct{ container, resource, id, claim string }

// podDevices collects the devices of a pod.
type podDevices struct {
	places map[place]*typesv1.ExternalDevice
	lists  map[string][]*typesv1.ExternalDevice // by container
}

func newPodDevices() *podDevices {
	return &podDevices{places: map[place]*typesv1.ExternalDevice{}, lists: map[string][]*typesv1.ExternalDevice{}}
}

// add adds a device; claim is nil for one of a device plugin. Kubelets before 1.23 report a device once for each of its NUMA
// nodes.
func (p *podDevices) add(at place, nodes numa.Mask, claim *typesv1.ExternalClaim) error {
	if d := p.places[at]; d != nil {
		d.NumaNodes = convert.SomeNodes(convert.Nodes(d.GetNumaNodes()) | nodes)
		return nil
	}
	if len(p.places) == maxDevices {
		return errdefs.Exhaustedf("the kubelet reports more than %d", maxDevices)
	}
	d := &typesv1.ExternalDevice{Resource: at.resource, Id: at.id, NumaNodes: convert.SomeNodes(nodes), Claim: claim}
	p.places[at] = d
	p.lists[at.container] = append(p.lists[at.container], d)
	return nil
}

// dynamicResource names the devices of a DRA driver, DRIVER/dra. Their ids are POOL/DEVICE, and
// POOL/DEVICE/SHARE for a share of a device.
const dynamicResource = "dra"

// addDynamic adds devices of dynamic resource allocation. The kubelet reports no NUMA nodes for
// them, so they are those of their CDI devices. A device without known NUMA nodes is added
// without any: the pod is not aligned with it, and the log says why.
func (r *podResources) addDynamic(ctx context.Context, pod *podresourcesv1.PodResources, out *podDevices) error {
	var names []string
	type claimed struct {
		container string
		by        *typesv1.ExternalClaim
	}
	var devices []claimed
	for _, c := range pod.GetContainers() {
		for _, claim := range c.GetDynamicResources() {
			before := map[string][]*podresourcesv1.CDIDevice{} // by driver
			for _, d := range claim.GetClaimResources() {
				own := ownNames(before[d.GetDriverName()], d.GetCdiDevices())
				before[d.GetDriverName()] = d.GetCdiDevices()
				by := &typesv1.ExternalClaim{
					Name: claim.GetClaimName(), Driver: d.GetDriverName(), Pool: d.GetPoolName(), Device: d.GetDeviceName(),
					ShareId: d.GetShareId(), CdiDevices: own,
				}
				if parts := partsOfClaim(d.GetDriverName(), own); len(parts) > 0 {
					for _, part := range parts {
						at := place{c.GetName(), protocol.ClaimResource, part, claim.GetClaimName()}
						if err := out.add(at, nodeOfClaim(d.GetDeviceName()), by); err != nil {
							return err
						}
					}
					continue
				}
				devices = append(devices, claimed{c.GetName(), by})
				names = append(names, own...)
			}
		}
	}
	if len(devices) == 0 {
		return nil
	}
	if len(devices) > maxDynamic || len(names) > maxDynamic {
		return errdefs.Invalidf("the kubelet reports %d devices of claims with %d CDI names for pod %s/%s, expected at most %d",
			len(devices), len(names), pod.GetNamespace(), pod.GetName(), maxDynamic)
	}
	nodes, err := r.cdi.Nodes(ctx, names)
	r.report(pod, err)
	if err := ctx.Err(); err != nil {
		return err // a later try can find them
	}
	for _, p := range devices {
		var mask numa.Mask
		for _, name := range p.by.GetCdiDevices() {
			mask |= nodes[name]
		}
		id := p.by.GetPool() + "/" + p.by.GetDevice()
		if share := p.by.GetShareId(); share != "" {
			id += "/" + share
		}
		if err := out.add(place{p.container, p.by.GetDriver() + "/" + dynamicResource, id, p.by.GetName()}, mask, p.by); err != nil {
			return err
		}
	}
	return nil
}

// ownNames returns the CDI names of a device of a claim. The kubelet reports them after those of the claim's earlier devices of
// the same driver (1.37).
func ownNames(before, list []*podresourcesv1.CDIDevice) (own []string) {
	same := func(a, b *podresourcesv1.CDIDevice) bool { return a.GetName() == b.GetName() }
	if len(list) > len(before) && slices.EqualFunc(before, list[:len(before)], same) {
		list = list[len(before):]
	}
	for _, d := range list {
		own = append(own, d.GetName())
	}
	return own
}

// partsOfClaim returns the parts of a claim of berth-dra that a device of a driver is.
func partsOfClaim(driver string, names []string) (parts []string) {
	for _, name := range names {
		if part, ours := strings.CutPrefix(name, protocol.ClaimResource+"="); ours && driver+"/claim" == protocol.ClaimResource {
			parts = append(parts, part)
		}
	}
	return parts
}

// nodeOfClaim returns the NUMA node that a device of berth-dra is.
func nodeOfClaim(device string) numa.Mask {
	node, err := strconv.ParseUint(strings.TrimPrefix(device, "numa-"), 10, 32)
	if err != nil || node >= numa.MaxNodes || device != fmt.Sprint("numa-", node) {
		return 0
	}
	return numa.Of(int(node))
}

// maxDynamic bounds the devices of claims of a pod, and their CDI names.
const maxDynamic = 1024

// report logs a problem with CDI files, once.
func (r *podResources) report(pod *podresourcesv1.PodResources, err error) {
	text := ""
	if err != nil {
		text = fmt.Sprintf("%.2000v", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if text != "" && text != r.reported {
		r.log.Warn("the NUMA nodes of some devices of claims are unknown; pods are not aligned with these devices", "pod",
			pod.GetNamespace()+"/"+pod.GetName(), "error", text)
	}
	r.reported = text
}

// pod returns a pod's resources; class NotFound if the kubelet does not have the pod. If Get is switched off, or the kubelet
// does not have the pod, Get fails with different codes; then the list has the answer.
func (r *podResources) pod(ctx context.Context, namespace, name string) (*podresourcesv1.PodResources, error) {
	getting, cancel := bounded(ctx)
	answer, err := r.lister.Get(getting, &podresourcesv1.GetPodResourcesRequest{PodName: name, PodNamespace: namespace})
	cancel()
	switch status.Code(err) {
	case codes.OK:
		return answer.GetPodResources(), nil
	case codes.NotFound:
		return nil, errNoPod
	case codes.Unknown, codes.Unimplemented:
	default:
		return nil, err
	}
	listing, cancel := bounded(ctx)
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
	return nil, errNoPod
}

// errNoKubelet is of the same class as errNoPod: there is no kubelet, or it is being started.
var errNoKubelet = errdefs.NotFoundf("there is no socket of the kubelet's PodResources API: start the kubelet, or correct --pod-resources (an empty path if there is no such API)")

var errNoPod = errdefs.NotFoundf("the kubelet does not list the pod")

// nodesOf reads the NUMA nodes of a device; empty if it is near to none.
func nodesOf(d *podresourcesv1.ContainerDevices) (mask numa.Mask, err error) {
	for _, n := range d.GetTopology().GetNodes() {
		if n.GetID() < 0 || n.GetID() >= numa.MaxNodes {
			return 0, errdefs.Invalidf("the kubelet reports a device of %s on NUMA node %d, expected 0 to %d", d.GetResourceName(),
				n.GetID(), numa.MaxNodes-1)
		}
		mask = mask.With(int(n.GetID()))
	}
	return mask, nil
}
