package metrics

import (
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/live"
)

// Moved counts a step of a move.
func (s *Set) Moved(m live.Moved) {
	if m.Step != nil {
		s.moves.WithLabelValues(string(m.Step.Kind)).Inc()
	}
}

// Replaced counts what a pod has lost, and what has become of it: a move has begun, or err is why it is only reported.
func (s *Set) Replaced(l live.Loss, err error) {
	lost, result := "memory", "moved"
	switch {
	case !l.CPUs.IsEmpty():
		lost = "cpus"
	case !l.Nodes.IsEmpty():
		lost = "numa_nodes"
	}
	switch {
	case err == nil:
	case errdefs.ClassOf(err) == errdefs.Refused:
		result = "reported"
	default:
		result = "failed"
	}
	s.replacements.WithLabelValues(lost, result).Inc()
}
