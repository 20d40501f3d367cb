package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthd/berth/managers/errdefs"
)

const (
	// lostTimeout is how long removed waits for the end of the DaemonSet after the account or its
	// rights have gone.
	lostTimeout = 3 * time.Second
	// watchAgain is the least delay between two watches of the DaemonSet, and watchMost the longest one, after several that
	// the API server has refused. Up to as much is added, so that the nodes do not come at the same time.
	watchAgain = 5 * time.Second
	watchMost  = 5 * time.Minute
)

// removed reports whether the DaemonSet was removed from this node: it or its namespace is being
// deleted, or its node selector does not select the node any more. The account, or its rights, may be
// deleted before the DaemonSet; then an open watch still shows the deletion. A deleted account alone is
// no removal: the token of a pod ends with the pod, also if only the pod was deleted by force.
func (a *apiServer) removed(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, err := a.read(ctx); err != nil {
		a.log.Debug("read the node's labels failed", "error", err) // the last ones are known
	}
	chosen, err := a.chosen(ctx)
	var refused *statusError
	switch {
	case err == nil:
		return !chosen, nil
	case !errors.As(err, &refused):
		return false, err
	case refused.code == http.StatusNotFound && a.names(refused.status):
		return true, nil
	case refused.code != http.StatusUnauthorized && refused.code != http.StatusForbidden:
		return false, err
	}
	waiting, stop := context.WithTimeout(ctx, a.deletionTimeout)
	defer stop()
	for {
		a.mu.Lock()
		deleting := a.deleting
		a.mu.Unlock()
		if deleting {
			return true, nil
		}
		select {
		case <-a.shown:
		case <-waiting.Done():
			return false, err
		}
	}
}

// names reports whether a status is about the DaemonSet or its namespace. Others, such as a proxy's, say
// nothing about them.
func (a *apiServer) names(s metav1.Status) bool {
	namespace, name, _ := strings.Cut(a.set, "/")
	d := s.Details
	return s.Reason == metav1.StatusReasonNotFound && d != nil &&
		(d.Kind == "daemonsets" && d.Name == name || d.Kind == "namespaces" && d.Name == namespace)
}

// chosen reports whether the DaemonSet exists and has a pod on this node.
func (a *apiServer) chosen(ctx context.Context) (bool, error) {
	namespace, name, _ := strings.Cut(a.set, "/")
	var space corev1.Namespace
	if err := a.call(ctx, http.MethodGet, "/api/v1/namespaces/"+url.PathEscape(namespace), nil, &space); err != nil {
		return false, fmt.Errorf("get namespace %s: %w", namespace, err)
	}
	var set appsv1.DaemonSet
	if err := a.call(ctx, http.MethodGet, "/apis/apps/v1/namespaces/"+url.PathEscape(namespace)+"/daemonsets/"+url.PathEscape(name), nil,
		&set); err != nil {
		return false, fmt.Errorf("get DaemonSet %s: %w", a.set, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for key, value := range set.Spec.Template.Spec.NodeSelector {
		if have, ok := a.labels[key]; a.labels != nil && (!ok || have != value) {
			return false, nil
		}
	}
	return space.DeletionTimestamp == nil && set.DeletionTimestamp == nil, nil
}

// watchSet watches the DaemonSet until the context ends.
func (a *apiServer) watchSet(ctx context.Context) {
	for refusals := 0; ctx.Err() == nil; {
		err := a.watchOnce(ctx)
		if ctx.Err() == nil && err != nil {
			a.log.Debug("watch the DaemonSet failed", "daemon_set", a.set, "error", err)
		}
		if refusals++; errors.As(err, new(endedWatch)) {
			refusals = 0
		}
		pause := watchPause(refusals, err)
		timer := time.NewTimer(pause + rand.N(pause))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// endedWatch is the end of a watch that the API server had begun.
type endedWatch struct{ error }

func (e endedWatch) Unwrap() error { return e.error }

// watchPause is the least delay before the next watch, after some refused ones of which the last had an error.
func watchPause(refusals int, err error) time.Duration {
	const most = 10 // doublings
	pause := min(watchAgain<<min(max(refusals-1, 0), most), watchMost)
	var refused *statusError
	if errors.As(err, &refused) {
		pause = max(pause, refused.after)
	}
	return pause
}

// watchOnce watches the DaemonSet until the API server ends that, as it does after some time. The first
// event is the object itself, if it exists.
func (a *apiServer) watchOnce(ctx context.Context) error {
	namespace, name, _ := strings.Cut(a.set, "/")
	query := url.Values{"watch": {"true"}, "fieldSelector": {"metadata.name=" + name}}
	answer, err := a.open(ctx, http.MethodGet, "/apis/apps/v1/namespaces/"+url.PathEscape(namespace)+"/daemonsets?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	bounded := &io.LimitedReader{R: answer.Body}
	for decoder := json.NewDecoder(bounded); ; {
		bounded.N = maxNode
		var event struct {
			Type   string                       `json:"type"`
			Object metav1.PartialObjectMetadata `json:"object"`
		}
		if err := decoder.Decode(&event); err != nil {
			return endedWatch{err}
		}
		if event.Type == "ERROR" || event.Object.Name != name {
			return errdefs.Internalf("the API server sends %.20q about %.80q", event.Type, cmp.Or(event.Object.Name, "nothing"))
		}
		a.mu.Lock()
		a.deleting = event.Type == "DELETED" || event.Object.DeletionTimestamp != nil
		a.mu.Unlock()
		select {
		case a.shown <- struct{}{}:
		default: // removed has not read the earlier element yet
		}
	}
}
