package managerset

import (
	"slices"
	"sync"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine"
)

// pasts is how many sets for machines of the past are kept. A map of the past needs one in
// several calls.
const pasts = 4

// past has the sets for machines that are no longer in use.
type past struct {
	mu   sync.Mutex // held while a set is made
	sets []pastSet  // guarded by mu; the newest last
}

// pastSet is the set that the one in force would be on another machine.
type pastSet struct {
	inForce, set *Set
	machine      *machine.Topology
}

// At returns the set that decides on a view that may be of the past: with the policy in force, on the view's
// machine. build makes the set in force anew for that machine. Errors are those of build, for
// example because the policy names a NUMA node that the machine did not have, and of hint.NewBus.
func (s *Managers) At(view *ledger.View, build func() (*Set, error)) (*Set, error) {
	if set := s.On(view); set != nil {
		return set, nil
	}
	inForce, m := (*s.sets.Load())[0], view.Machine()
	if inForce.Rules.Machine == m || machine.Compare(inForce.Rules.Machine, m).Empty() {
		return inForce, nil
	}
	s.past.mu.Lock()
	defer s.past.mu.Unlock()
	for _, p := range s.past.sets {
		if p.machine == m && p.inForce == inForce {
			return p.set, nil
		}
	}
	set, err := build()
	if err == nil {
		set, err = s.Join(set)
	}
	if err != nil {
		return nil, errdefs.Preconditionf("the present configuration does not fit the machine of that time: %w", err)
	}
	if len(s.past.sets) == pasts {
		s.past.sets = slices.Delete(s.past.sets, 0, 1)
	}
	s.past.sets = append(s.past.sets, pastSet{inForce, set, m})
	return set, nil
}
