package managerset

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
)

// Managers holds the sets in use. It is safe for concurrent use, and reading a set never
// blocks.
type Managers struct {
	devices     hint.Entry
	withTimeout hint.WithTimeout
	sets        atomic.Pointer[[]*Set] // never empty; replaced under mu

	mu       sync.Mutex   // held while sets are put together
	external []hint.Entry // guarded by mu
}

// NewManagers puts the first set in force. Devices is the provider behind which the
// plugins are: it outlives sets. Errors are those of hint.NewBus, which
// withTimeout is for.
func NewManagers(first *Set, devices hint.Provider, withTimeout hint.WithTimeout) (*Managers, error) {
	s := &Managers{devices: hint.Entry{Provider: devices, Mode: hint.Required}, withTimeout: withTimeout}
	joined, err := s.join(first, nil)
	if err != nil {
		return nil, err
	}
	s.sets.Store(&[]*Set{joined})
	return s, nil
}

// join gives a set its bus.
func (s *Managers) join(p *Set, external []hint.Entry) (*Set, error) {
	return p.Join(append([]hint.Entry{s.devices}, external...), s.withTimeout)
}

// On returns the set that decides on a view. For a view of before the last
// change, on which a commit is not possible, it is the set in force.
func (s *Managers) On(view *ledger.View) *Set {
	sets := *s.sets.Load()
	for _, p := range sets {
		if p.Rules.SameManagers(view.Rules()) {
			return p
		}
	}
	return sets[0]
}

// Of returns the set for rules; nil if there is none.
func (s *Managers) Of(rules ledger.Rules) *Set {
	for _, p := range *s.sets.Load() {
		if p.Rules.SameManagers(rules) {
			return p
		}
	}
	return nil
}

// Join returns a set with the bus that it would have if it were staged.
func (s *Managers) Join(p *Set) (*Set, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.join(p, s.external)
}

// SetExternal replaces the external providers of all sets. Errors are those of
// hint.NewBus; then nothing has changed.
func (s *Managers) SetExternal(external []hint.Entry) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var next []*Set
	for _, p := range *s.sets.Load() {
		joined, err := s.join(p, external)
		if err != nil {
			return err
		}
		next = append(next, joined)
	}
	s.external = slices.Clone(external)
	s.sets.Store(&next)
	return nil
}

// Stage puts a set beside the one in force, for views with its rules. A set of
// the same digest and machine is replaced. Errors are those of hint.NewBus; then nothing has
// changed.
func (s *Managers) Stage(p *Set) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	joined, err := s.join(p, s.external)
	if err != nil {
		return err
	}
	next := s.others(p.Rules)
	next = append(next, joined)
	s.sets.Store(&next)
	return nil
}

// Activate leaves only the set for rules, which must be staged.
func (s *Managers) Activate(rules ledger.Rules) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range *s.sets.Load() {
		if p.Rules.SameManagers(rules) {
			s.sets.Store(&[]*Set{p})
			return
		}
	}
}

// others returns the sets for other rules.
func (s *Managers) others(rules ledger.Rules) []*Set {
	return slices.DeleteFunc(slices.Clone(*s.sets.Load()), func(p *Set) bool { return p.Rules.SameManagers(rules) })
}
