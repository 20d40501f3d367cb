package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/berthd/berth/hack/conformance/vector"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// nobody is the name of the pod that holds resources which a recorded state counts as taken but assigns to no
// pod.
const nobody = "nobody"

// seed are the pods that stand for a recorded state, by uid.
type seed map[string]*ledger.Pod

// seeded is a state in which a pod holds nothing yet.
func seeded(pod *workload.Pod) seed { return seed{pod.UID: {Pod: *pod}} }

// hold adds a claim of a container, or without a name of the pod as a whole, and
// the container if its pod lacks it.
func (s seed) hold(uid, container string, c ledger.Claim) {
	r := s[uid]
	if r == nil {
		r = &ledger.Pod{Pod: workload.Pod{UID: uid}}
		s[uid] = r
	}
	c.Owner = ledger.Owner{Pod: uid, Container: container}
	r.Claims = append(r.Claims, c)
	if container != "" && r.Pod.Container(container) == nil {
		r.Pod.Containers = append(slices.Clone(r.Pod.Containers), workload.Container{Name: container})
	}
}

// on returns the state as a view on top of an empty one.
func (s seed) on(base *ledger.View) *ledger.View {
	draft := ledger.NewDraft(base)
	for _, uid := range slices.Sorted(maps.Keys(s)) {
		draft.PutPod(s[uid])
	}
	return draft.View()
}

// request is that of a container, or without a name of the pod as a whole.
func request(pod *workload.Pod, container string) hint.Request {
	at := slices.IndexFunc(pod.Containers, func(c workload.Container) bool { return c.Name == container })
	if at < 0 && container != "" {
		panic(fmt.Sprintf("pod %s has no container %q", pod.UID, container))
	}
	return hint.Request{Pod: pod, Container: at}
}

// bench is a manager on a recorded machine, with an empty ledger. S is how recordings write
// its state, R the result of an operation.
type bench[S, R any] interface {
	hint.Provider
	// view returns a state as a view; next is the container of the pod that is to come.
	view(s S, pod *workload.Pod, next string) *ledger.View
	// planned returns the result of a plan for an owner, and the state that follows from s.
	planned(s S, before, after *ledger.View, owner ledger.Owner, claims []ledger.Claim, refusal error) (R, S)
	// removed returns the result and the state after a container was removed.
	removed(s S, pod *workload.Pod, container string) (R, S)
}

// operation is an operation on a recorded state; operated is its outcome.
type (
	operation[S any] struct {
		Op        string          `json:"op"`
		Pod       vector.Pod      `json:"pod"`
		Container string          `json:"container"`
		Affinity  vector.Affinity `json:"affinity"`
		Before    S               `json:"before"`
	}
	operated[R, S any] struct {
		Result R        `json:"result"`
		After  S        `json:"after"`
		Quirks []string `json:"quirks,omitempty"`
	}
)

// operate plans for a container, or without a name for the pod as a whole; or it removes a
// container.
func operate[S, R any](b bench[S, R], in operation[S]) (out operated[R, S], err error) {
	pod, container := in.Pod.Pod, in.Container
	switch in.Op {
	case "allocate", "allocate_pod":
	case "remove":
		out.Result, out.After = b.removed(in.Before, pod, container)
		return out, nil
	default:
		return out, fmt.Errorf("unknown operation %q", in.Op)
	}
	view, req := b.view(in.Before, pod, container), request(pod, container)
	claims, refusal := b.Plan(context.Background(), view, req, in.Affinity.Hint())
	if refusal != nil {
		claims = nil
	}
	draft := ledger.NewDraft(view)
	draft.AddClaims(pod.UID, claims...)
	out.Result, out.After = b.planned(in.Before, view, draft.View(), req.Owner(), claims, refusal)
	return out, nil
}

// recordedError gives an error of a manager as recordings have it; class is empty if the
// recordings have no class for it.
func recordedError(err error, class string) *vector.Error {
	if err == nil {
		return nil
	}
	reason, _ := errdefs.ReasonOf(err)
	return &vector.Error{Class: cmp.Or(class, "other"), Type: string(reason), Message: err.Error()}
}

// exclusively are the requests of a container, or without a name of the pod as a whole, that
// the static policies serve; nil if it shares CPUs and memory with other pods.
func exclusively(pod *workload.Pod, container string, f workload.Features) workload.Quantities {
	whole := pod.HasPodLevel()
	switch c := pod.Container(container); {
	case pod.QoSClass(f) != workload.Guaranteed, whole && !f.PodLevelResourceManagers:
	case c == nil && whole:
		return pod.Resources.Requests
	case c != nil && (!whole || c.Guaranteed()):
		return c.Requests
	}
	return nil
}

// podHints are the hints for every container of a pod, and for the pod. A recording of them may
// have quirks, or the text of a panic.
type (
	podHints struct {
		ContainerHints map[string]vector.Hints `json:"container_hints"`
		PodHints       vector.Hints            `json:"pod_hints"`
	}
	recordedHints struct {
		podHints
		Quirks []string `json:"quirks"`
		Panic  string   `json:"panic"`
	}
)

// hintsFor gets a manager's hints for a pod. view returns the state before the next container, or
// before the whole pod.
func hintsFor(p hint.Provider, pod *workload.Pod, view func(pod *workload.Pod, next string) *ledger.View) (got podHints, err error) {
	hints := func(container int, name string) (vector.Hints, error) {
		answers, err := p.Hints(context.Background(), view(pod, name), hint.Request{Pod: pod, Container: container})
		if err != nil {
			return nil, err
		}
		return vector.Lists(answers)
	}
	got.ContainerHints = map[string]vector.Hints{}
	for i, c := range pod.Walk() {
		if got.ContainerHints[c.Name], err = hints(i, c.Name); err != nil {
			return got, err
		}
	}
	got.PodHints, err = hints(-1, "")
	return got, err
}

// compareHints compares the hints of a case of any manager.
func compareHints[In any](_ In, want recordedHints, h podHints) string {
	if want.Panic != "" {
		return "an answer where the reference has none"
	}
	for _, name := range slices.Sorted(maps.Keys(want.ContainerHints)) {
		if !reflect.DeepEqual(want.ContainerHints[name].Canonical(), h.ContainerHints[name]) {
			return "hints for container " + name
		}
	}
	if !reflect.DeepEqual(want.PodHints.Canonical(), h.PodHints) {
		return "hints for the pod"
	}
	return ""
}
