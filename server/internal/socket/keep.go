package socket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/logs"
)

// lookEvery is the interval at which a Keeper checks its socket.
const lookEvery = time.Second

// Keeper serves a socket, and creates it again if it is removed.
type Keeper struct {
	path  string
	log   *slog.Logger
	every time.Duration

	making  sync.Mutex // held while the file is made or changed, before mu; guards options
	options Options

	mu      sync.Mutex // guards the fields below
	current *listener  // the served listener; its file may have been removed
	problem error      // why clients cannot reach the socket by its path; nil if they can
	drained bool       // the server ends, and the service manager keeps the socket
}

func (k *Keeper) isDrained() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.drained
}

// New returns a keeper that does not listen yet.
func New(path string, o Options, log *slog.Logger) *Keeper {
	return &Keeper{path: path, options: o, log: log, every: lookEvery}
}

// Keep returns a keeper that listens.
func Keep(path string, o Options, log *slog.Logger) (*Keeper, error) {
	k := New(path, o, log)
	if err := k.Listen(nil); err != nil {
		return nil, err
	}
	return k, nil
}

// Listen listens as the function Listen does, for Serve to serve. activated is the socket
// that the service manager keeps at the path; nil if there is none.
func (k *Keeper) Listen(activated *net.UnixListener) error {
	k.making.Lock()
	defer k.making.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	o := k.options
	o.activated = activated
	l, err := listen(k.path, o)
	if err != nil {
		return err
	}
	if activated != nil && !l.kept {
		k.log.Warn("the file of a socket that systemd keeps was removed, so berthd creates it again; to let systemd keep it again, restart the socket unit",
			logs.Repaired(logs.Socket, "socket", k.path)...)
	}
	k.current = l
	return nil
}

// Problem returns why clients cannot reach the socket by its path; nil if they can.
func (k *Keeper) Problem() error {
	k.look()
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.problem
}

// SetMode sets the mode of the socket and of those that replace it. A file of another program at the path does not change.
func (k *Keeper) SetMode(mode os.FileMode) error {
	k.making.Lock()
	defer k.making.Unlock()
	k.mu.Lock()
	own := k.current.info
	k.mu.Unlock()
	now, err := os.Lstat(k.path)
	if err == nil && os.SameFile(now, own) {
		err = os.Chmod(k.path, mode)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errdefs.Unavailablef("change the mode of socket %s: %w", k.path, err)
	}
	k.options.Mode = mode
	return nil
}

// Close ends the socket without having served it.
func (k *Keeper) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.current.Close()
}

// Drain stops accepting connections of a socket that the service manager keeps. New connections
// wait for the next berthd. Drain returns when the accepted connections have been answered, or
// when ctx ends. Other sockets do not change.
func (k *Keeper) Drain(ctx context.Context) error {
	k.mu.Lock()
	l := k.current
	if !l.kept {
		k.mu.Unlock()
		return nil
	}
	k.drained = true
	l.replace()
	k.mu.Unlock()
	return l.opened(ctx)
}

// Serve calls serve with a listener and returns its result. If the socket is removed meanwhile,
// Serve creates it again, with its directory, and calls serve with the new listener too. Open
// connections stay. A socket of another program at the path is reported and not replaced. Serve
// ends when serve has closed the listener.
func (k *Keeper) Serve(serve func(net.Listener) error) error {
	type result struct {
		of  *listener
		err error
	}
	served := make(chan result)
	stop := make(chan struct{})
	var all sync.WaitGroup
	defer all.Wait()
	defer close(stop)
	begin := func(l *listener) {
		all.Go(func() {
			r := result{l, serve(l)}
			close(l.served)
			select {
			case served <- r:
			case <-stop:
			}
		})
	}
	k.mu.Lock()
	begin(k.current)
	k.mu.Unlock()
	tick := time.NewTicker(k.every)
	defer tick.Stop()
	for {
		select {
		case r := <-served:
			if !r.of.outdated.Load() {
				return r.err
			}
			if k.isDrained() {
				return nil
			}
		case <-tick.C:
			if next := k.restore(); next != nil {
				begin(next)
			}
		}
	}
}

// look compares the file at the path with the listener's. While the listener is open, no other
// file has its inode number.
func (k *Keeper) look() (missing bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.current.ended.Load() || k.drained {
		return false // the server ends
	}
	now, err := os.Lstat(k.path)
	switch {
	case err == nil && os.SameFile(now, k.current.info):
		k.note(nil)
	case err == nil:
		k.note(errdefs.Conflictf("another program replaced socket %s by a file, so clients cannot connect; remove the file, and berthd creates the socket again", k.path))
	case errors.Is(err, fs.ErrNotExist):
		if k.problem == nil { // otherwise the reason is recorded
			k.note(errdefs.Unavailablef("socket %s was removed", k.path))
		}
		return true
	default:
		k.note(errdefs.Unavailablef("check socket %s: %w", k.path, err))
	}
	return false
}

// note keeps a problem, and logs it once. The caller holds mu.
func (k *Keeper) note(problem error) {
	switch {
	case problem == nil && k.problem != nil:
		k.log.Info("the socket is in place again", logs.Repaired(logs.Socket, "socket", k.path)...)
	case problem != nil && (k.problem == nil || k.problem.Error() != problem.Error()):
		k.log.Error("a socket is not in place", "socket", k.path, "error", problem)
	}
	k.problem = problem
}

// restore creates the socket again if it was removed; nil if there is nothing to serve.
func (k *Keeper) restore() *listener {
	if missing := k.look(); !missing {
		return nil
	}
	k.making.Lock()
	defer k.making.Unlock()
	made, err := listen(k.path, k.options)
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case err != nil:
		k.note(fmt.Errorf("socket %s was removed and cannot be made again: %w", k.path, err))
		return nil
	case k.current.ended.Load() || k.drained:
		_ = made.Close() // the server has ended meanwhile
		return nil
	}
	k.current.replace()
	k.current = made
	k.note(nil)
	return made
}
