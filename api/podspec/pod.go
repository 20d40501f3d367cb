package podspec

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

// ErrNoUID is returned for a pod whose metadata.uid is missing where none may be simulated.
var ErrNoUID = errors.New("metadata.uid is missing: an API server gives one to each pod, so take the pod from there, or use one made from namespace and name")

// Options of a conversion. The zero value is good for pods that come from an API server.
type Options struct {
	// GenerateUID gives a pod without uid one that is made from its namespace and name: the same each time, so that the
	// same file is the same pod.
	GenerateUID bool
	// Ignored is called, pod by pod, with the fields that Decode and Load did not understand (unknown field "spec.nodename");
	// may be nil.
	Ignored func(pod, what string)
	// Dropped is called, pod by pod, with the fields that Decode and Load understood and that are not converted, because they
	// decide nothing about the placement on a node; may be nil.
	Dropped func(pod string, fields []string)

	// whole is called with every pod before and after its conversion, and the unknown fields.
	whole func(p *corev1.Pod, m *typesv1.Pod, unknown []string) error
}

// FromPod converts a Kubernetes pod.
func FromPod(p *corev1.Pod, o Options) (*typesv1.Pod, error) {
	out := &typesv1.Pod{
		Metadata: &typesv1.PodMetadata{
			Name: p.Name, Namespace: cmp.Or(p.Namespace, corev1.NamespaceDefault), Uid: string(p.UID),
			Labels: p.Labels, Annotations: p.Annotations,
		},
		Spec: spec(&p.Spec),
	}
	if p.Status.QOSClass != "" {
		out.Status = &typesv1.PodStatus{QosClass: string(p.Status.QOSClass)}
	}
	if p.UID != "" {
		return out, nil
	}
	if !o.GenerateUID {
		return nil, fmt.Errorf("pod %s: %w", title(p.Namespace, p.Name), ErrNoUID)
	}
	if p.Name == "" {
		return nil, fmt.Errorf("pod %s: metadata.name is missing: without it no uid can be made", title(p.Namespace, p.Name))
	}
	out.Metadata.Uid = madeUID(out.Metadata.Namespace, out.Metadata.Name)
	return out, nil
}

// title names a pod in errors.
func title(namespace, name string) string {
	return cmp.Or(namespace, corev1.NamespaceDefault) + "/" + cmp.Or(name, "(no name)")
}

// GeneratedUID returns whether the uid of a pod is one that GenerateUID makes.
func GeneratedUID(p *typesv1.Pod) bool {
	return p.GetMetadata().GetUid() == madeUID(p.GetMetadata().GetNamespace(), p.GetMetadata().GetName())
}

// madeUID makes a UUID of version 8 (RFC 9562, section 5.8) from a pod's name.
func madeUID(namespace, name string) string {
	u := sha256.Sum256([]byte("berth pod " + namespace + "/" + name))
	u[6] = u[6]&0x0f | 0x80
	u[8] = u[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
}

func spec(s *corev1.PodSpec) *typesv1.PodSpec {
	out := &typesv1.PodSpec{
		InitContainers:                containers(s.InitContainers),
		Containers:                    containers(s.Containers),
		Overhead:                      amounts(s.Overhead),
		Resources:                     podLevel(s.Resources),
		RestartPolicy:                 string(s.RestartPolicy),
		Priority:                      s.Priority,
		PriorityClassName:             s.PriorityClassName,
		HostNetwork:                   s.HostNetwork,
		HostPid:                       s.HostPID,
		HostIpc:                       s.HostIPC,
		TerminationGracePeriodSeconds: s.TerminationGracePeriodSeconds,
		NodeName:                      s.NodeName,
	}
	if s.RuntimeClassName != nil {
		out.RuntimeClassName = *s.RuntimeClassName
	}
	for _, c := range s.ResourceClaims {
		m := &typesv1.PodResourceClaim{Name: c.Name}
		if c.ResourceClaimName != nil {
			m.ResourceClaimName = *c.ResourceClaimName
		}
		if c.ResourceClaimTemplateName != nil {
			m.ResourceClaimTemplateName = *c.ResourceClaimTemplateName
		}
		out.ResourceClaims = append(out.ResourceClaims, m)
	}
	for i := range s.EphemeralContainers {
		c := &s.EphemeralContainers[i]
		out.EphemeralContainers = append(out.EphemeralContainers, &typesv1.Container{Name: c.Name, Image: c.Image})
	}
	if s.OS != nil {
		out.Os = &typesv1.PodOS{Name: string(s.OS.Name)}
	}
	return out
}

func containers(list []corev1.Container) []*typesv1.Container {
	var out []*typesv1.Container
	for i := range list {
		c := &list[i]
		m := &typesv1.Container{Name: c.Name, Image: c.Image, Resources: requirements(&c.Resources)}
		if c.RestartPolicy != nil {
			m.RestartPolicy = string(*c.RestartPolicy)
		}
		for _, rp := range c.ResizePolicy {
			m.ResizePolicy = append(m.ResizePolicy, &typesv1.ResizePolicy{
				ResourceName: string(rp.ResourceName), RestartPolicy: string(rp.RestartPolicy),
			})
		}
		out = append(out, m)
	}
	return out
}

// podLevel converts what a pod requests as a whole. Kubernetes has no claims there, and a pod that requests nothing else
// requests nothing.
func podLevel(r *corev1.ResourceRequirements) *typesv1.ResourceRequirements {
	if r == nil {
		return nil
	}
	return requirements(&corev1.ResourceRequirements{Requests: r.Requests, Limits: r.Limits})
}

// requirements converts requests, limits and claims on dynamic resources; nil if there are none.
func requirements(r *corev1.ResourceRequirements) *typesv1.ResourceRequirements {
	if r == nil || len(r.Requests) == 0 && len(r.Limits) == 0 && len(r.Claims) == 0 {
		return nil
	}
	out := &typesv1.ResourceRequirements{Requests: amounts(r.Requests), Limits: amounts(r.Limits)}
	for _, c := range r.Claims {
		out.Claims = append(out.Claims, &typesv1.ResourceClaim{Name: c.Name, Request: c.Request})
	}
	return out
}

func amounts(list corev1.ResourceList) map[string]string {
	if len(list) == 0 {
		return nil
	}
	out := make(map[string]string, len(list))
	for name, q := range list {
		out[string(name)] = q.String()
	}
	return out
}
