package kubelet

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthd/berth/api/podspec"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/workload"
)

// settle is how long a list may lack pods of the API server after the kubelet has read them. It adds them to its list one by one, and
// admits each one meanwhile. Before, it lists static pods only.
const settle = 30 * time.Second

// Served tells whether a list of a kubelet's web server has all pods.
type Served struct {
	seen time.Time // since when the kubelet has a pod of the API server; zero if the list has none
}

// Note is told of each pod of the list.
func (s *Served) Note(pod *corev1.Pod) {
	if pod.Annotations[workload.SourceAnnotation] != workload.FromAPIServer {
		return
	}
	seen, err := time.Parse(time.RFC3339Nano, pod.Annotations[workload.SeenAnnotation])
	if err == nil && (s.seen.IsZero() || seen.Before(s.seen)) {
		s.seen = seen
	}
}

// Incomplete returns why the list, which was read at a time, may lack pods of the API server; nil if it does not. A kubelet that has just
// started answers like one without such pods, but a cluster's kubelet has at least that of the caller. Errors are of class Precondition.
func (s *Served) Incomplete(at time.Time) error {
	switch {
	case s.seen.IsZero():
		return errdefs.Preconditionf("the kubelet lists no pods of the API server yet")
	case at.Sub(s.seen) < settle:
		return errdefs.Preconditionf("the kubelet has read the pods of the API server at %s, and its list may lack some for %s",
			s.seen.Format(time.RFC3339), settle)
	}
	return nil
}

// Source names how a kubelet gives its pods: the Pods API, or its web server where that API is absent.
type Source struct {
	Web *Web // nil: not configured
	Now func() time.Time
}

// webTime is the time for a list of the web server, and webEvery the time between two lists of which nothing else tells.
const (
	webTime  = 10 * time.Second
	webEvery = 15 * time.Second
)

// Pods lists the pods of the kubelet whose directory is dir. Errors are of class Unsupported if no way is there.
func (s Source) Pods(ctx context.Context, dir string) (pods []podspec.NodePod, err error) {
	pods, err = NodePods(ctx, dir)
	if errdefs.ClassOf(err) != errdefs.Unsupported || s.Web == nil {
		return pods, err
	}
	ctx, cancel := context.WithTimeout(ctx, webTime)
	defer cancel()
	pods = []podspec.NodePod{}
	var list Served
	err = s.Web.List(ctx, func(pod *corev1.Pod) error {
		if pod.UID == "" || pod.Annotations[workload.MirrorAnnotation] != "" {
			return nil // the static pod is in the list, too
		}
		list.Note(pod)
		one, err := podspec.FromNode(pod)
		pods = append(pods, one)
		return err
	})
	if err == nil {
		err = list.Incomplete(s.Now())
	}
	return pods, err
}

// Watch calls changed when the pods may have changed, until ctx ends.
func (s Source) Watch(ctx context.Context, dir string, changed func()) {
	if s.Web == nil {
		Watch(ctx, dir, changed)
		return
	}
	watching, end := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { Watch(watching, dir, changed); close(done) }()
	defer func() { end(); <-done }()
	tick := time.NewTicker(webEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			changed()
		case <-ctx.Done():
			return
		}
	}
}
