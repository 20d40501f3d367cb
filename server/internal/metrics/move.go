package metrics

import "github.com/berthd/berth/managers/admission"

// Moved counts a step of a move.
func (s *Set) Moved(m admission.Moved) {
	if m.Step != nil {
		s.moves.WithLabelValues(string(m.Step.Kind)).Inc()
	}
}
