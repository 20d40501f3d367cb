package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berth"
)

// find finds an admitted pod by uid, by namespace/name, or by a unique name, with or without the
// kind in front. A claim on dynamic resources is found if no pod has its name.
func (s *session) find(ctx context.Context, pod string) (*typesv1.PodAllocation, error) {
	return s.findAmong(ctx, withoutPod(pod), func(all []*typesv1.PodAllocation) []*typesv1.PodAllocation {
		if slices.ContainsFunc(all, func(p *typesv1.PodAllocation) bool { return !isClaim(p) }) {
			all = slices.DeleteFunc(all, isClaim)
		}
		return all
	})
}

// findClaim finds a claim on dynamic resources in the same way.
func (s *session) findClaim(ctx context.Context, claim string) (*typesv1.PodAllocation, error) {
	claim = withoutKind(claim, "claims")
	got, err := s.findAmong(ctx, claim, func(all []*typesv1.PodAllocation) []*typesv1.PodAllocation {
		return slices.DeleteFunc(all, func(p *typesv1.PodAllocation) bool { return !isClaim(p) })
	})
	if errors.As(err, new(*unknownPodError)) || err == nil && !isClaim(got) {
		return nil, &unknownPodError{pod: claim, claim: true}
	}
	return got, err
}

// findAmong finds one by uid, or the only one with a name that a selection has left.
func (s *session) findAmong(ctx context.Context, pod string, only func([]*typesv1.PodAllocation) []*typesv1.PodAllocation) (*typesv1.PodAllocation, error) {
	namespace, name, qualified := strings.Cut(pod, "/")
	// In the API an empty name matches every pod.
	if pod == "" || qualified && (namespace == "" || name == "") {
		return nil, fmt.Errorf("%q: expected the pod's uid, its name, or namespace/name", pod)
	}
	if !qualified {
		got, err := s.byUID(ctx, pod)
		if got != nil || err != nil {
			return got, err
		}
		namespace, name = "", pod
	}
	list, err := s.Allocation().List(ctx, &allocationv1.ListRequest{Namespace: namespace, Name: name, At: s.past})
	if err != nil {
		return nil, err
	}
	s.shared = list.GetSharedCpus()
	switch pods := only(list.GetPods()); len(pods) {
	case 0:
		return nil, &unknownPodError{pod: pod}
	case 1:
		return pods[0], nil
	default:
		var which []string
		for _, p := range pods {
			which = append(which, fmt.Sprintf("%s (%s)", p.GetUid(), podName(p)))
		}
		return nil, fmt.Errorf("%d pods are called %s: name one by its uid, %s", len(pods), pod, strings.Join(which, ", "))
	}
}

// byUID returns a pod by its uid; nil if there is none.
func (s *session) byUID(ctx context.Context, uid string) (*typesv1.PodAllocation, error) {
	if s.past != nil {
		list, err := s.Allocation().List(ctx, &allocationv1.ListRequest{PodUid: uid, At: s.past})
		if err != nil || len(list.GetPods()) == 0 {
			return nil, err
		}
		s.shared = list.GetSharedCpus()
		return list.GetPods()[0], nil
	}
	got, err := s.Allocation().Get(ctx, &allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: uid}})
	switch {
	case err == nil:
		s.shared = got.GetSharedCpus()
		return got.GetPod(), nil
	case berth.IsNotFound(err), berth.IsInvalid(err):
		return nil, nil
	}
	return nil, err
}

// unknownPodError is a pod that is not admitted.
type unknownPodError struct {
	pod   string
	claim bool // a claim on dynamic resources, not a pod
}

func (e *unknownPodError) Error() string {
	if e.claim {
		return "no prepared claim is called " + e.pod
	}
	return "no admitted pod is called " + e.pod
}

// podName gives namespace/name.
func podName(p *typesv1.PodAllocation) string { return p.GetNamespace() + "/" + p.GetName() }

// names maps uids to namespace/name.
type names map[string]string

// names reads the name map for the output. Without the map the answer is still printed, with
// uids.
func (s *session) names(ctx context.Context) names {
	list, err := s.List(ctx, &allocationv1.ListRequest{At: s.past})
	if err != nil {
		return nil
	}
	return namesOf(list.GetPods())
}

func namesOf(pods []*typesv1.PodAllocation) names {
	n := make(names, len(pods))
	for _, p := range pods {
		n[p.GetUid()] = podName(p)
	}
	return n
}

// uidsOf returns the uids of pods that are given by uid, by namespace/name, or by a unique name.
// Another text is used as the uid of a pod that is not admitted, except that an unknown
// namespace/name is an error.
func uidsOf(pods []*typesv1.PodAllocation, named []string) ([]string, error) {
	byName := map[string][]string{}
	known := make(map[string]bool, len(pods))
	for _, p := range pods {
		known[p.GetUid()] = true
		byName[p.GetName()] = append(byName[p.GetName()], p.GetUid())
		byName[podName(p)] = append(byName[podName(p)], p.GetUid())
	}
	out := make([]string, 0, len(named))
	for _, pod := range named {
		switch uids := byName[pod]; {
		case known[pod]:
			out = append(out, pod)
		case len(uids) == 1:
			out = append(out, uids[0])
		case len(uids) > 1:
			return nil, fmt.Errorf("%d pods are called %s: name one by its uid, %s", len(uids), pod, strings.Join(uids, ", "))
		case strings.Contains(pod, "/"):
			return nil, &unknownPodError{pod: pod}
		default:
			out = append(out, pod)
		}
	}
	return out, nil
}

// pod returns a pod's name, or its uid if the name is unknown.
func (n names) pod(uid string) string {
	if name, ok := n[uid]; ok {
		return name
	}
	return uid
}

// owner spells a container, or a pod as a whole, as namespace/name/container.
func (n names) owner(m *typesv1.ContainerRef) string {
	if m.GetContainerName() == "" {
		return n.pod(m.GetPodUid())
	}
	return n.pod(m.GetPodUid()) + "/" + m.GetContainerName()
}

// owners turns a list of owners into one text.
func (n names) owners(list []*typesv1.ContainerRef) string {
	out := make([]string, len(list))
	for i, o := range list {
		out[i] = n.owner(o)
	}
	return strings.Join(out, ", ")
}
