package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	kubeletapi "github.com/berthd/berth/api/kubelet"
	"github.com/berthd/berth/api/podspec"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/workload"
)

const (
	// servedTimeout is the time for one list. Callers wait for it as long as for other calls of the kubelet: a list that
	// comes later answers their next try.
	servedTimeout = 10 * time.Second
	// servedAge is how old a list may be that answers a question.
	servedAge = time.Minute
	// servedGrace is how long the failures after a good answer are temporary, and so refuse pods. A kubelet that restarts, or whose API
	// server is away and cannot review tokens, answers again. Later the server counts as lost: pods must start.
	servedGrace = 5 * time.Minute
)

// kubeletServer reads pods from the web server of the kubelet: https://NODE:10250/pods, with the right nodes/pods. It is the source of
// specifications for a kubelet without the Pods API. The list has no resource version of its own, static pods have none,
// and the amounts that the kubelet has allocated may change before that of their pod does. So a list answers one question
// about each pod, and another question about the same pod reads it again, unless it was read for another pod meanwhile: after a new
// connection of the runtime there are questions about all pods. An answer is at most servedAge old. If a container has newer values, it is
// refused, and the next try reads the list again.
type kubeletServer struct {
	*kubeletapi.Web
	now     func() time.Time
	timeout time.Duration // of a list

	mu       sync.Mutex // guards the fields below
	reading  chan struct{}
	last     served
	answered bool      // there was a good answer
	failure  error     // of the last list
	failing  time.Time // the first failure since the last good answer
}

// served is a list.
type served struct {
	kubeletapi.Served
	pods   map[string]*typesv1.Pod // those that have answered no question
	active []string
	at     time.Time // when it was read
}

// newKubeletServer returns the web server of the kubelet at ADDRESS or ADDRESS:PORT.
func newKubeletServer(address, node, accounts, authority string) (*kubeletServer, error) {
	web, err := kubeletapi.NewWeb(address, node, accounts, authority)
	if err != nil {
		return nil, err
	}
	return &kubeletServer{Web: web, now: time.Now, timeout: servedTimeout}, nil
}

// Pod implements policy.Source.
func (k *kubeletServer) Pod(ctx context.Context, uid string) (*typesv1.Pod, error) {
	if pod, ok := k.take(uid); ok {
		return pod, nil
	}
	if err := k.read(ctx); err != nil {
		return nil, k.temporary(err)
	}
	if pod, ok := k.take(uid); ok {
		return pod, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return nil, k.last.Incomplete(k.last.at)
}

// take returns a pod of the list that has answered no question about it yet.
func (k *kubeletServer) take(uid string) (*typesv1.Pod, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	pod, ok := k.last.pods[uid]
	if !ok || k.now().Sub(k.last.at) > servedAge {
		return nil, false
	}
	delete(k.last.pods, uid)
	return pod, true
}

// Active implements policy.Source.
func (k *kubeletServer) Active(ctx context.Context) ([]string, error) {
	if err := k.read(ctx); err != nil {
		if k.temporary(err) == nil {
			return nil, errdefs.Unsupportedf("the kubelet does not serve its pods: %w", err)
		}
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.last.Incomplete(k.last.at); err != nil {
		return nil, err
	}
	return k.last.active, nil
}

// temporary returns a failure that is expected to end; nil if the server counts as absent.
func (k *kubeletServer) temporary(failure error) error {
	if k.absent() != nil {
		return nil
	}
	return failure
}

// absent returns why the server counts as absent; nil if it does not, or if its first list is not complete yet.
func (k *kubeletServer) absent() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.failure == nil || k.answered && k.now().Sub(k.failing) <= servedGrace {
		return nil
	}
	return k.failure
}

// read reads the list. Those who call meanwhile wait for a list that begins after their call. The list is not bound to the time of a
// caller: the kubelet may need more for its first one, in which it has the token reviewed.
func (k *kubeletServer) read(ctx context.Context) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	for later := false; ; later = true {
		k.mu.Lock()
		running := k.reading
		begun := running == nil || later // after the call
		if running == nil {
			running = make(chan struct{})
			k.reading = running
			go k.list(context.WithoutCancel(ctx), running, k.get)
		}
		k.mu.Unlock()
		select {
		case <-running:
		case <-ctx.Done():
			return fmt.Errorf("get %s: %w", k.URL, ctx.Err())
		}
		if begun {
			return k.failed()
		}
	}
}

// failed returns the failure of the last list.
func (k *kubeletServer) failed() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.failure
}

// list stores one list.
func (k *kubeletServer) list(ctx context.Context, done chan struct{}, get func(context.Context) (served, error)) {
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	list, err := get(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	defer close(done)
	now := k.now()
	if err != nil && k.failure == nil {
		k.failing = now
	}
	k.reading, k.failure = nil, err
	if err == nil {
		list.at = now
		k.last, k.answered = list, true
	}
}

// get calls the kubelet.
func (k *kubeletServer) get(ctx context.Context) (list served, err error) {
	list = served{pods: map[string]*typesv1.Pod{}}
	return list, k.List(ctx, func(pod *corev1.Pod) error { return k.add(pod, &list) })
}

// add adds a pod to the list. A mirror pod runs nowhere: it shows a static pod, which is in the list with the uid that the runtime has.
func (k *kubeletServer) add(pod *corev1.Pod, list *served) error {
	if pod.UID == "" || pod.Annotations[workload.MirrorAnnotation] != "" {
		return nil
	}
	uid := string(pod.UID)
	if unended(pod) {
		list.active = append(list.active, uid)
	}
	list.Note(pod)
	podspec.TakeAllocated(pod)
	spec, err := podspec.FromPod(pod, podspec.Options{})
	if err != nil {
		return fmt.Errorf("read pod %s/%s of the kubelet: %w", pod.Namespace, pod.Name, err)
	}
	list.pods[uid] = spec
	return nil
}
