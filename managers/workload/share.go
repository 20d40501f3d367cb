package workload

// Share reports what the managers that give CPUs and memory to single pods do for a pod: nothing, for its containers one by
// one, or for the pod as a whole (KEP-5526). It is the same for both.
type Share struct {
	Pod *Pod
	// Guaranteed pods are the only ones that get anything of their own.
	Guaranteed bool
	// Left is true for a pod with pod-level resources that these features do not serve: all of it shares with others.
	Left bool
	// Whole is true for a pod with pod-level resources that they do serve.
	Whole bool
}

// Share returns what a pod gets under these features.
func (p *Pod) Share(f Features) Share {
	served := f.PodLevelResources && f.PodLevelResourceManagers
	whole := p.HasPodLevel()
	return Share{Pod: p, Guaranteed: p.QoSClass(f) == Guaranteed, Left: whole && !served, Whole: whole && served}
}

// None reports whether the pod gets nothing of its own.
func (s *Share) None() bool { return !s.Guaranteed || s.Left }

// Apart reports whether a container is served by itself. In a pod that is served as a whole it must be Guaranteed by itself
// for that; otherwise it shares what the others leave of the pod's.
func (s *Share) Apart(c *Container) bool { return !s.Whole || c.Guaranteed() }

// Starved reports whether the containers that have something of their own use up an amount that a pod served as a whole has,
// and leave none to a container that shares. What an init container has comes back; what sidecars and app containers have
// does not. own gives what a container has of each of the amounts, nil for one that shares. The result is the place of such
// an amount, -1 if there is none; early means that it is an init container that shares.
func (s *Share) Starved(total []int64, own func(*Container) []int64) (at int, early bool) {
	left := append([]int64{}, total...)
	spent := func() int {
		for i, n := range left {
			if n <= 0 {
				return i
			}
		}
		return -1
	}
	shares := false
	for _, c := range s.Pod.Walk() {
		held := own(c)
		if c.Role == Init {
			if i := spent(); held == nil && i >= 0 {
				return i, true
			}
			continue
		}
		for i, n := range held {
			left[i] -= n
		}
		shares = shares || held == nil
	}
	if at = spent(); !shares {
		at = -1
	}
	return at, false
}
