package registry

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/berthd/berth/server/internal/deviceplugin"
	"github.com/berthd/berth/server/internal/logs"
)

// dirMode of the directory if it has to be made; the kubelet's.
const dirMode fs.FileMode = 0o750

// The first pause after a visit, and the longest; each is twice the one before.
const (
	FirstPause = 500 * time.Millisecond
	MaxPause   = 2*time.Minute + 2*time.Second
)

// Config of a registry.
type Config struct {
	// Dir is the directory, absolute. It is made if it is not there.
	Dir string
	// Deadlines of calls to registration sockets.
	Deadlines Deadlines
	// Poll is how often the directory is read while the kernel cannot watch it; 0 means a second.
	Poll time.Duration
}

// Deadlines of calls to registration sockets; 0 means the default, which is the
// kubelet's.
type Deadlines struct {
	// Dial is for connecting: 10 s.
	Dial time.Duration
	// Info is for GetInfo: 1 s, which is short on a busy machine
	// (kubernetes#127457).
	Info time.Duration
	// Notify is for NotifyRegistrationStatus: 5 s.
	Notify time.Duration
}

// Parts hold what a registry works with.
type Parts struct {
	Plugins *deviceplugin.Server
	Log     *slog.Logger
	Now     func() time.Time
	// After is time.After, or what a test has in its place.
	After func(time.Duration) <-chan time.Time
	// FailWatch is for tests: an error of the kernel's instead of a new watch of a folder, or of a new inotify instance,
	// which has no path. nil fails nothing.
	FailWatch func(path string) error
}

// Registry watches a directory and keeps the plugins in it connected.
type Registry struct {
	Config
	Parts
	ready chan struct{}
	// watcher is nil while the directory is polled; it belongs to Run.
	watcher *fsnotify.Watcher
	// polled means that the log has a line about polling.
	polled bool

	mu      sync.Mutex
	sockets map[string]*socket // guarded by mu; written only by Run
}

// socket is a registration socket that is being followed.
type socket struct {
	file       os.FileInfo
	registered atomic.Bool
	cancel     context.CancelFunc
	// done is closed when the visits have ended.
	done chan struct{}
}

// Socket reports how a registration socket is doing.
type Socket struct {
	Path       string
	Registered bool
}

// New makes a registry. It touches nothing.
func New(cfg Config, parts Parts) *Registry {
	set := func(d *time.Duration, fallback time.Duration) {
		if *d == 0 {
			*d = fallback
		}
	}
	set(&cfg.Deadlines.Dial, 10*time.Second)
	set(&cfg.Deadlines.Info, time.Second)
	set(&cfg.Deadlines.Notify, 5*time.Second)
	set(&cfg.Poll, time.Second)
	parts.Log = logs.Limit(parts.Log) // sockets can come and go as often as they like
	return &Registry{Config: cfg, Parts: parts, ready: make(chan struct{}), sockets: map[string]*socket{}}
}

// Ready is closed when every socket that was there at the start is being followed.
func (r *Registry) Ready() <-chan struct{} { return r.ready }

// Sockets returns the registration sockets that are there, by path.
func (r *Registry) Sockets() []Socket {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Socket
	for path, s := range r.sockets {
		out = append(out, Socket{path, s.registered.Load()})
	}
	slices.SortFunc(out, func(a, b Socket) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// Run follows the directory until ctx ends. It waits until plugins can be
// attached, and is called once.
func (r *Registry) Run(ctx context.Context) error {
	select {
	case <-r.Plugins.Ready():
	case <-ctx.Done():
		return nil
	}
	if r.Dir == "" {
		close(r.ready)
		<-ctx.Done()
		return nil
	}
	if err := r.makeDir(); err != nil {
		return err
	}
	defer r.unwatch()
	// At the end of berthd no plugin is notified: the plugin server closes the connections.
	defer r.forgetAll()
	poll := time.NewTicker(r.Poll)
	defer poll.Stop()
	r.scan(ctx)
	close(r.ready)
	for {
		events, failures, tick := r.channels(poll)
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-events:
			if !ok {
				r.poll(ctx, errWatchEnded)
				continue
			}
			r.noticed(ctx, e)
		case err := <-failures:
			// Events were probably lost, so everything is read again.
			r.Log.Warn("watching the plugin registry failed", "dir", r.Dir, "error", err)
			r.scan(ctx)
		case <-tick:
			r.scan(ctx)
		}
	}
}

// appeared follows a socket, unless this very file is followed already.
func (r *Registry) appeared(ctx context.Context, path string, file os.FileInfo) {
	r.mu.Lock()
	have := r.sockets[path]
	r.mu.Unlock()
	if have != nil {
		// Inode numbers are used again, so the time counts as well.
		if os.SameFile(have.file, file) && have.file.ModTime().Equal(file.ModTime()) {
			return
		}
		r.forget(path)
	}
	following, cancel := context.WithCancelCause(ctx)
	s := &socket{file: file, cancel: func() { cancel(errGone) }, done: make(chan struct{})}
	r.mu.Lock()
	r.sockets[path] = s
	r.mu.Unlock()
	go func() {
		defer close(s.done)
		r.follow(following, path, s)
	}()
}

// errWatchEnded is why the directory is polled if the watcher ends by itself.
var errWatchEnded = errors.New("the watch has ended")

// errGone is why a socket is not followed any more.
var errGone = errors.New("the registration socket is gone")

// forget cancels the visits of a socket and waits for their end.
func (r *Registry) forget(path string) {
	r.mu.Lock()
	s := r.sockets[path]
	delete(r.sockets, path)
	r.mu.Unlock()
	s.cancel()
	<-s.done
}

// forgetAll does so for all of them.
func (r *Registry) forgetAll() {
	for _, s := range r.Sockets() {
		r.forget(s.Path)
	}
}
