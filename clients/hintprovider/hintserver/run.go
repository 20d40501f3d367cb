package hintserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/berthd/berth/managers/hint"
)

// Options configure a provider: its socket, and which decisions it joins.
type Options struct {
	// Socket is the path of the provider's own socket. Only the user that it runs as and root
	// may connect.
	Socket string
	// Berth is where berthd listens, as for berth.Dial; empty means the default.
	Berth string
	// NoRegistration leaves the registration to another program.
	NoRegistration bool
	// Required: a failure of this provider refuses the admission. Otherwise it is advisory, and
	// counts as no preference and no claims.
	Required bool
	// Deadline of each call of an admission; 0 means what berthd is configured with.
	Deadline time.Duration
	// Resources that the provider allocates. It is called for pods that request one of them.
	// Empty: for every pod.
	Resources []string
	// Index orders external providers, lower first.
	Index int32
	// Log may be nil.
	Log *slog.Logger
}

// grace is how long calls may take to end when the provider ends.
const grace = 5 * time.Second

// Run serves a provider and keeps it registered with berthd, also with a berthd
// that starts later or starts again, until ctx ends. It returns early with an error
// if the socket cannot be served or berthd refuses the registration permanently.
func Run(ctx context.Context, p hint.Provider, o Options) error {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	path, err := filepath.Abs(o.Socket)
	if err != nil || o.Socket == "" {
		return fmt.Errorf("serve provider %s at socket %q: expected a path", p.Name(), o.Socket)
	}
	o.Socket = path
	l, err := listen(path)
	if err != nil {
		return fmt.Errorf("serve provider %s: %w", p.Name(), err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := NewServer(p, time.Now)
	g := grpc.NewServer(grpc.UnaryInterceptor(recovering(o.Log)))
	s.Register(g)
	var tasks sync.WaitGroup
	tasks.Go(func() {
		if err := g.Serve(l); err != nil {
			cancel(fmt.Errorf("serve provider %s: %w", p.Name(), err))
		}
	})
	tasks.Go(func() { s.watchLeases(ctx) })
	if !o.NoRegistration {
		tasks.Go(func() {
			if err := register(ctx, p, o); err != nil {
				cancel(err)
			}
		})
	}
	<-ctx.Done()
	stop(g)
	tasks.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// stop lets calls finish and cuts off those that take too long.
func stop(g *grpc.Server) {
	timer := time.AfterFunc(grace, g.Stop)
	defer timer.Stop()
	g.GracefulStop()
}

// listen listens on a unix socket. What is left of a process that is gone is
// removed.
func listen(path string) (net.Listener, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case info.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("%s is there and no socket", path)
	default:
		if c, err := net.Dial("unix", path); err == nil {
			_ = c.Close()
			return nil, fmt.Errorf("another process already serves %s", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}
