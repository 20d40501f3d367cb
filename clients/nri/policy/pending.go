package policy

import typesv1 "github.com/berthd/berth/api/berth/types/v1"

// make notes that there is a container.
func (s *sandbox) make(name string) {
	if !s.hasMade(name) {
		s.made[name] = false
	}
}

func (s *sandbox) hasMade(name string) bool {
	_, made := s.made[name]
	return made
}

// ran notes that a container has started.
func (p *Policy) ran(s *sandbox, name string) {
	if s.made[name] {
		return
	}
	s.made[name] = true
	if p.Started != nil {
		p.Started()
	}
}

// Pending returns the pods, as NAMESPACE/NAME, whose containers have not all started in their sandbox. Most of them are in the phase
// Pending at the API server; a pod whose sandbox was replaced, or with a start that always fails, is not. A container that ended, and
// starts again in the same sandbox, has started. Init containers do not count. But without a specification a pod is pending only until
// the first of its containers has started.
func (p *Policy) Pending() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	ran := map[string]map[string]bool{} // by uid: a pod may have several sandboxes, one after the other
	for _, s := range p.sandboxes {
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
	for _, s := range p.sandboxes {
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
