package main

import (
	"context"
	"maps"
	"reflect"
	"slices"

	"github.com/berthd/berth/hack/conformance/vector"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// nobody is the pod that holds what a recorded state counts as taken and no pod of it
// holds.
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

// request is that of a container, or without a name of the pod as a whole, with the
// affinity that was merged for it.
func request(pod *workload.Pod, container string, a vector.Affinity) (hint.Request, hint.Hint, error) {
	req := hint.Request{Pod: pod, Container: -1}
	wish, err := a.Hint()
	if err == nil && container != "" {
		req.Container, err = vector.Index(pod, container)
	}
	return req, wish, err
}

// podHints are the hints for every container of a pod, and for the pod.
type podHints struct {
	ContainerHints map[string]vector.Hints `json:"container_hints"`
	PodHints       vector.Hints            `json:"pod_hints"`
	// Chose is cpuBench.chose.
	Chose string `json:"chose,omitempty"`
}

// hintsFor asks a manager about a pod. The view is that in which a container is to
// come, or the pod as a whole.
func hintsFor(p hint.Provider, recorded vector.Pod, view func(pod *workload.Pod, next string) (*ledger.View, error)) (got podHints, err error) {
	pod, err := recorded.Pod()
	if err != nil {
		return got, err
	}
	ask := func(container int, name string) (vector.Hints, error) {
		v, err := view(pod, name)
		if err != nil {
			return nil, err
		}
		answers, err := p.Hints(context.Background(), v, hint.Request{Pod: pod, Container: container})
		if err != nil {
			return nil, err
		}
		return vector.Lists(answers)
	}
	got.ContainerHints = map[string]vector.Hints{}
	for i, c := range pod.Walk() {
		if got.ContainerHints[c.Name], err = ask(i, c.Name); err != nil {
			return got, err
		}
	}
	got.PodHints, err = ask(-1, "")
	return got, err
}

// differs compares with recorded hints.
func (h podHints) differs(want podHints) string {
	for _, name := range slices.Sorted(maps.Keys(want.ContainerHints)) {
		if !reflect.DeepEqual(want.ContainerHints[name].Canonical(), h.ContainerHints[name]) {
			return "hints for container " + name
		}
	}
	if !reflect.DeepEqual(want.PodHints.Canonical(), h.PodHints) {
		return "hints for the pod"
	}
	return otherReserve(h.Chose)
}
