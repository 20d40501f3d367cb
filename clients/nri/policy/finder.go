package policy

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/podspec"
	"github.com/berthd/berth/clients/berthlet/manifest"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/workload"
)

// finder finds the specifications of pods.
type finder struct {
	*common
	kubelet    Source
	manifests  string    // Config.Manifests
	annotation string    // Config.Annotation
	nodeName   string    // Config.NodeName
	at         time.Time // when searchAgain may search
	logged     failures
}

// searchAgain looks for the specifications of pods for which that has failed, those with the fewest failures first: a pod whose
// source fails does not delay the others. The next round is later, because the lock is held meanwhile.
func (f *finder) searchAgain(ctx context.Context) {
	if f.now().Before(f.at) {
		return
	}
	var left []*sandbox
	for _, s := range f.node.sandboxes {
		if s.unfound {
			left = append(left, s)
		}
	}
	slices.SortFunc(left, func(a, b *sandbox) int { return cmp.Or(cmp.Compare(a.searches, b.searches), cmp.Compare(a.id, b.id)) })
	var failures []string
	for _, s := range left {
		if ctx.Err() != nil {
			f.agenda.kick() // the next pass goes on, unless a source does not answer
			break
		}
		if err := f.search(ctx, s); err != nil {
			s.searches++
			failures = append(failures, fmt.Sprintf("%s/%s: %v", s.namespace, s.name, err))
			continue
		}
		for _, m := range f.node.members {
			if m.pod == s {
				f.agenda.compareAgain(m)
			}
		}
	}
	if len(failures) > 0 {
		f.at = f.now().Add(compareInterval)
	}
	f.logged.log(f.log, "the specification of pods is not found", failures)
}

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
func (f *finder) hasSource() bool { return f.kubelet != nil || f.manifests != "" || f.annotation != "" }

// search looks for a pod's specification. An error means that it may be found later.
func (f *finder) search(ctx context.Context, s *sandbox) error {
	spec, err := f.find(ctx, s)
	s.unfound = err != nil
	if spec != nil {
		s.spec = spec
	}
	return err
}

// find returns a pod's specification; nil if no source has it.
func (f *finder) find(ctx context.Context, s *sandbox) (*typesv1.Pod, error) {
	pod, source, err := f.lookUp(ctx, s)
	if err == nil && pod != nil {
		f.log.Debug("the specification of a pod is known", "pod", s.namespace+"/"+s.name, "source", source)
	}
	return pod, err
}

// lookUp tries the sources in their order. If the kubelet fails and no other source has the pod, it
// is unknown: without its specification it would be placed container by container for its whole life.
func (f *finder) lookUp(ctx context.Context, s *sandbox) (pod *typesv1.Pod, source string, err error) {
	pod, away := f.ofKubelet(ctx, s)
	if pod != nil {
		return pod, pod.GetMetadata().GetAnnotations()[specificationAnnotation], nil
	}
	if pod, err = f.manifest(s); pod != nil || err != nil {
		return pod, "manifest", err
	}
	if text, ok := s.annotations[f.annotation]; ok && f.annotation != "" {
		pod, err := annotated(s, text)
		if err != nil {
			return nil, "", fmt.Errorf("read annotation %s: %w", f.annotation, err)
		}
		return pod, "annotation", nil
	}
	return nil, "", away
}

// ofKubelet gets a pod's specification from the kubelet; nil if the kubelet has none.
func (f *finder) ofKubelet(ctx context.Context, s *sandbox) (*typesv1.Pod, error) {
	if f.kubelet == nil {
		return nil, nil
	}
	pod, from, err := f.kubelet.Pod(ctx, s.uid)
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
func (f *finder) manifest(s *sandbox) (*typesv1.Pod, error) {
	if f.manifests == "" {
		return nil, nil
	}
	manifests, _, err := manifest.Open(f.manifests, f.log).Read()
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	for _, m := range manifests {
		if s.is(m.Pod.GetMetadata(), f.nodeName) {
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
