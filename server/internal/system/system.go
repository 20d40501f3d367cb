// Package system names what berthd uses of the machine that it decides on: the file of the ledger, the kernel's cgroups and a container
// runtime; and metrics and traces. Package real opens the first three. A program that only reads a node whose kubelet decides (berthctl)
// uses none of them, and is not linked with their libraries.
package system

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/server/internal/failpoint"
	"github.com/berthd/berth/server/internal/host/cgroupfs"
	"github.com/berthd/berth/server/internal/reconcile"
)

// System opens what berthd uses of the machine.
type System struct {
	// Ledger opens the file of the ledger. notice is told when the file or its lock had to be made again.
	Ledger func(path string, hook failpoint.Hook, notice func(string)) (Ledger, error)
	// Setter writes cgroups. Slices opens systemd's tree of them.
	Setter cgroupfs.Setter
	Slices func(cgroupfs.Options) (Slices, error)
	// Runtime prepares a connection to the container runtime.
	Runtime func(endpoint string) (Runtime, error)
}

// Ledger is the file of the ledger; *store.Store implements it, and says what its methods do.
type Ledger interface {
	OpenLedger(context.Context, journal.Options, time.Time) (*ledger.Ledger, journal.Report, *journal.DamagedFile, error)
	OpenStrict(context.Context, journal.Options, time.Time) (*ledger.Ledger, journal.Report, error)
	Watch(context.Context) error
	Probe() error
	InPlace() error
	Close() error
}

// Slices is systemd's tree of cgroups; *systemd.Driver implements it.
type Slices interface {
	cgroup.Tree
	Facts() cgroup.Facts
	Close() error
}

// Runtime is a container runtime; *criclient.Client implements it.
type Runtime interface {
	reconcile.Runtime
	// About is its name and version, and Driver its cgroup driver; known is false if it cannot tell.
	About(context.Context) (string, error)
	Driver(context.Context) (driver cgroup.Driver, known bool, err error)
	Close() error
}

// Tracer makes spans of calls and steps; *tracing.Tracer implements it.
type Tracer interface {
	Unary() grpc.UnaryServerInterceptor
	Stream() grpc.StreamServerInterceptor
	Steps(next hint.Observer) hint.Observer
}

// Untraced makes no spans.
type Untraced struct{}

// Unary implements Tracer.
func (Untraced) Unary() grpc.UnaryServerInterceptor { return nil }

// Stream implements Tracer.
func (Untraced) Stream() grpc.StreamServerInterceptor { return nil }

// Steps implements Tracer.
func (Untraced) Steps(next hint.Observer) hint.Observer { return next }
