package machine

import (
	"slices"

	"github.com/berthd/berth/managers/cpuset"
)

// Places returns the CPUs that a machine has offline and that an earlier one had online, at the place
// that they had. The core of one whose siblings are online is named as theirs.
func Places(now, earlier *Topology) (out []CPU) {
	for _, c := range earlier.snap.CPUs {
		if _, known := now.Node(c.Node); !known || !now.snap.Offline.Contains(c.ID) {
			continue
		}
		for _, s := range earlier.snap.CPUs {
			if on, ok := now.CPU(s.ID); ok && s.Core == c.Core {
				c.Core = on.Core
				break
			}
		}
		out = append(out, c)
	}
	return out
}

// With returns the machine with CPUs that it has offline, as if they were online. An error is of class Invalid:
// the machine has a CPU already, or has no such node.
func (t *Topology) With(offline []CPU) (*Topology, error) {
	if len(offline) == 0 {
		return t, nil
	}
	s := t.Snapshot()
	s.CPUs = append(s.CPUs, offline...)
	slices.SortFunc(s.CPUs, func(a, b CPU) int { return a.ID - b.ID })
	for _, c := range offline {
		s.Offline = s.Offline.Minus(cpuset.Of(c.ID))
	}
	nameCores(s.CPUs)
	s.Counts = nil
	return New(s)
}
