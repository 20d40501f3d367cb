package live

import (
	"context"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/ledger"
)

// Options configure an engine.
type Options struct {
	// BytesPerSecond limits the memory that moves between NUMA nodes, on average; 0 is no limit.
	BytesPerSecond uint64
	// Mover observes moving containers; nil if they have no processes.
	Mover Mover
}

// Mover reads where the containers of moving pods run, and where their memory is.
type Mover interface {
	// CheckMove refuses a move of a pod's memory if the memory of a running container cannot be
	// observed, or if the kernel has too few free huge pages for it. A refusal is of class Refused.
	CheckMove(ctx context.Context, view *ledger.View, uid string, m *ledger.Move) error
	// Settled returns nil once all running containers of a pod are on the CPUs and memory nodes that
	// the view has for them, and the memory of migrating ones is there, too. Until then the error
	// is of class Unavailable.
	Settled(ctx context.Context, view *ledger.View, uid string) error
}

// Engine is an admission engine that also changes what admitted pods have. Its methods are safe for concurrent use.
type Engine struct {
	*admission.Engine
	Options
}

// New returns an engine over that of admissions.
func New(e *admission.Engine, o Options) *Engine { return &Engine{Engine: e, Options: o} }
