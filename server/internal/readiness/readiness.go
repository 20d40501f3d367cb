// Package readiness tests repeatedly whether berthd can serve: whether a commit and a call can succeed.
//
// Words:
//
//   - check: one requirement of serving, with a probe that tests it.
//   - problem: the reason why a probe failed.
//
// Invariants: a probe that does not end in time is a problem, and is not started again before it has ended. A problem is
// logged when it appears, when its text changes, and when it is gone. The package imports neither gRPC nor file access; the
// probes provide both.
package readiness

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berthd/berth/managers/errdefs"
)

// Check is one thing that serving needs.
type Check struct {
	// Name is what the problem is about.
	Name string
	// Probe tries it.
	Probe func(ctx context.Context) error
	// Only lists the services that need it; empty for all, and berthd as a whole.
	Only []string
}

// Config of a monitor.
type Config struct {
	// Every is the time between two probes, Timeout how long one may take.
	Every, Timeout time.Duration
	Log            *slog.Logger
	// Changed is called after the problems have changed, one call at a time.
	Changed func(*Monitor)
}

// Monitor probes, and has the present problems.
type Monitor struct {
	Config
	checks []Check

	notifying sync.Mutex // held over Changed
	mu        sync.Mutex
	problems  map[string]string // guarded by mu; by the name of the check
}

// New makes a monitor, which has no problem before Run.
func New(cfg Config, checks ...Check) *Monitor {
	return &Monitor{Config: cfg, checks: checks, problems: map[string]string{}}
}

// Run probes until ctx ends.
func (m *Monitor) Run(ctx context.Context) error {
	var all sync.WaitGroup
	for _, c := range m.checks {
		all.Go(func() { m.follow(ctx, c) })
	}
	all.Wait()
	return nil
}

// follow probes one thing.
func (m *Monitor) follow(ctx context.Context, c Check) {
	tick := time.NewTicker(m.Every)
	defer tick.Stop()
	for {
		limited, cancel := context.WithTimeout(ctx, m.Timeout)
		done, ended := make(chan error, 1), make(chan struct{})
		go func() {
			defer close(ended)
			done <- c.Probe(limited)
		}()
		select {
		case err := <-done:
			m.note(ctx, c.Name, err)
		case <-limited.Done():
			m.note(ctx, c.Name, errdefs.Deadlinef("it did not end within %s", m.Timeout))
			select {
			case <-ended: // the next probe decides
			case <-ctx.Done():
			}
		}
		cancel()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// note keeps the outcome of a probe.
func (m *Monitor) note(ctx context.Context, name string, err error) {
	if ctx.Err() != nil {
		return // berthd ends
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	m.mu.Lock()
	before := m.problems[name]
	if text == "" {
		delete(m.problems, name)
	} else {
		m.problems[name] = text
	}
	m.mu.Unlock()
	switch {
	case text == before:
		return
	case text == "":
		m.Log.InfoContext(ctx, "this works again", "what", name)
	default:
		m.Log.ErrorContext(ctx, "this does not work", "what", name, "error", text)
	}
	m.notifying.Lock()
	defer m.notifying.Unlock()
	m.Changed(m)
}

// Serves reports whether a service works; the empty name is berthd as a whole.
func (m *Monitor) Serves(service string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !slices.ContainsFunc(m.checks, func(c Check) bool { return m.problems[c.Name] != "" && c.concerns(service) })
}

func (c *Check) concerns(service string) bool {
	return len(c.Only) == 0 || slices.Contains(c.Only, service)
}

// Lines lists the problems, one in each line: first those of berthd as a whole, then those of some services.
func (m *Monitor) Lines() (whole, some []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.checks {
		text, bad := m.problems[c.Name]
		line := c.Name + ": " + strings.ReplaceAll(text, "\n", "; ")
		switch {
		case !bad:
		case c.concerns(""):
			whole = append(whole, line)
		default:
			some = append(some, line)
		}
	}
	return whole, some
}
