package command

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/protocol"
	"github.com/berthd/berth/clients/berth"
)

// Find finds an admitted pod by uid, by namespace/name, or by a unique name, with or without the
// kind in front. A claim on dynamic resources is found if no pod has its name.
func (s *Session) Find(ctx context.Context, pod string) (*typesv1.PodAllocation, error) {
	return s.findAmong(ctx, WithoutPod(pod), func(all []*typesv1.PodAllocation) []*typesv1.PodAllocation {
		if slices.ContainsFunc(all, func(p *typesv1.PodAllocation) bool { return !IsClaim(p) }) {
			all = slices.DeleteFunc(all, IsClaim)
		}
		return all
	})
}

// FindClaim finds a claim on dynamic resources in the same way.
func (s *Session) FindClaim(ctx context.Context, claim string) (*typesv1.PodAllocation, error) {
	claim = WithoutKind(claim, "claims")
	got, err := s.findAmong(ctx, claim, func(all []*typesv1.PodAllocation) []*typesv1.PodAllocation {
		return slices.DeleteFunc(all, func(p *typesv1.PodAllocation) bool { return !IsClaim(p) })
	})
	var unknown *UnknownPodError
	switch {
	case errors.As(err, &unknown):
		unknown.claim = true
	case err == nil && !IsClaim(got):
		return nil, &UnknownPodError{Pod: claim, claim: true}
	}
	return got, err
}

// findAmong finds one by uid, or the only one with a name that a selection has left.
func (s *Session) findAmong(ctx context.Context, pod string,
	only func([]*typesv1.PodAllocation) []*typesv1.PodAllocation) (*typesv1.PodAllocation, error) {
	namespace, name, qualified := strings.Cut(pod, "/")
	// In the API an empty name matches every pod.
	if pod == "" || qualified && (namespace == "" || name == "") {
		return nil, fmt.Errorf("%q: expected the pod's uid, its name, or namespace/name", pod)
	}
	if !qualified {
		got, err := s.ByUID(ctx, pod)
		if got != nil || err != nil {
			return got, err
		}
		namespace, name = "", pod
	}
	list, err := s.Allocation().List(ctx, &allocationv1.ListRequest{Namespace: namespace, Name: name, At: s.Past})
	if err != nil {
		return nil, err
	}
	s.Shared = list.GetSharedCpus()
	switch pods := only(list.GetPods()); len(pods) {
	case 0:
		unknown := &UnknownPodError{Pod: pod}
		if all, err := s.List(ctx, &allocationv1.ListRequest{At: s.Past}); err == nil {
			unknown = unknown.Similar(slices.Collect(maps.Values(NamesOf(only(all.GetPods())))))
		}
		return nil, unknown
	case 1:
		return pods[0], nil
	default:
		var which []string
		for _, p := range pods {
			which = append(which, fmt.Sprintf("%s (%s)", p.GetUid(), PodName(p)))
		}
		return nil, fmt.Errorf("%d pods are called %s: name one by its uid, %s", len(pods), pod, strings.Join(which, ", "))
	}
}

// ByUID returns a pod by its uid; nil if there is none.
func (s *Session) ByUID(ctx context.Context, uid string) (*typesv1.PodAllocation, error) {
	if s.Past != nil {
		list, err := s.Allocation().List(ctx, &allocationv1.ListRequest{PodUid: uid, At: s.Past})
		if err != nil || len(list.GetPods()) == 0 {
			return nil, err
		}
		s.Shared = list.GetSharedCpus()
		return list.GetPods()[0], nil
	}
	got, err := s.Allocation().Get(ctx, &allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: uid}})
	switch {
	case err == nil:
		s.Shared = got.GetSharedCpus()
		return got.GetPod(), nil
	case berth.IsNotFound(err), berth.IsInvalid(err):
		return nil, nil
	}
	return nil, err
}

// UnknownPodError is a pod that is not admitted, or that has no Decision.
type UnknownPodError struct {
	Pod      string
	Decision bool
	claim    bool     // a claim on dynamic resources, not a pod
	similar  []string // namespace/name
}

func (e *UnknownPodError) Error() string {
	if e.Decision {
		return "no admission is remembered for " + e.Pod
	}
	if e.claim {
		return "no prepared claim is called " + e.Pod
	}
	return "no admitted pod is called " + e.Pod
}

// PodName gives namespace/name.
func PodName(p *typesv1.PodAllocation) string { return p.GetNamespace() + "/" + p.GetName() }

// Names maps uids to namespace/name.
type Names map[string]string

// Names reads the name map for the output. Without the map the answer is still printed, with
// uids.
func (s *Session) Names(ctx context.Context) Names {
	list, err := s.List(ctx, &allocationv1.ListRequest{At: s.Past})
	if err != nil {
		return nil
	}
	return NamesOf(list.GetPods())
}

func NamesOf(pods []*typesv1.PodAllocation) Names {
	n := make(Names, len(pods))
	for _, p := range pods {
		n[p.GetUid()] = PodName(p)
	}
	return n
}

// UidsOf returns the uids of pods that are given by uid, by namespace/name, or by a unique name.
// Another text is used as the uid of a pod that is not admitted, except that an unknown
// namespace/name is an error.
func UidsOf(pods []*typesv1.PodAllocation, named []string) ([]string, error) {
	byName := map[string][]string{}
	known := make(map[string]bool, len(pods))
	for _, p := range pods {
		known[p.GetUid()] = true
		byName[p.GetName()] = append(byName[p.GetName()], p.GetUid())
		byName[PodName(p)] = append(byName[PodName(p)], p.GetUid())
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
			return nil, (&UnknownPodError{Pod: pod}).Similar(slices.Collect(maps.Values(NamesOf(pods))))
		default:
			out = append(out, pod)
		}
	}
	return out, nil
}

// Pod returns a pod's name, or its uid if the name is unknown.
func (n Names) Pod(uid string) string {
	if name, ok := n[uid]; ok {
		return name
	}
	return uid
}

// Owner returns a container, or a pod as a whole, as namespace/name/container.
func (n Names) Owner(m *typesv1.ContainerRef) string {
	if m.GetContainerName() == "" {
		return n.Pod(m.GetPodUid())
	}
	return n.Pod(m.GetPodUid()) + "/" + m.GetContainerName()
}

// Owners turns a list of owners into one text.
func (n Names) Owners(list []*typesv1.ContainerRef) string {
	out := make([]string, len(list))
	for i, o := range list {
		out[i] = n.Owner(o)
	}
	return strings.Join(out, ", ")
}

func ContainerNames(p *typesv1.PodAllocation) string {
	var out []string
	for _, a := range p.GetContainers() {
		out = append(out, a.GetContainerName())
	}
	return Joined(out)
}

// IsClaim reports whether an allocation is that of a claim on dynamic resources.
func IsClaim(p *typesv1.PodAllocation) bool { return p.GetResourceClaimNodes() != nil }

// UsersOf returns the containers that use claims, as namespace/pod/container, by the claim's uid.
func UsersOf(pods []*typesv1.PodAllocation) map[string][]string {
	users := map[string][]string{}
	for _, p := range pods {
		for _, c := range p.GetContainers() {
			for _, d := range c.GetExternalDevices() {
				uid, _, _ := strings.Cut(d.GetId(), ":")
				user := PodName(p) + "/" + c.GetContainerName()
				if d.GetResource() == protocol.ClaimResource && !slices.Contains(users[uid], user) {
					users[uid] = append(users[uid], user)
				}
			}
		}
	}
	return users
}
