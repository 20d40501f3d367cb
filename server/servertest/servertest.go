// Package servertest is what tests outside of server/ need of berthd: they cannot import
// the packages below server/internal.
//
//   - Start runs a whole berthd in the process of the test, and Local the part of one that decides and answers.
//   - Serve runs a made-up service with berthd's interceptors, and Status converts an
//     error of managers/ as berthd does.
//   - ExternalProvider is an external provider as berthd sees it.
//   - OpenSlices opens the slices of systemd.
//   - Discover reads a machine from its files.
//
// Only tests import this package, and tools in hack/ that make test data.
package servertest

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/server/internal/app"
	"github.com/berthd/berth/server/internal/hintproxy"
	"github.com/berthd/berth/server/internal/host/cgroupfs"
	"github.com/berthd/berth/server/internal/host/sysfs"
	"github.com/berthd/berth/server/internal/host/systemd"
	"github.com/berthd/berth/server/internal/metrics"
	"github.com/berthd/berth/server/internal/rpc"
	"github.com/berthd/berth/server/internal/socket"
	"github.com/berthd/berth/server/internal/system/real"
)

// Start runs berthd until stop is called, and returns when it is ready. stop waits for
// its end; a second call does nothing.
func Start(t testing.TB, c config.Config) (stop func()) {
	t.Helper()
	a, err := app.Build(context.Background(), c, app.Environment{
		Log: slog.New(slog.DiscardHandler), Now: time.Now, System: real.System(), Metrics: metrics.New(),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- a.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-ended:
		cancel()
		t.Fatal(err)
	}
	return sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("berthd has ended with: %v", err)
		}
	})
}

// Serve runs a server with berthd's interceptors on a socket until the test ends. The
// path has at most 107 bytes (unix(7)).
func Serve(t testing.TB, path string, register func(*grpc.Server)) {
	t.Helper()
	s := rpc.NewServer(rpc.Config{Log: slog.New(slog.DiscardHandler)})
	register(s.Server)
	l, err := socket.Listen(path, socket.Options{})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		// Without a call, Serve may begin after Stop.
		if err := <-done; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Errorf("serve: %v", err)
		}
	})
}

// Status converts an error of managers/ to the status that berthd answers.
func Status(ctx context.Context, err error) error { return rpc.Status(ctx, err) }

// ExternalProvider registers a required provider, and returns the form in which berthd's
// manager set has it. uid is the user of the provider's process; edits are the container
// edits that it may make.
func ExternalProvider(t testing.TB, l *ledger.Ledger, p ledger.ExternalProvider, uid uint32, edits ...string) hint.Provider {
	t.Helper()
	var entries []hint.Entry
	registry, err := hintproxy.New(hintproxy.Config{
		Connect: time.Minute, Required: []string{p.Name},
		Allowed: []hintproxy.Allowance{{Provider: p.Name, UID: uid, Edits: edits}},
	}, hintproxy.Parts{
		Ledger: l, Now: time.Now, Log: slog.New(slog.DiscardHandler),
		Publish: func(e []hint.Entry) error { entries = e; return nil },
		Bus:     func() []hint.Entry { return entries },
	})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = registry.Run(t.Context()) }()
	t.Cleanup(func() { _ = registry.Stop(context.Background()); <-ended })
	if err := registry.Register(t.Context(), p, hintproxy.Caller{UID: uid}); err != nil {
		t.Fatal(err)
	}
	return entries[0].Provider.(hint.Provider)
}

// Slices are the slices of systemd.
type Slices = systemd.Driver

// OpenSlices fails if the machine has no systemd.
func OpenSlices() (*Slices, error) { return systemd.Open(cgroupfs.Options{}) }

// Discover reads a machine from the trees of /sys and /proc.
func Discover(sys, proc fs.FS) (machine.Snapshot, error) { return sysfs.Discover(sys, proc) }
