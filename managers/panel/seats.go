package panel

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
)

// Seats holds the panel in force. It is safe for concurrent use; who asks for a
// panel never waits.
type Seats struct {
	devices     hint.Entry
	withTimeout hint.WithTimeout
	panels      atomic.Pointer[[]*Panel] // never empty; replaced under mu

	mu      sync.Mutex   // held while panels are put together
	outside []hint.Entry // guarded by mu
}

// NewSeats puts the first panel in force. Devices is the provider behind which the
// plugins are: it outlives panels. Errors are those of hint.NewBus, which
// withTimeout is for.
func NewSeats(first *Panel, devices hint.Provider, withTimeout hint.WithTimeout) (*Seats, error) {
	s := &Seats{devices: hint.Entry{Provider: devices, Mode: hint.Required}, withTimeout: withTimeout}
	joined, err := s.join(first, nil)
	if err != nil {
		return nil, err
	}
	s.panels.Store(&[]*Panel{joined})
	return s, nil
}

// join gives a panel its bus.
func (s *Seats) join(p *Panel, outside []hint.Entry) (*Panel, error) {
	return p.Join(append([]hint.Entry{s.devices}, outside...), s.withTimeout)
}

// On returns the panel that decides on a view. For a view of before the last
// change, on which nobody can commit, it is the panel in force.
func (s *Seats) On(view *ledger.View) *Panel {
	panels := *s.panels.Load()
	for _, p := range panels {
		if p.Rules.ConfigDigest == view.Rules().ConfigDigest {
			return p
		}
	}
	return panels[0]
}

// Of returns the seated panel of a digest; nil if there is none.
func (s *Seats) Of(digest string) *Panel {
	for _, p := range *s.panels.Load() {
		if p.Rules.ConfigDigest == digest {
			return p
		}
	}
	return nil
}

// Join returns a panel with the bus that it would have if it were seated.
func (s *Seats) Join(p *Panel) (*Panel, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.join(p, s.outside)
}

// SetOutside replaces the outside providers of all panels. Errors are those of
// hint.NewBus; then nothing has changed.
func (s *Seats) SetOutside(outside []hint.Entry) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var next []*Panel
	for _, p := range *s.panels.Load() {
		joined, err := s.join(p, outside)
		if err != nil {
			return err
		}
		next = append(next, joined)
	}
	s.outside = slices.Clone(outside)
	s.panels.Store(&next)
	return nil
}

// Seat puts a panel beside the one in force, for views with its rules. A panel of
// the same digest is replaced. Errors are those of hint.NewBus; then nothing has
// changed.
func (s *Seats) Seat(p *Panel) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	joined, err := s.join(p, s.outside)
	if err != nil {
		return err
	}
	next := s.others(p.Rules.ConfigDigest)
	next = append(next, joined)
	s.panels.Store(&next)
	return nil
}

// Settle leaves only the panel of a digest, which must be seated.
func (s *Seats) Settle(digest string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range *s.panels.Load() {
		if p.Rules.ConfigDigest == digest {
			s.panels.Store(&[]*Panel{p})
			return
		}
	}
}

// others returns the seated panels of other digests.
func (s *Seats) others(digest string) []*Panel {
	return slices.DeleteFunc(slices.Clone(*s.panels.Load()), func(p *Panel) bool { return p.Rules.ConfigDigest == digest })
}
