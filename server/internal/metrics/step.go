package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// maxProviders is how many providers have series of their own. External providers choose their
// names, and may come and go.
const maxProviders = 32

// otherProviders is the label of all further ones.
const otherProviders = "other"

// steps measure the steps of admissions.
type steps struct {
	took *prometheus.HistogramVec

	mu    sync.Mutex
	known map[stepKey]prometheus.Observer // guarded by mu
	names map[string]bool                 // guarded by mu; of providers
}

type stepKey struct{ step, provider string }

func newSteps(f factory) *steps {
	return &steps{
		took: f.durations(stepDuration, "Time that steps of admissions took, dry runs included, by step and provider.", "step",
			"provider"),
		known: map[stepKey]prometheus.Observer{}, names: map[string]bool{},
	}
}

// of gives the series of a step.
func (s *steps) of(key stepKey) prometheus.Observer {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o, ok := s.known[key]; ok {
		return o
	}
	label := key.provider
	if label != "" && !s.names[label] {
		if len(s.names) >= maxProviders {
			return s.took.WithLabelValues(key.step, otherProviders)
		}
		s.names[label] = true
	}
	o := s.took.WithLabelValues(key.step, label)
	s.known[key] = o
	return o
}

// Step counts a step of an admission.
func (s *Set) Step(step, provider string, took time.Duration) {
	s.steps.of(stepKey{step, provider}).Observe(took.Seconds())
}
