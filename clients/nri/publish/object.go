package publish

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"time"

	fitv1 "github.com/berthd/berth/api/berth/fit/v1"
	"github.com/berthd/berth/managers/numa"
)

// What the object is in the API.
const (
	APIVersion = "topology.node.k8s.io/v1alpha2"
	Kind       = "NodeResourceTopology"
	// Path is that of all objects at the API server.
	Path = "/apis/" + APIVersion + "/noderesourcetopologies"
)

// Names of attributes, as schedulers read them, and the method of the fingerprint.
const (
	policyAttribute            = "topologyManagerPolicy"
	scopeAttribute             = "topologyManagerScope"
	maxNodesAttribute          = "topologyManagerMaxNUMANodes"
	fingerprintAttribute       = "nodeTopologyPodsFingerprint"
	fingerprintMethodAttribute = "nodeTopologyPodsFingerprintMethod"
	exclusiveResources         = "with-exclusive-resources"
	placementAttribute         = "topology.node.k8s.io/numaplacement-metadata"
	vectorAttribute            = "topology.node.k8s.io/numaplacement-vector" // of a zone

	// assumedNodes is how many NUMA nodes schedulers expect at most if no attribute says more.
	assumedNodes = 8
)

// Object is a NodeResourceTopology.
type Object struct {
	APIVersion string      `json:"apiVersion"`
	Kind       string      `json:"kind"`
	Metadata   Metadata    `json:"metadata"`
	Zones      []Zone      `json:"zones"`
	Attributes []Attribute `json:"attributes,omitempty"`
}

// Metadata is the part of an object's metadata that berth writes.
type Metadata struct {
	Name            string            `json:"name"`
	Annotations     map[string]string `json:"annotations,omitempty"`
	OwnerReferences []Reference       `json:"ownerReferences,omitempty"`
}

// CheckedAnnotation has the time at which the object was compared with berthd's answer last, before it was written: the object of a
// dead node has an old one.
const CheckedAnnotation = "nri.berthd.github.io/checked-at"

// check stores when the object was compared.
func (o *Object) check(at time.Time) {
	o.Metadata.Annotations = map[string]string{CheckedAnnotation: at.UTC().Format(time.RFC3339)}
}

// checked is when the object was compared; zero if it does not say so.
func (o *Object) checked() time.Time {
	at, err := time.Parse(time.RFC3339, o.Metadata.Annotations[CheckedAnnotation])
	if err != nil {
		return time.Time{}
	}
	return at
}

// Reference names another object of the cluster.
type Reference struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
}

// Zone is a NUMA node.
type Zone struct {
	Name       string      `json:"name"`
	Type       string      `json:"type"`
	Costs      []Cost      `json:"costs,omitempty"`
	Resources  []Resource  `json:"resources,omitempty"`
	Attributes []Attribute `json:"attributes,omitempty"`
}

// Cost is the distance to a zone.
type Cost struct {
	Name  string `json:"name"`
	Value int64  `json:"value"`
}

// Resource counts what a zone has of a resource.
type Resource struct {
	Name        string   `json:"name"`
	Capacity    Quantity `json:"capacity"`
	Allocatable Quantity `json:"allocatable"`
	Available   Quantity `json:"available"`
}

// Quantity is a Kubernetes quantity. berth writes plain numbers in strings; others may have written
// numbers.
type Quantity string

// UnmarshalJSON reads a string or a number.
func (q *Quantity) UnmarshalJSON(data []byte) error {
	var n json.Number
	if err := json.Unmarshal(data, &n); err == nil {
		*q = Quantity(n)
		return nil
	}
	return json.Unmarshal(data, (*string)(q))
}

// Attribute is a property of the node, or of a zone.
type Attribute struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Device is a device of another program, such as a kubelet.
type Device struct {
	Resource, ID string
	// Nodes are the NUMA nodes that it is near to; empty if it is near to none.
	Nodes numa.Mask
	// Used means that a container has it.
	Used bool
}

// New returns the object of a node. Owner may be nil. Of a resource that the policy places anywhere,
// each zone has the amounts of the whole machine: then a request that fits on the machine fits in each
// zone. A device that is near to several NUMA nodes counts in each zone.
func New(node string, owner *Reference, free *fitv1.FreeResources, devices []Device) *Object {
	out := &Object{APIVersion: APIVersion, Kind: Kind, Metadata: Metadata{Name: node}, Zones: []Zone{}}
	if owner != nil {
		out.Metadata.OwnerReferences = []Reference{*owner}
	}
	anywhere := map[string]amounts{}
	berths := map[string]bool{}
	for _, n := range free.GetNodes() {
		for _, r := range n.GetResources() {
			berths[r.GetResource()] = true
			if !r.GetAligned() {
				anywhere[r.GetResource()] = anywhere[r.GetResource()].plus(amountsOf(r))
			}
		}
	}
	for _, n := range free.GetNodes() {
		zone := Zone{Name: zoneName(n.GetNumaNode()), Type: "Node"}
		for _, to := range slices.Sorted(maps.Keys(n.GetDistances())) {
			zone.Costs = append(zone.Costs, Cost{zoneName(to), int64(n.GetDistances()[to])})
		}
		all := near(devices, int(n.GetNumaNode()), berths)
		for name, total := range anywhere {
			all[name] = total
		}
		for _, r := range n.GetResources() {
			if r.GetAligned() {
				all[r.GetResource()] = amountsOf(r)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(all)) {
			zone.Resources = append(zone.Resources, all[name].resource(name))
		}
		if vector := n.GetContainerVector(); vector != "" {
			zone.Attributes = []Attribute{{vectorAttribute, vector}}
		}
		out.Zones = append(out.Zones, zone)
	}
	out.Attributes = attributes(free)
	return out
}

// attributes describe the policy to schedulers, by name.
func attributes(free *fitv1.FreeResources) []Attribute {
	out := []Attribute{
		{policyAttribute, free.GetTopologyPolicy()},
		{fingerprintAttribute, free.GetPodsFingerprint()},
		{fingerprintMethodAttribute, exclusiveResources},
	}
	if scope := free.GetTopologyScope(); scope == "container" || scope == "pod" {
		out = append(out, Attribute{scopeAttribute, scope})
	}
	if placement := free.GetContainerPlacement(); placement != "" {
		out = append(out, Attribute{placementAttribute, placement})
	}
	most := 0
	for _, n := range free.GetNodes() {
		most = max(most, int(n.GetNumaNode())+1)
	}
	if most > assumedNodes {
		out = append(out, Attribute{maxNodesAttribute, strconv.Itoa(most)})
	}
	slices.SortFunc(out, func(a, b Attribute) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

func zoneName(node uint32) string { return "node-" + strconv.FormatUint(uint64(node), 10) }

// amounts are those of one resource.
type amounts struct{ capacity, allocatable, available uint64 }

func amountsOf(r *fitv1.NodeResource) amounts {
	return amounts{r.GetCapacity(), r.GetAllocatable(), r.GetAvailable()}
}

func (a amounts) plus(b amounts) amounts {
	return amounts{a.capacity + b.capacity, a.allocatable + b.allocatable, a.available + b.available}
}

func (a amounts) resource(name string) Resource {
	text := func(n uint64) Quantity { return Quantity(strconv.FormatUint(n, 10)) }
	return Resource{Name: name, Capacity: text(a.capacity), Allocatable: text(a.allocatable), Available: text(a.available)}
}

// near counts the devices that are near to a NUMA node, without devices of resources that berthd
// allocates. If a resource has devices near to other nodes only, this node has no amount of it, which
// schedulers read as zero.
func near(devices []Device, node int, berths map[string]bool) map[string]amounts {
	out := map[string]amounts{}
	for _, d := range devices {
		if berths[d.Resource] || !d.Nodes.Contains(node) {
			continue
		}
		one := amounts{capacity: 1, allocatable: 1, available: 1}
		if d.Used {
			one.available = 0
		}
		out[d.Resource] = out[d.Resource].plus(one)
	}
	return out
}

// Change tells how an object differs from what it should be.
type Change int

// Changes.
const (
	Same Change = iota
	Minor
	Major
)

// Compare returns how the object at the API server, nil if there is none, differs from the one that
// is wanted, without the time of the comparison.
func Compare(have, want *Object) Change {
	switch {
	case have == nil || !steady(have).equal(steady(want)):
		return Major
	case !have.equal(want):
		return Minor
	}
	return Same
}

// steady is an object without what pods change.
func steady(o *Object) *Object {
	out := *o
	out.Zones = slices.Clone(o.Zones)
	for i := range out.Zones {
		out.Zones[i].Attributes = nil
		out.Zones[i].Resources = slices.Clone(out.Zones[i].Resources)
		for j := range out.Zones[i].Resources {
			out.Zones[i].Resources[j].Available = ""
		}
	}
	out.Attributes = slices.DeleteFunc(slices.Clone(o.Attributes), func(a Attribute) bool {
		return a.Name == fingerprintAttribute || a.Name == placementAttribute
	})
	return &out
}

func (o *Object) equal(b *Object) bool {
	return slices.Equal(o.Metadata.OwnerReferences, b.Metadata.OwnerReferences) && slices.Equal(o.Attributes, b.Attributes) &&
		slices.EqualFunc(o.Zones, b.Zones, func(x, y Zone) bool {
			return x.Name == y.Name && x.Type == y.Type && slices.Equal(x.Costs, y.Costs) && slices.Equal(x.Resources, y.Resources) &&
				slices.Equal(x.Attributes, y.Attributes)
		})
}
