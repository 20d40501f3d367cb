package policy

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/workload"
)

// devices reads the devices that the kubelet has given to pods, for their admission.
type devices struct {
	*common
	source DeviceSource // nil for none
}

// DeviceSource reads the devices that the kubelet has allocated to pods.
type DeviceSource interface {
	// Devices returns the devices of a pod, by container; nil if the pod has none, or if the kubelet
	// has no API for them. Class NotFound means that the kubelet does not have the pod. Any other error is temporary.
	Devices(ctx context.Context, namespace, name string) (map[string][]*typesv1.ExternalDevice, error)
}

// of returns the devices that the kubelet has allocated to the containers of a pod, which
// berthd gets with the admission. The kubelet allocates them before it calls the runtime. An
// admission without them would place the pod for its whole life, so the admission fails if they
// cannot be read now: the kubelet repeats the call.
func (d *devices) of(ctx context.Context, s *sandbox, pod *typesv1.Pod) ([]*admissionv1.ExternalDevices, error) {
	if d.source == nil || pod == s.spec && !s.dynamic && !requestsDevices(pod) {
		return nil, nil
	}
	byContainer, err := d.list(ctx, s)
	if err != nil {
		return nil, err
	}
	var out []*admissionv1.ExternalDevices
	for _, c := range slices.Concat(pod.GetSpec().GetInitContainers(), pod.GetSpec().GetContainers()) {
		list := byContainer[c.GetName()]
		if len(list) == 0 && slices.Contains(s.claiming, c.GetName()) {
			list = partsOf(byContainer)
		}
		list = s.nearClaims(list)
		if len(list) == 0 {
			continue
		}
		list = bounded(list)
		out = append(out, &admissionv1.ExternalDevices{ContainerName: c.GetName(), Devices: list})
		d.log.Debug("CPUs and memory are aligned with devices of the kubelet", "pod", s.namespace+"/"+s.name, "container", c.GetName(),
			"devices", fmt.Sprint(list))
	}
	return out, nil
}

// partsOf returns the parts of all claims on CPUs that containers of a pod use. The kubelet does not list the devices of init
// containers that end, so it is not known which of these an init container uses.
func partsOf(byContainer map[string][]*typesv1.ExternalDevice) (parts []*typesv1.ExternalDevice) {
	for _, name := range slices.Sorted(maps.Keys(byContainer)) {
		for _, d := range byContainer[name] {
			if isClaim(d) && !slices.ContainsFunc(parts, func(o *typesv1.ExternalDevice) bool { return o.GetId() == d.GetId() }) {
				parts = append(parts, &typesv1.ExternalDevice{Resource: d.GetResource(), Id: d.GetId(), NumaNodes: d.GetNumaNodes(),
					Unlisted: true})
			}
		}
	}
	return parts
}

// list returns the devices of a pod from the kubelet. A kubelet that has been started lists its pods after its first
// contact with the API server, so a pod of a kubelet that it does not have may still have devices. Its API has pods by name. Of several
// pods of one name it has the newest.
func (d *devices) list(ctx context.Context, s *sandbox) (map[string][]*typesv1.ExternalDevice, error) {
	for _, other := range d.node.sandboxes {
		if other.namespace == s.namespace && other.name == s.name && other.uid != s.uid && !s.newer(other) {
			return nil, errdefs.Unavailablef("the devices of pod %s/%s with uid %s are not known: the kubelet has devices by the names of pods, and pod %s has the same name",
				s.namespace, s.name, s.uid, other.uid)
		}
	}
	byContainer, err := d.source.Devices(ctx, s.namespace, s.name)
	switch {
	case errdefs.ClassOf(err) == errdefs.NotFound && s.qos == "": // another program's pod
		return nil, nil
	case err != nil:
		return nil, errdefs.Unavailablef("read the devices of pod %s/%s from the kubelet: %w", s.namespace, s.name, err)
	}
	return byContainer, nil
}

// Bounds of what berthd takes.
const (
	maxDevices  = 256  // of a container
	maxDeviceID = 1024 // bytes
	maxClaim    = 2048 // bytes of all texts of a device's claim
)

// bounded returns the devices of a container within berthd's bounds. If there are too many, those of device plugins are
// combined first: plugins that share a device, or count its memory, have thousands of ids. The devices of claims stay, unless
// they alone are too many.
func bounded(list []*typesv1.ExternalDevice) []*typesv1.ExternalDevice {
	long := func(d *typesv1.ExternalDevice) bool {
		return len(d.GetId()) > maxDeviceID || convert.ClaimTexts(d.GetClaim()) > maxClaim
	}
	many := len(list) > maxDevices
	var combined, out []*typesv1.ExternalDevice
	for _, d := range list {
		if long(d) || many && d.GetClaim() == nil {
			combined = append(combined, d)
		} else {
			out = append(out, d)
		}
	}
	if len(combined) == 0 && !many {
		return list
	}
	if out = append(out, grouped(combined)...); len(out) > maxDevices {
		return grouped(list)
	}
	return out
}

// grouped combines the devices that are of the same resource and on the same NUMA nodes, which are what matters for the placement. A
// group has the id of its first device and the number of the others. Parts of claims on CPUs stay apart, because their ids say which claims
// the container uses, unless there are too many of them.
func grouped(list []*typesv1.ExternalDevice) (out []*typesv1.ExternalDevice) {
	type kind struct{ resource, nodes, claim string }
	groups := map[kind][]string{}
	first := map[kind]*typesv1.ExternalDevice{}
	claims := 0
	for _, d := range list {
		k := kind{resource: d.GetResource(), nodes: convert.Nodes(d.GetNumaNodes()).String()}
		if isClaim(d) && claims < maxDevices/2 {
			k.claim = d.GetId()
			claims++
		}
		groups[k], first[k] = append(groups[k], d.GetId()), d
	}
	order := func(a, b kind) int {
		return cmp.Or(cmp.Compare(a.resource, b.resource), cmp.Compare(a.nodes, b.nodes), cmp.Compare(a.claim, b.claim))
	}
	for _, k := range slices.SortedFunc(maps.Keys(groups), order) {
		if d := first[k]; len(groups[k]) == 1 && len(d.GetId()) <= maxDeviceID && convert.ClaimTexts(d.GetClaim()) <= maxClaim {
			out = append(out, d)
			continue
		}
		id := fmt.Sprintf("%.200s", slices.Min(groups[k])) // characters, which are of up to 4 bytes
		if more := len(groups[k]) - 1; more > 0 {
			id = fmt.Sprintf("%s and %d more", id, more)
		}
		out = append(out, &typesv1.ExternalDevice{Resource: k.resource, Id: id, NumaNodes: first[k].GetNumaNodes(), Unlisted: true})
	}
	return out
}

// implicitResource begins the names of the extended resources that stand for a claim on one device of a DeviceClass.
const implicitResource = "deviceclass.resource.kubernetes.io/"

// requestsDevices returns whether a container of a specification requests an extended resource.
func requestsDevices(pod *typesv1.Pod) bool {
	for _, c := range slices.Concat(pod.GetSpec().GetInitContainers(), pod.GetSpec().GetContainers()) {
		for name := range c.GetResources().GetLimits() {
			if workload.Resource(name).IsExtended() || strings.HasPrefix(name, implicitResource) {
				return true
			}
		}
	}
	return false
}
