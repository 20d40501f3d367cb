package driver

import (
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/numa"
)

// claim is what berthd has to allocate for a ResourceClaim. Its JSON form is in the CDI file.
type claim struct {
	UID       string            `json:"uid"`
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	Node      uint32            `json:"numaNode"`
	Resources map[string]string `json:"resources"`
	// CPUs is what berthd has allocated; empty before.
	CPUs string `json:"cpus,omitempty"`

	request, pool, device, environment string
	share                              *types.UID
}

// The name of a device is devicePrefix and the id of its NUMA node.
const devicePrefix = "numa-"

// Amounts that a claim consumes of a device.
const (
	capacityCPU    = "cpu"
	capacityMemory = "memory"
)

// read reads the allocation of a claim. What is not supported is an error.
func read(c *resourceapi.ResourceClaim, nodeName string) (*claim, error) {
	if c.Status.Allocation == nil {
		return nil, errdefs.Preconditionf("the claim is not allocated")
	}
	var own []*resourceapi.DeviceRequestAllocationResult
	for i := range c.Status.Allocation.Devices.Results {
		if r := &c.Status.Allocation.Devices.Results[i]; r.Driver == Name {
			own = append(own, r)
		}
	}
	if len(own) != 1 {
		return nil, errdefs.Unsupportedf("the claim has %d devices of %s, expected one: claims on several NUMA nodes, "+
			"and several requests in a claim, are not supported; use a claim for each", len(own), Name)
	}
	r := own[0]
	id, err := strconv.ParseUint(strings.TrimPrefix(r.Device, devicePrefix), 10, 32)
	switch {
	case len(c.Status.ReservedFor) > 1:
		return nil, errdefs.Unsupportedf("%d pods share the claim: exclusive CPUs of several pods are not supported; use a claim for each pod", len(c.Status.ReservedFor))
	case r.Pool != nodeName:
		return nil, errdefs.Invalidf("device %.80q is of pool %.80q, expected %q, this node's", r.Device, r.Pool, nodeName)
	case err != nil || id >= numa.MaxNodes || r.Device != devicePrefix+strconv.FormatUint(id, 10):
		return nil, errdefs.Invalidf("device %.80q: expected %s and the id of a NUMA node", r.Device, devicePrefix)
	case r.AdminAccess != nil && *r.AdminAccess:
		return nil, errdefs.Unsupportedf("adminAccess: CPUs and memory have no access for administrators")
	}
	parameters, err := readParameters(c.Status.Allocation.Devices.Config, r.Request)
	if err != nil {
		return nil, err
	}
	out := &claim{
		UID: string(c.UID), Namespace: c.Namespace, Name: c.Name, Node: uint32(id), Resources: map[string]string{},
		request: r.Request, pool: r.Pool, device: r.Device, share: r.ShareID, environment: parameters.Environment,
	}
	for name, amount := range r.ConsumedCapacity {
		switch local := strings.TrimPrefix(string(name), Name+"/"); local {
		case capacityCPU, capacityMemory:
			out.Resources[local] = amount.String()
		default:
			return nil, errdefs.Unsupportedf("the claim consumes %.80q, expected %s and %s", name, capacityCPU, capacityMemory)
		}
	}
	if len(out.Resources) != 2 {
		return nil, errdefs.Unsupportedf("the claim consumes %d capacities, expected %s and %s: is the feature gate DRAConsumableCapacity off?",
			len(out.Resources), capacityCPU, capacityMemory)
	}
	return out, nil
}

// admission is the request to berthd. A prepared claim is sent with its allocation, so that berthd can
// restore the allocation if it has lost it.
func (c *claim) admission(owner string) *admissionv1.AdmitRequest {
	node := &typesv1.NUMANodeSet{Ids: []uint32{c.Node}}
	req := &admissionv1.AdmitRequest{
		Owner: owner,
		Subject: &admissionv1.AdmitRequest_ResourceClaim{ResourceClaim: &admissionv1.ResourceClaim{
			Uid: c.UID, Namespace: c.Namespace, Name: c.Name, Resources: c.Resources, NumaNodes: node,
		}},
	}
	if bytes, ok := c.bytes(); ok && c.CPUs != "" {
		req.RunningAllocations = []*admissionv1.RunningAllocation{{
			ContainerName: container, Cpus: &typesv1.CPUSet{List: c.CPUs},
			Memory: []*admissionv1.RunningMemory{{Resource: capacityMemory, NumaNodes: node, Bytes: bytes}},
		}}
	}
	return req
}

// container is the name of the only container of a claim in berthd.
const container = "claim"
