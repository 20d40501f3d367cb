package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berthlet/manifest"
	"github.com/berthd/berth/clients/podspec"
	"github.com/berthd/berth/managers/errdefs"
)

// sourceAnnotation is what the kubelet puts on pods that do not come from the API
// server: "file" or "http".
const sourceAnnotation = "kubernetes.io/config.source"

// find looks for a pod's specification; nil if there is none.
func (p *Policy) find(s *sandbox) (*typesv1.Pod, error) {
	if text, ok := s.annotations[p.Annotation]; ok && p.Annotation != "" {
		pod, err := annotated(s, text)
		if err != nil {
			return nil, fmt.Errorf("read annotation %s: %w", p.Annotation, err)
		}
		return pod, nil
	}
	if p.Manifests == "" {
		return nil, nil
	}
	manifests, _, err := manifest.Open(p.Manifests, p.Log).Read()
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	for _, m := range manifests {
		if s.is(m.Pod.GetMetadata()) {
			return s.claim(m.Pod), nil
		}
	}
	return nil, nil
}

// annotated reads a specification: the spec of a Kubernetes pod as JSON, of which
// the containers' names and resources matter.
func annotated(s *sandbox, text string) (*typesv1.Pod, error) {
	document, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]string{"name": s.name, "namespace": s.namespace, "uid": s.uid},
		"spec":     json.RawMessage(text),
	})
	if err != nil {
		return nil, errdefs.Invalidf("expected the spec of a pod as JSON: %w", err)
	}
	pods, err := podspec.Decode(bytes.NewReader(document), podspec.Options{})
	if err != nil {
		return nil, err
	}
	return s.claim(pods[0]), nil
}

// is tells whether a manifest is a pod's. Manifests of static pods have no uid, and
// a name to which the kubelet adds the node's.
func (s *sandbox) is(m *typesv1.PodMetadata) bool {
	if m.GetUid() == s.uid {
		return true
	}
	if m.GetNamespace() != s.namespace {
		return false
	}
	return m.GetName() == s.name || s.annotations[sourceAnnotation] != "" && strings.HasPrefix(s.name, m.GetName()+"-")
}

// claim gives a specification the pod's identity. Dynamic resources are removed from it,
// because the kubelet, which runs the pod, allocates them itself.
func (s *sandbox) claim(pod *typesv1.Pod) *typesv1.Pod {
	pod.Spec.ResourceClaims = nil
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if c.Resources != nil {
			c.Resources.Claims = nil
		}
	}
	pod.Metadata = &typesv1.PodMetadata{Name: s.name, Namespace: s.namespace, Uid: s.uid}
	if s.qos != "" {
		pod.Status = &typesv1.PodStatus{QosClass: s.qos}
	}
	return pod
}
