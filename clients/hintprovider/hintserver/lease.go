package hintserver

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/berthd/berth/managers/hint"
)

// hold starts or renews the lease of an admission. The lock on the usage is held,
// here and below.
func (s *Server) hold(admissionID string, lease time.Duration) {
	s.mu.Lock()
	s.leases[admissionID] = s.now().Add(lease)
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// release ends a lease without aborting anything.
func (s *Server) release(admissionID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.leases, admissionID)
}

// abort has the provider give up what it has reserved for an admission.
func (s *Server) abort(ctx context.Context, admissionID string) {
	if a, ok := s.provider.(hint.Aborter); ok {
		a.Abort(ctx, admissionID)
	}
}

// abortIf ends the leases that match, in order of the admissions.
func (s *Server) abortIf(match func(admissionID string, end time.Time) bool) {
	s.mu.Lock()
	var ended []string
	for _, id := range slices.Sorted(maps.Keys(s.leases)) {
		if match(id, s.leases[id]) {
			ended = append(ended, id)
			delete(s.leases, id)
		}
	}
	s.mu.Unlock()
	for _, id := range ended {
		s.abort(context.Background(), id)
	}
}

func (s *Server) abortAll() { s.abortIf(func(string, time.Time) bool { return true }) }

func (s *Server) abortExpired() {
	now := s.now()
	s.abortIf(func(_ string, end time.Time) bool { return !now.Before(end) })
}

// Expire aborts what is reserved under leases that have run out. It returns when
// the next one does; false if there is none.
func (s *Server) Expire() (next time.Time, ok bool) {
	s.usage.Lock()
	defer s.usage.Unlock()
	s.abortExpired()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, end := range s.leases {
		if !ok || end.Before(next) {
			next, ok = end, true
		}
	}
	return next, ok
}

// watchLeases calls Expire when it is time, until ctx ends.
func (s *Server) watchLeases(ctx context.Context) {
	for {
		var due <-chan time.Time
		timer := time.NewTimer(0)
		if next, ok := s.Expire(); ok {
			timer.Reset(next.Sub(s.now()))
			due = timer.C
		}
		select {
		case <-ctx.Done():
		case <-s.changed:
		case <-due:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}
