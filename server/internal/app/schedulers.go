package app

import (
	"maps"
	"slices"
	"sync"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/node"
	"github.com/berthd/berth/managers/workload"
)

// maxSchedulers bounds the owners whose schedulers are known.
const maxSchedulers = 16

// schedulers are what the agents' schedulers count as allocatable, by owner.
type schedulers struct {
	node func() *node.Manager

	mu      sync.Mutex // guards amounts
	amounts map[string]workload.Quantities
}

// Count keeps the amounts of an owner.
func (s *schedulers) Count(owner string, amounts workload.Quantities) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(amounts) == 0 {
		delete(s.amounts, owner)
		return nil, nil
	}
	if _, known := s.amounts[owner]; !known && len(s.amounts) >= maxSchedulers {
		return nil, errdefs.Exhaustedf("scheduler_allocatable of owner %q: the amounts of %d owners are known, and no more are kept; leave the field empty", owner, maxSchedulers)
	}
	if s.amounts == nil {
		s.amounts = map[string]workload.Quantities{}
	}
	s.amounts[owner] = amounts
	return s.node().Excess(amounts), nil
}

// excess is what all schedulers count that pods cannot have.
func (s *schedulers) excess() (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, owner := range slices.Sorted(maps.Keys(s.amounts)) {
		out = append(out, s.node().Excess(s.amounts[owner])...)
	}
	return slices.Compact(out)
}
