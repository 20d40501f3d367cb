// Package workload describes what an agent runs: a pod, its containers, what they request, and the rules that
// follow from the pod alone (class, totals, order, reuse), without the machine.
//
// Words:
//
//   - pod: a group of containers admitted as a whole. Its uid names it everywhere in berth.
//   - role: init (runs to its end before the next container starts), sidecar (an init container with restart policy
//     Always, which runs on), app.
//   - walk: the admission order of the containers: init containers and sidecars as the specification lists them, then the
//     app containers. Pod.Containers is stored in this order.
//   - quantities: integer amounts by resource name; milli-CPU for cpu, bytes or pieces for everything else.
//   - pod-level resources: amounts that the pod requests as a whole (KEP-2837).
//   - overhead: what the runtime itself needs for the pod's sandbox.
//   - class: BestEffort, Burstable or Guaranteed.
//   - resource claim: a request of a driver of dynamic resources. It is admitted like a pod of one container, and is none.
//   - feed: leave one's exclusive units to later containers of the same pod, which only finished containers can do.
//
// Invariants: a request that is absent is not a request for zero; no function changes a pod that it was given; the same pod
// has the same Digest whatever the order of its maps; sums saturate at the ends of int64 and never wrap.
//
// Other modules may import this package, and every release may change it.
package workload

import (
	"slices"

	"github.com/berthd/berth/managers/numa"
)

// PodID is a pod's uid. Validate allows only what is safe as a path element, a cgroup name and a key: letters, digits, '-'
// and '.', beginning and ending with a letter or digit, at most 128 of them.
type PodID = string

// Annotations of a pod that berth uses.
const (
	// SourceAnnotation is the source of a pod: FromAPIServer for one that is no static pod.
	SourceAnnotation = "kubernetes.io/config.source"
	FromAPIServer    = "api"
	// SeenAnnotation is the time at which the kubelet has first seen the pod, also after a restart of the kubelet.
	SeenAnnotation = "kubernetes.io/config.seen"
	// MirrorAnnotation marks the mirror of a static pod.
	MirrorAnnotation = "kubernetes.io/config.mirror"
	// SpecificationAnnotation is the source of a pod's specification in berth-nri.
	SpecificationAnnotation = "nri.berthd.github.io/specification"
	// MovableAnnotation names the moves of a running pod that berth may make without a resize.
	MovableAnnotation = "berthd.github.io/movable"
	// ReturnsAnnotation is "true" for a pod that is made again on the same node when it is deleted, such as one of a DaemonSet.
	ReturnsAnnotation = "berthd.github.io/returns"
)

// UsedAnnotations are all annotations that berth uses; of others only the answer to a call about the pod has the values.
var UsedAnnotations = []string{SourceAnnotation, MirrorAnnotation, SpecificationAnnotation, MovableAnnotation, ReturnsAnnotation}

// Features selects behaviour that the reference puts behind feature gates. In Kubernetes 1.37 PodLevelResources is on and
// PodLevelResourceManagers is off.
type Features struct {
	// PodLevelResources honours Pod.Resources (KEP-2837).
	PodLevelResources bool `json:"podLevelResources"`
	// PodLevelResourceManagers lets the CPU and memory managers work for pods with pod-level resources (KEP-5526).
	PodLevelResourceManagers bool `json:"podLevelResourceManagers"`
}

// Pod is the part of a Kubernetes pod on which decisions rest. It is stored in the ledger as JSON.
type Pod struct {
	UID         PodID             `json:"uid"`
	Namespace   string            `json:"namespace,omitempty"`
	Name        string            `json:"name,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`

	// Containers stands in admission order: init containers and sidecars as specified, then app containers. Ephemeral
	// containers have no resources and are left out.
	Containers []Container `json:"containers"`

	// Overhead is added to the requests, and to those limits that are set.
	Overhead Quantities `json:"overhead,omitempty"`
	// Resources are the pod-level amounts. They are in force if they have any: HasPodLevel.
	Resources *Resources `json:"resources,omitempty"`

	// Excess is what rounding put on Resources and Overhead.
	Excess *Excess `json:"excess,omitempty"`

	// QoS is the class that the agent hands in (status.qosClass); it wins over the computed one. Empty means compute.
	QoS QoSClass `json:"qosClass,omitempty"`

	// Priority decides, with PriorityClassName, whether the pod is critical; nil means not given.
	Priority          *int32 `json:"priority,omitempty"`
	PriorityClassName string `json:"priorityClassName,omitempty"`
	// RestartPolicy is Always, OnFailure or Never; empty means Always.
	RestartPolicy string `json:"restartPolicy,omitempty"`
	HostNetwork   bool   `json:"hostNetwork,omitempty"`

	// ResourceClaim is present if this is a claim on dynamic resources (KEP-4381) and no pod.
	ResourceClaim *ResourceClaim `json:"resourceClaim,omitempty"`
}

// ResourceClaim holds what a claim on dynamic resources has in addition to the amounts of its containers. A claim has no cgroup and
// no processes: containers of pods use what it holds.
type ResourceClaim struct {
	// Devices are one for each container, in the same order.
	Devices []ClaimDevice `json:"devices"`
	// Pods are those that the claim is reserved for. They may change while the claim lives, and no decision rests on them.
	Pods []ClaimPod `json:"pods,omitempty"`
}

// ClaimPod is a pod of the claim's namespace.
type ClaimPod struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
}

// For returns the claim with other pods that it is reserved for.
func (c *ResourceClaim) For(pods []ClaimPod) *ResourceClaim {
	return &ResourceClaim{Devices: c.Devices, Pods: pods}
}

// ClaimDevice holds what a container of a resource claim has in addition to its amounts.
type ClaimDevice struct {
	// Node is the NUMA node that the scheduler has chosen. The container gets everything from exactly this one.
	Node int `json:"node"`
	// CPUOptions are options of the CPU manager that are on for this container, sorted.
	CPUOptions []string `json:"cpuOptions,omitempty"`
}

// Nodes returns the NUMA nodes of all devices.
func (c *ResourceClaim) Nodes() (nodes numa.Mask) {
	for _, d := range c.Devices {
		nodes = nodes.With(d.Node)
	}
	return nodes
}

// ClaimDevice returns the device of a container of a resource claim; false for a pod, and for a record without it.
func (p *Pod) ClaimDevice(container int) (ClaimDevice, bool) {
	if p.ResourceClaim == nil || container < 0 || container >= len(p.ResourceClaim.Devices) {
		return ClaimDevice{}, false
	}
	return p.ResourceClaim.Devices[container], true
}

// Resources are requests and limits that belong together.
type Resources struct {
	Requests Quantities `json:"requests,omitempty"`
	Limits   Quantities `json:"limits,omitempty"`
}

// Container is one container of a pod.
type Container struct {
	// Name is unique within the pod.
	Name     string     `json:"name"`
	Role     Role       `json:"role,omitzero"`
	Requests Quantities `json:"requests,omitempty"`
	Limits   Quantities `json:"limits,omitempty"`
	// Excess is what rounding put on Requests and Limits.
	Excess *Excess `json:"excess,omitempty"`
	// ResizePolicy is per resource (cpu, memory) whether a change in place restarts the container: NotRequired or
	// RestartContainer. An absent resource means NotRequired.
	ResizePolicy map[Resource]string `json:"resizePolicy,omitempty"`
	// ExternalDevices are devices that another program, such as a kubelet, has allocated to the container. They are no
	// part of the specification.
	ExternalDevices []ExternalDevice `json:"externalDevices,omitempty"`
}

// ExternalDevice is a device that another program has allocated.
type ExternalDevice struct {
	// Resource of which it is, for example example.com/gpu.
	Resource string `json:"resource"`
	// ID as that program names the device.
	ID string `json:"id"`
	// Nodes are the NUMA nodes that the device is near to; empty if it is near to none. The machine may not have them.
	Nodes numa.Mask `json:"nodes,omitzero"`
	// Claim is how the container has the device; nil for a device of a device plugin.
	Claim *ExternalClaim `json:"claim,omitempty"`
	// Unlisted means that the id is not the one of a device that readers can be told: it stands for several devices or
	// for a long name, or it is not certain that the container has the device.
	Unlisted bool `json:"unlisted,omitempty"`
}

// ExternalClaim is the claim on dynamic resources (KEP-4381), in the pod's namespace, by which a container has a device of
// another program. All names are that program's.
type ExternalClaim struct {
	Name   string `json:"name"`
	Driver string `json:"driver"`
	Pool   string `json:"pool"`
	Device string `json:"device"`
	// Share is the id of a share of the device; empty for the whole device.
	Share string `json:"share,omitempty"`
	// CDI has the names of the CDI devices, in the order of the driver.
	CDI []string `json:"cdi,omitempty"`
}

// HasExternal returns whether another program has allocated a device of a resource to the container.
func (c *Container) HasExternal(resource string) bool {
	return slices.ContainsFunc(c.ExternalDevices, func(d ExternalDevice) bool { return d.Resource == resource })
}

// Static reports whether the pod is not the API server's: a static pod, or the mirror of one.
func (p *Pod) Static() bool {
	source, ok := p.Annotations[SourceAnnotation]
	_, mirror := p.Annotations[MirrorAnnotation]
	return ok && source != FromAPIServer || mirror
}

// Returns reports whether the pod is made again on the same node when it is deleted, so that its deletion makes no room.
func (p *Pod) Returns() bool { return p.Static() || p.Annotations[ReturnsAnnotation] == "true" }

// String gives "namespace/name (uid)", or the uid alone while the pod has no name.
func (p *Pod) String() string {
	if p.Name == "" {
		return p.UID
	}
	return p.Namespace + "/" + p.Name + " (" + p.UID + ")"
}

// Container finds a container by name, nil if the pod has none of that name.
func (p *Pod) Container(name string) *Container {
	for i := range p.Containers {
		if p.Containers[i].Name == name {
			return &p.Containers[i]
		}
	}
	return nil
}

// HasPodLevel reports whether the pod requests anything as a whole: a request or limit for cpu, memory or huge pages. It
// checks the specification only; whether that counts depends on the Features.
func (p *Pod) HasPodLevel() bool {
	if p.Resources == nil {
		return false
	}
	for _, q := range []Quantities{p.Resources.Requests, p.Resources.Limits} {
		for r := range q {
			if r.PodLevel() {
				return true
			}
		}
	}
	return false
}

// Guaranteed reports whether the container would be Guaranteed on its own: request equals limit and both are above zero,
// for cpu and for memory. With pod-level resources this decides who may own CPUs and memory exclusively (KEP-5526).
func (c *Container) Guaranteed() bool {
	for _, r := range []Resource{CPU, Memory} {
		if c.Requests[r] <= 0 || c.requests().at(r) != c.limits().at(r) {
			return false
		}
	}
	return true
}
