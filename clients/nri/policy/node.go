package policy

import (
	"cmp"
	"maps"
	"slices"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

// node has the sandboxes and the containers of the runtime, by their ids.
type node struct {
	sandboxes    map[string]*sandbox
	members      map[string]*member
	told         int    // how many sandboxes events have told of
	synchronized bool   // the runtime has listed them; nothing is released before
	started      func() // Scheduler.Started
}

// all returns the members in the order of their ids, including stopped ones.
func (n *node) all() []*member {
	return slices.SortedFunc(maps.Values(n.members), func(a, b *member) int { return cmp.Compare(a.id, b.id) })
}

func (n *node) live() []*member {
	return slices.DeleteFunc(n.all(), func(m *member) bool { return m.life.over() })
}

// holds reports whether an allocation has the id of a member of a pod that has not ended.
func (n *node) holds(s *sandbox, pod *typesv1.PodAllocation) bool {
	return slices.ContainsFunc(pod.GetContainers(), func(c *typesv1.ContainerAllocation) bool {
		return slices.ContainsFunc(c.GetContainerIds(), func(id string) bool {
			m := n.members[id]
			return m != nil && m.pod == s && !m.life.over()
		})
	})
}

// ran notes that a container has started.
func (n *node) ran(s *sandbox, name string) {
	if s.made[name] {
		return
	}
	s.made[name] = true
	if n.started != nil {
		n.started()
	}
}

// unstarted is Pending without the lock.
func (n *node) unstarted() []string {
	ran := map[string]map[string]bool{} // by uid: a pod may have several sandboxes, one after the other
	for _, s := range n.sandboxes {
		if ran[s.uid] == nil {
			ran[s.uid] = map[string]bool{}
		}
		for name, started := range s.made {
			if started {
				ran[s.uid][name] = true
			}
		}
	}
	var out []string
	for _, s := range n.sandboxes {
		if !s.leaving && !started(s.spec, ran[s.uid]) {
			out = append(out, s.namespace+"/"+s.name)
		}
	}
	return out
}

func started(spec *typesv1.Pod, ran map[string]bool) bool {
	if spec == nil {
		return len(ran) > 0
	}
	for _, c := range spec.GetSpec().GetContainers() {
		if !ran[c.GetName()] {
			return false
		}
	}
	return true
}

// some returns whether a condition holds for a container of a pod.
func (n *node) some(s *sandbox, is func(*member) bool) bool {
	for _, m := range n.members {
		if m.pod == s && is(m) {
			return true
		}
	}
	return false
}
