package policy

import (
	"context"
	"slices"
	"strings"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

// form is how berthd has a pod.
type form int

const (
	unadmitted form = iota // not at all, as far as this policy knows
	whole                  // under its uid
	apart                  // container by container. It stays so until the pod ends, even if its specification becomes known
)

// part is the state of the allocation of a container that is admitted apart.
type part int

const (
	inUse      part = iota // a container has it
	kept                   // its container has ended: it is kept for the next one of the name, unless another pod needs it
	keptBefore             // its container had ended when the runtime connected. It may have crashed a moment ago, so no other pod gets it
)

// compare reads from berthd's ledger how a pod was admitted, if it may have been before this policy was told of it. Before any
// admission of the pod, so that the pod is not admitted in the other form as well.
func (p *Policy) compare(ctx context.Context, s *sandbox) error {
	if !s.unread {
		return nil
	}
	_, err := p.list(ctx)
	return err
}

// adopt takes the forms of pods that were not compared with the ledger yet from berthd's list. A container whose part of the ledger
// has no process has ended, and its allocation is kept for its restart.
func (p *Policy) adopt(known map[string]*typesv1.PodAllocation) {
	var parts map[string][]*typesv1.PodAllocation
	for _, s := range p.sandboxes {
		if !s.unread {
			continue
		}
		if parts == nil {
			parts = p.partsOfPods(known)
		}
		p.adoptPod(s, known[s.uid], parts[s.uid])
	}
}

// partsOfPods returns the containers of a list that were admitted apart, by the uids of their pods.
func (p *Policy) partsOfPods(known map[string]*typesv1.PodAllocation) map[string][]*typesv1.PodAllocation {
	parts := map[string][]*typesv1.PodAllocation{}
	for _, pod := range known {
		if uid := podOf(pod.GetUid()); uid != pod.GetUid() && len(pod.GetContainers()) == 1 && p.owns(pod) {
			parts[uid] = append(parts[uid], pod)
		}
	}
	return parts
}

// podOf returns the uid of the pod that a pod of berthd is, or is a container of: the uids of Kubernetes and the names of containers
// have no dots.
func podOf(uid string) string {
	if i := strings.LastIndexByte(uid, '.'); i > 0 {
		return uid[:i]
	}
	return uid
}

// adoptPod takes the form of a pod. all is its allocation as a whole, nil if there is none, and parts are those of its containers. If a
// container is in both, as after a fault, only what a running container holds counts. Berthd releases the rest, which does not live.
func (p *Policy) adoptPod(s *sandbox, all *typesv1.PodAllocation, parts []*typesv1.PodAllocation) {
	s.unread = false
	twice := func(part *typesv1.PodAllocation) bool {
		return slices.ContainsFunc(all.GetContainers(), func(c *typesv1.ContainerAllocation) bool {
			return c.GetContainerName() == part.GetContainers()[0].GetContainerName()
		})
	}
	if !p.holds(s, all) && slices.ContainsFunc(parts, func(part *typesv1.PodAllocation) bool { return twice(part) && p.holds(s, part) }) {
		all = nil
	}
	parts = slices.DeleteFunc(parts, func(part *typesv1.PodAllocation) bool { return twice(part) && !p.holds(s, part) })
	for _, part := range parts {
		name := part.GetContainers()[0].GetContainerName()
		if s.names[name] = keptBefore; p.some(s, func(m *member) bool { return m.name == name && !m.life.over() }) {
			s.names[name] = inUse
		}
	}
	switch {
	case all != nil:
		s.form = whole
	case len(parts) > 0:
		s.form = apart
	}
}

// holds reports whether an allocation has the id of a member of a pod that has not ended.
func (p *Policy) holds(s *sandbox, pod *typesv1.PodAllocation) bool {
	return slices.ContainsFunc(pod.GetContainers(), func(c *typesv1.ContainerAllocation) bool {
		return slices.ContainsFunc(c.GetContainerIds(), func(id string) bool {
			m := p.members[id]
			return m != nil && m.pod == s && !m.life.over()
		})
	})
}

// admittedApart notes that berthd has a container of a pod by itself.
func (s *sandbox) admittedApart(all map[string]*sandbox, name string) {
	if s.names[name] = inUse; s.form == unadmitted {
		s.admitted(all, apart)
	}
}

// admitted notes how berthd has a pod, for all of its sandboxes.
func (s *sandbox) admitted(all map[string]*sandbox, f form) {
	s.form = f
	for _, other := range all {
		if other.uid == s.uid && other.form == unadmitted {
			other.form = f
		}
	}
}

// carry keeps what is known of a pod over a new connection of the runtime. The ledger and the sources may have changed meanwhile.
func (s *sandbox) carry(was *sandbox) {
	s.form, s.made = was.form, was.made
	s.found = was.found
	s.quota, s.hasQuota = was.quota, was.hasQuota
	s.unmoved, s.told = was.unmoved, was.told
	if was.pid == s.pid && was.born != 0 {
		s.born = was.born
	}
}

// keyOf returns the uid under which berthd has a member, or is to have it.
func (p *Policy) keyOf(m *member) string {
	s := m.pod
	has := func(uid string) bool {
		return slices.Contains(p.ledger.containers[uid+"/"+m.name].GetContainerIds(), m.id)
	}
	if own := s.key(m.name); has(own) || s.form != whole && !has(s.uid) {
		return own
	}
	return s.uid
}
