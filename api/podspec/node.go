package podspec

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/workload"
)

// NodePod is a pod of a node, as the API server has it.
type NodePod struct {
	Pod *typesv1.Pod
	// Node is the name of the node that it is on; empty if it is on none.
	Node string
	// Status is what the kubelet has told of it.
	Status corev1.PodStatus
	// Created is when the API server has made it.
	Created time.Time
	// Controller is the uid of what replaces it when it has ended, such as a ReplicaSet; empty if nothing does.
	Controller string
	// OfDaemonSet means that this is a DaemonSet, which makes the pod again on the same node.
	OfDaemonSet bool
}

// Seen reports whether the kubelet has decided about the pod.
func (p NodePod) Seen() bool { return p.Status.StartTime != nil || p.Status.Phase != corev1.PodPending }

// Living reports whether the pod has not ended: the kubelet has admitted it, or has not seen it yet.
func (p NodePod) Living() bool {
	return p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}

// IDs are the names of the pod's containers by the runtime's, which are without what precedes ://.
func (p NodePod) IDs() map[string]string {
	out := map[string]string{}
	for _, list := range [][]corev1.ContainerStatus{
		p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses,
	} {
		for _, c := range list {
			if _, id, ok := strings.Cut(c.ContainerID, "://"); ok {
				out[id] = c.Name
			}
		}
	}
	return out
}

// ClaimUse is a container's use of a ResourceClaim of its namespace: of one of the claim's requests, or of all if Request is empty.
type ClaimUse struct{ Claim, Request string }

// Claims are the claims that the pod's containers use, by container: those that the pod names, those that were made of templates, and
// those for extended resources. One that is not made yet is left out.
func (p NodePod) Claims() map[string][]ClaimUse {
	names := map[string]string{}
	for _, c := range p.Pod.GetSpec().GetResourceClaims() {
		names[c.GetName()] = c.GetResourceClaimName()
	}
	for _, s := range p.Status.ResourceClaimStatuses {
		if s.ResourceClaimName != nil {
			names[s.Name] = *s.ResourceClaimName
		}
	}
	out := map[string][]ClaimUse{}
	add := func(container, claim, request string) {
		if claim != "" {
			out[container] = append(out[container], ClaimUse{claim, request})
		}
	}
	for _, c := range slices.Concat(p.Pod.GetSpec().GetInitContainers(), p.Pod.GetSpec().GetContainers()) {
		for _, use := range c.GetResources().GetClaims() {
			add(c.GetName(), names[use.GetName()], use.GetRequest())
		}
	}
	if extended := p.Status.ExtendedResourceClaimStatus; extended != nil {
		for _, m := range extended.RequestMappings {
			add(m.ContainerName, extended.ResourceClaimName, m.RequestName)
		}
	}
	return out
}

// FromNode converts a pod of a node, with the amounts that the kubelet has allocated.
func FromNode(p *corev1.Pod) (NodePod, error) {
	p = p.DeepCopy()
	TakeAllocated(p)
	// The API server's copy of a static pod has a uid of its own. The kubelet's files have this one.
	if uid := p.Annotations[workload.MirrorAnnotation]; uid != "" {
		p.UID = types.UID(uid)
	}
	pod, err := FromPod(p, Options{})
	out := NodePod{Pod: pod, Node: p.Spec.NodeName, Status: p.Status, Created: p.CreationTimestamp.Time}
	if owner := metav1.GetControllerOf(p); owner != nil {
		out.Controller, out.OfDaemonSet = string(owner.UID), owner.Kind == "DaemonSet"
	}
	return out, err
}

// DecodeNode reads every pod of a YAML or JSON text as Decode does, with its status. There may be none.
func DecodeNode(r io.Reader, o Options) ([]NodePod, error) {
	out := []NodePod{}
	o.whole = func(p *corev1.Pod, _ *typesv1.Pod, _ []string) error {
		pod, err := FromNode(p)
		out = append(out, pod)
		return err
	}
	err := documents(r, func(doc object) error { return o.flatten(doc, new([]*typesv1.Pod)) })
	return out, err
}

// UnmarshalNode reads the pods of a list in protobuf as FromNode does, without their status.
func UnmarshalNode(data []byte) ([]NodePod, error) {
	var list corev1.PodList
	if err := list.Unmarshal(data); err != nil {
		return nil, fmt.Errorf("expected a PodList in protobuf: %w", err)
	}
	out := make([]NodePod, len(list.Items))
	for i := range list.Items {
		p := &list.Items[i]
		p.Status = corev1.PodStatus{}
		var err error
		if out[i], err = FromNode(p); err != nil {
			return nil, err
		}
	}
	return out, nil
}
