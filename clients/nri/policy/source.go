package policy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/podspec"
	"github.com/berthd/berth/clients/berthlet/manifest"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/workload"
)

// specificationAnnotation is the annotation in berthd with the source of a pod's specification: that of the kubelet,
// manifest, annotation, or container. The last means a container that is admitted by the resources that its runtime has.
const specificationAnnotation = workload.SpecificationAnnotation

// The ways in which a kubelet gives its pods, in that annotation.
const (
	FromKubelet       = "kubelet"        // the Pods API
	FromKubeletServer = "kubelet-server" // the web server
)

// Source finds specifications of pods; the kubelet is one.
type Source interface {
	// Pod returns the pod with a uid, and where it comes from; nil if the source has no such pod. Class Precondition means that the source
	// may not have all pods of the API server yet.
	Pod(ctx context.Context, uid string) (pod *typesv1.Pod, from string, err error)
	// Active returns the uids of the pods that have not ended and are not being deleted. Class Unsupported means that
	// the source has no list, or is not there. Any other error is temporary.
	Active(ctx context.Context) (uids []string, err error)
}

// hasSource reports whether there is a source of specifications.
func (p *Policy) hasSource() bool { return p.Kubelet != nil || p.Manifests != "" || p.Annotation != "" }

// search looks for a pod's specification. An error means that it may be found later.
func (p *Policy) search(ctx context.Context, s *sandbox) error {
	spec, err := p.find(ctx, s)
	s.unfound = err != nil
	if spec != nil {
		s.spec = spec
	}
	return err
}

// find returns a pod's specification; nil if no source has it.
func (p *Policy) find(ctx context.Context, s *sandbox) (*typesv1.Pod, error) {
	pod, source, err := p.lookUp(ctx, s)
	if err == nil && pod != nil {
		p.Log.Debug("the specification of a pod is known", "pod", s.namespace+"/"+s.name, "source", source)
	}
	return pod, err
}

// lookUp tries the sources in their order. If the kubelet fails and no other source has the pod, it
// is unknown: without its specification it would be placed container by container for its whole life.
func (p *Policy) lookUp(ctx context.Context, s *sandbox) (pod *typesv1.Pod, source string, err error) {
	pod, away := p.ofKubelet(ctx, s)
	if pod != nil {
		return pod, pod.GetMetadata().GetAnnotations()[specificationAnnotation], nil
	}
	if pod, err = p.manifest(s); pod != nil || err != nil {
		return pod, "manifest", err
	}
	if text, ok := s.annotations[p.Annotation]; ok && p.Annotation != "" {
		pod, err := annotated(s, text)
		if err != nil {
			return nil, "", fmt.Errorf("read annotation %s: %w", p.Annotation, err)
		}
		return pod, "annotation", nil
	}
	return nil, "", away
}

// ofKubelet gets a pod's specification from the kubelet; nil if the kubelet has none.
func (p *Policy) ofKubelet(ctx context.Context, s *sandbox) (*typesv1.Pod, error) {
	if p.Kubelet == nil {
		return nil, nil
	}
	pod, from, err := p.Kubelet.Pod(ctx, s.uid)
	if errdefs.ClassOf(err) == errdefs.Precondition && s.annotations[workload.SourceAnnotation] != workload.FromAPIServer {
		return nil, nil // a static pod does not wait for the API server
	}
	if err != nil {
		return nil, errdefs.Unavailablef("get pod %s/%s from the kubelet: %w", s.namespace, s.name, err)
	}
	if pod == nil {
		return nil, nil
	}
	return s.claim(pod, from), nil
}

// manifest searches the manifests for a pod.
func (p *Policy) manifest(s *sandbox) (*typesv1.Pod, error) {
	if p.Manifests == "" {
		return nil, nil
	}
	manifests, _, err := manifest.Open(p.Manifests, p.Log).Read()
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	for _, m := range manifests {
		if s.is(m.Pod.GetMetadata(), p.NodeName) {
			return s.claim(m.Pod, "manifest"), nil
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
	return s.claim(pods[0], "annotation"), nil
}

// is reports whether a manifest is the pod's. Manifests of static pods have no uid, and the
// kubelet appends the node's name to theirs.
func (s *sandbox) is(m *typesv1.PodMetadata, node string) bool {
	if m.GetUid() == s.uid {
		return true
	}
	if m.GetNamespace() != s.namespace {
		return false
	}
	return m.GetName() == s.name || s.annotations[workload.SourceAnnotation] != "" && s.name == m.GetName()+"-"+node
}

// claim gives a specification the pod's identity. Dynamic resources are removed from it,
// because the kubelet, which runs the pod, allocates them itself.
func (s *sandbox) claim(pod *typesv1.Pod, source string) *typesv1.Pod {
	// The author of an annotation may have left the claims out.
	s.dynamic = len(pod.Spec.ResourceClaims) > 0 || source == "annotation"
	pod.Spec.ResourceClaims, s.claiming = nil, nil
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if len(c.GetResources().GetClaims()) > 0 {
			s.claiming = append(s.claiming, c.GetName())
			c.Resources.Claims = nil
		}
	}
	pod.Metadata = &typesv1.PodMetadata{Name: s.name, Namespace: s.namespace, Uid: s.uid, Annotations: s.annotationsFor(source)}
	if s.qos != "" {
		pod.Status = &typesv1.PodStatus{QosClass: s.qos}
	}
	return pod
}

// annotationsFor returns the annotations of a pod in berthd: the source of its specification, and the permitted
// moves. Without a valid value, berthd does not move the pod.
func (s *sandbox) annotationsFor(source string) map[string]string {
	out := map[string]string{specificationAnnotation: source}
	if text := s.annotations[workload.MovableAnnotation]; text != "" {
		if _, valid := workload.ParseMovable(text); valid {
			out[workload.MovableAnnotation] = text
		}
	}
	return out
}
