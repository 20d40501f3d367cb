package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthd/berth/clients/nri/policy"
)

const (
	// maxMessage bounds the message of an event, and of a condition, in bytes: the API server takes 1 KiB.
	maxMessage = 1000
	// maxName bounds the name of an object, and so of an event, at the API server.
	maxName = 253
	// maxPodEvents is how many events of pods wait. More are dropped: an API server that is away must not cost memory.
	maxPodEvents = 256
	// podEventsBurst events are sent at once, and then one each second.
	podEventsBurst = 25
)

// event is what an Event object says.
type event struct {
	about           corev1.ObjectReference
	reason, message string
	warning         bool
}

// aboutNode names the node. kubectl describe node finds an event by the node's uid.
func (a *apiServer) aboutNode(uid types.UID) corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: a.node, UID: uid}
}

// send creates an event. Events of a node are in the namespace default, others in that of their object.
func (a *apiServer) send(ctx context.Context, e event, now time.Time) error {
	namespace, kind := e.about.Namespace, corev1.EventTypeNormal
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	if e.warning {
		kind = corev1.EventTypeWarning
	}
	at := metav1.NewTime(now)
	return a.call(ctx, http.MethodPost, "/api/v1/namespaces/"+url.PathEscape(namespace)+"/events", &corev1.Event{
		TypeMeta:       metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta:     metav1.ObjectMeta{Name: eventName(e.about.Name, now), Namespace: namespace},
		InvolvedObject: e.about, Reason: e.reason, Message: plain("berth: " + e.message), Type: kind,
		Source:         corev1.EventSource{Component: "berth-nri", Host: a.node},
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
	}, nil)
}

// eventName returns a name for an event about an object. The object's name may be as long as any name.
func eventName(object string, now time.Time) string {
	suffix := fmt.Sprintf(".%x", now.UnixNano())
	return strings.TrimRight(object[:min(len(object), maxName-len(suffix))], ".-") + suffix
}

// plain makes a text one line of bounded length, without control characters.
func plain(text string) string {
	return shorten(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text), maxMessage)
}

// podEvents are the events about pods that are not sent yet.
type podEvents struct {
	server  *apiServer
	waiting chan policy.PodEvent
}

func newPodEvents(server *apiServer) *podEvents {
	return &podEvents{server: server, waiting: make(chan policy.PodEvent, maxPodEvents)}
}

// tell does not wait.
func (p *podEvents) tell(e policy.PodEvent) {
	select {
	case p.waiting <- e:
	default:
		p.server.log.Warn("an event about a pod is dropped: too many wait", "pod", e.Namespace+"/"+e.Name, "reason", e.Reason, "message",
			e.Message)
	}
}

// run sends events until the context ends.
func (p *podEvents) run(ctx context.Context) {
	limit, failing := rate.NewLimiter(rate.Every(time.Second), podEventsBurst), false
	for {
		var e policy.PodEvent
		select {
		case e = <-p.waiting:
		case <-ctx.Done():
			return
		}
		if limit.Wait(ctx) != nil {
			return
		}
		about := corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: e.Namespace, Name: e.Name, UID: types.UID(e.UID)}
		err := p.server.send(ctx, event{about, e.Reason, e.Message, e.Warning}, p.server.now())
		if err != nil && !failing {
			p.server.log.Warn("send an event about a pod failed", "pod", e.Namespace+"/"+e.Name, "reason", e.Reason, "error", err)
		}
		failing = err != nil
	}
}
