package driver

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/numa"
)

// claim is what berthd has to allocate for a ResourceClaim. Its JSON form is in the CDI file.
type claim struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Pods are those that the claim is reserved for.
	Pods  []*typesv1.ClaimPod `json:"pods,omitempty"`
	Parts []*part             `json:"parts"`

	file []byte // the content of the CDI file; nil before
}

// part is what a claim has of a device.
type part struct {
	// Name is that of the request, or REQUEST-NUMBER if the claim has several devices for the request.
	Name      string            `json:"name"`
	Node      uint32            `json:"numaNode"`
	Resources map[string]string `json:"resources"`
	// Options are those of the CPU manager.
	Options []string `json:"cpuOptions,omitempty"`
	// CPUs is what berthd has allocated; empty before.
	CPUs string `json:"cpus,omitempty"`

	request, pool, device, environment string
	mounts                             []HugePageMount
	mountBytes                         map[string]uint64 // of each mount, by page size and path
	share                              *types.UID
}

// maxName bounds the name of a part in bytes: it is that of a container in berthd.
const maxName = 63

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
	configs, err := readParameters(c.Status.Allocation.Devices.Config)
	if err != nil {
		return nil, err
	}
	out := &claim{UID: string(c.UID), Namespace: c.Namespace, Name: c.Name}
	for _, user := range c.Status.ReservedFor {
		if user.APIGroup == "" && user.Resource == "pods" {
			out.Pods = append(out.Pods, &typesv1.ClaimPod{Name: user.Name, Uid: string(user.UID)})
		}
	}
	for i := range c.Status.Allocation.Devices.Results {
		r := &c.Status.Allocation.Devices.Results[i]
		if r.Driver != Name {
			continue
		}
		p, err := readPart(r, nodeName)
		if err != nil {
			return nil, fmt.Errorf("request %s: %w", r.Request, err)
		}
		parameters, err := forRequest(configs, r.Request)
		if err != nil {
			return nil, err
		}
		p.environment, p.Options, p.mounts = parameters.Environment, parameters.CPUOptions, parameters.HugePageMounts
		out.Parts = append(out.Parts, p)
	}
	if len(out.Parts) == 0 {
		return nil, errdefs.Unsupportedf("the claim has no device of %s", Name)
	}
	out.mountOnce()
	if err := out.mountable(); err != nil {
		return nil, err
	}
	return out, out.name()
}

// mountOnce leaves the mounts of a request with several devices to the first of them. A container that uses the request has all of
// them, so the mount has the size of all their pages.
func (c *claim) mountOnce() {
	first := map[string]*part{}
	for _, p := range c.Parts {
		if len(p.mounts) == 0 {
			continue
		}
		f := first[p.request]
		if f == nil {
			first[p.request], p.mountBytes = p, map[string]uint64{}
			f = p
		} else {
			p.mounts = nil
		}
		for _, m := range f.mounts {
			bytes, _ := p.amount(string(m.resource()))
			f.mountBytes[string(m.resource())+m.Path] += bytes
		}
	}
}

// mountable returns which mount has no huge pages, or the path of another one.
func (c *claim) mountable() error {
	paths := map[string]bool{}
	for _, p := range c.Parts {
		for i, m := range p.mounts {
			switch {
			case len(paths) == maxMountsOfClaim:
				return errdefs.Invalidf("request %s: hugePageMounts: the claim has more than %d", p.request, maxMountsOfClaim)
			case p.Resources[string(m.resource())] == "":
				return errdefs.Invalidf("request %s: hugePageMounts[%d]: the request has no huge pages of %s: request the capacity %s",
					p.request, i, m.PageSize, capacityOf(m.resource()))
			case paths[m.Path]:
				return errdefs.Invalidf("request %s: hugePageMounts[%d]: path %s is given twice in the claim", p.request, i, m.Path)
			}
			paths[m.Path] = true
		}
	}
	return nil
}

// name names the parts. The names of a claim's parts differ, and those of their variables.
func (c *claim) name() error {
	of := map[string]int{}
	for _, p := range c.Parts {
		of[parent(p.request)]++
	}
	number, known := map[string]int{}, map[string]bool{}
	for _, p := range c.Parts {
		p.Name = parent(p.request)
		if of[p.Name] > 1 {
			n := number[p.Name]
			number[p.Name]++
			p.Name += "-" + strconv.Itoa(n)
		}
		if len(p.Name) > maxName {
			return errdefs.Unsupportedf("request %s: its devices would be called %s, and a name has at most %d characters: give the request a shorter name", p.request, p.Name, maxName)
		}
		variable := p.variable("CPUS")
		if known[p.Name] || known[variable] {
			return errdefs.Unsupportedf("request %s: a device of another request has this name, or the variable %s: rename one of the requests, or change environment in its parameters",
				p.Name, strings.TrimSuffix(variable, "="))
		}
		known[p.Name], known[variable] = true, true
	}
	return nil
}

// readPart reads a device of a claim.
func readPart(r *resourceapi.DeviceRequestAllocationResult, nodeName string) (*part, error) {
	id, err := strconv.ParseUint(strings.TrimPrefix(r.Device, devicePrefix), 10, 32)
	switch {
	case r.Pool != nodeName:
		return nil, errdefs.Invalidf("device %.80q is of pool %.80q, expected %q, this node's", r.Device, r.Pool, nodeName)
	case err != nil || id >= numa.MaxNodes || r.Device != devicePrefix+strconv.FormatUint(id, 10):
		return nil, errdefs.Invalidf("device %.80q: expected %s and the id of a NUMA node", r.Device, devicePrefix)
	case r.AdminAccess != nil && *r.AdminAccess:
		return nil, errdefs.Unsupportedf("adminAccess: CPUs and memory have no access for administrators")
	}
	out := &part{
		Node: uint32(id), Resources: map[string]string{},
		request: r.Request, pool: r.Pool, device: r.Device, share: r.ShareID,
	}
	for name, amount := range r.ConsumedCapacity {
		local := strings.TrimPrefix(string(name), Name+"/")
		pages, size, huge := pagesOf(local)
		switch _, twice := r.ConsumedCapacity[resourceapi.QualifiedName(local)]; {
		case twice && local != string(name):
			return nil, errdefs.Invalidf("the claim consumes %.80q twice: with and without the name of the driver", local)
		case local == capacityCPU, local == capacityMemory:
			out.Resources[local] = amount.String()
		case !huge:
			return nil, errdefs.Unsupportedf("the claim consumes %.80q, expected %s, %s and huge pages", name, capacityCPU, capacityMemory)
		case amount.Sign() < 0 || amount.Value()%size != 0:
			return nil, errdefs.Invalidf("the claim consumes %s of %.80q, expected a multiple of the page size", amount.String(), name)
		case amount.Sign() > 0:
			out.Resources[string(pages)] = amount.String()
		}
	}
	if out.Resources[capacityCPU] == "" || out.Resources[capacityMemory] == "" {
		return nil, errdefs.Unsupportedf("the claim consumes %d capacities, expected at least %s and %s: is the feature gate DRAConsumableCapacity off?",
			len(out.Resources), capacityCPU, capacityMemory)
	}
	return out, nil
}

// hugePages reports whether the claim has huge pages.
func (c *claim) hugePages() bool {
	for _, p := range c.Parts {
		if len(p.Resources) > 2 {
			return true
		}
	}
	return false
}

// admission is the request to berthd. A prepared claim is sent with its allocation, so that berthd can
// restore the allocation if it has lost it.
func (c *claim) admission(owner string) *admissionv1.AdmitRequest {
	message := &admissionv1.ResourceClaim{Uid: c.UID, Namespace: c.Namespace, Name: c.Name, Pods: c.Pods}
	req := &admissionv1.AdmitRequest{Owner: owner, Subject: &admissionv1.AdmitRequest_ResourceClaim{ResourceClaim: message}}
	for _, p := range c.Parts {
		message.Devices = append(message.Devices, &admissionv1.ClaimDevice{Name: p.Name, NumaNode: p.Node, Resources: p.Resources,
			CpuOptions: p.Options})
		if _, ok := p.bytes(); ok && p.CPUs != "" {
			running := &admissionv1.RunningAllocation{ContainerName: p.Name, Cpus: &typesv1.CPUSet{List: p.CPUs}}
			for _, name := range slices.Sorted(maps.Keys(p.Resources)) {
				if bytes, ok := p.amount(name); ok && name != capacityCPU {
					running.Memory = append(running.Memory, &admissionv1.RunningMemory{Resource: name,
						NumaNodes: &typesv1.NUMANodeSet{Ids: []uint32{p.Node}}, Bytes: bytes})
				}
			}
			req.RunningAllocations = append(req.RunningAllocations, running)
		}
	}
	return req
}

// has takes over the CPUs of a claim that is prepared already.
func (c *claim) has(prepared *claim) {
	for _, p := range c.Parts {
		if i := slices.IndexFunc(prepared.Parts, func(o *part) bool { return o.Name == p.Name }); i >= 0 {
			p.CPUs = prepared.Parts[i].CPUs
		}
	}
}

// same reports whether two claims have the same amounts of the same NUMA nodes.
func (c *claim) same(o *claim) bool {
	return len(c.Parts) == len(o.Parts) && !slices.ContainsFunc(c.Parts, func(p *part) bool {
		return !slices.ContainsFunc(o.Parts, func(q *part) bool {
			return p.Name == q.Name && p.Node == q.Node && maps.Equal(p.amounts(), q.amounts())
		})
	})
}

// uses reports whether a part is of a NUMA node.
func (c *claim) uses(node uint32) bool {
	return slices.ContainsFunc(c.Parts, func(p *part) bool { return p.Node == node })
}

// cpus are the CPUs of all parts.
func (c *claim) cpus() (all cpuset.Set) {
	for _, p := range c.Parts {
		if set, err := cpuset.Parse(p.CPUs); err == nil { // else it was checked when it was read
			all = all.Union(set)
		}
	}
	return all
}

// bytes is the memory of a part.
func (p *part) bytes() (uint64, bool) { return p.amount(capacityMemory) }

// amount is what a part has of a resource.
func (p *part) amount(name string) (uint64, bool) {
	q, err := resource.ParseQuantity(p.Resources[name])
	if err != nil || q.Value() <= 0 {
		return 0, false
	}
	return uint64(q.Value()), true
}

// amounts are what a part has of each resource.
func (p *part) amounts() map[string]uint64 {
	out := map[string]uint64{}
	for name := range p.Resources {
		out[name], _ = p.amount(name)
	}
	return out
}

// cdiName is the name of a part's CDI device without the kind; policy.ClaimResource of berth-nri reads it.
func (c *claim) cdiName(p *part) string { return c.UID + ":" + p.Name }
