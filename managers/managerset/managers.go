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

	past past
}

// NewManagers activates the first set. Devices is the provider of the device plugins, which
// all sets share. withTimeout is passed to hint.NewBus, whose errors are returned.
func NewManagers(first *Set, devices hint.Provider, withTimeout hint.WithTimeout) (*Managers, error) {
	s := &Managers{devices: hint.Entry{Provider: devices, Mode: hint.Required}, withTimeout: withTimeout}
	joined, err := s.join(first, nil)
	if err != nil {
		return nil, err
	}
	s.sets.Store(&[]*Set{joined})
	return s, nil
}

// join builds the bus of a set.
func (s *Managers) join(p *Set, external []hint.Entry) (*Set, error) {
	return p.Join(append([]hint.Entry{s.devices}, external...), s.withTimeout)
}

// On returns the set that decides on a view; nil if there is none any more, because the
// configuration or the machine has changed since the view was taken. There is always one for
// the view of a commit that is not overtaken.
func (s *Managers) On(view *ledger.View) *Set { return s.Of(view.Rules()) }

// changes is how many changes of the configuration or the machine may overtake InForce.
const changes = 1000

// InForce returns a current view with the set that decides on it. view is called again if the
// configuration or the machine changes after its call.
func (s *Managers) InForce(view func() *ledger.View) (*ledger.View, *Set) {
	for range changes {
		v := view()
		if p := s.On(v); p != nil {
			return v, p
		}
	}
	panic("managerset: no set decides on the current view")
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

// Join returns a set with a bus, without staging it.
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

// Stage adds a set for views with its rules. A set with the same digest and machine is
// replaced. Errors are those of hint.NewBus; then nothing has
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

// Activate removes all sets except the set for rules, which must be staged.
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
