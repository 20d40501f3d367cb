package policy

import (
	"log/slog"
	"slices"
	"sync/atomic"
)

// gate decides whether anything is placed at all, and which containers may start without an allocation.
type gate struct {
	pass        bool        // all may
	namespaces  []string    // those of these namespaces may
	established func() bool // Config.Established
	ready       atomic.Bool // berthd has been ready on this node once
	standby     error       // another program assigns the CPUs of the node
	barred      error       // berthd manages the containers of a runtime itself
	released    bool        // nothing is placed any more
}

// bar returns why no container can have an allocation. The caller holds mu.
func (g *gate) bar() error {
	switch {
	case g.standby != nil:
		return g.standby
	case !g.everReady():
		return errNeverReady // a call would cost each pod the time of a deadline
	}
	return g.barred
}

func (g *gate) everReady() bool {
	if g.established == nil || g.ready.Load() {
		return true
	}
	if g.established() {
		g.ready.Store(true)
	}
	return g.ready.Load()
}

// passes reports whether a pod's containers may start without an allocation.
func (g *gate) passes(s *sandbox) bool {
	return g.pass || g.standby != nil || !g.everReady() || slices.Contains(g.namespaces, s.namespace)
}

// level is the log level of a refusal. A repeated one is in the log already.
func level(err error) slog.Level {
	if repeated(err) {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}
