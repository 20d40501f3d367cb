package deviceplugin

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"google.golang.org/grpc"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/internal/breaker"
	"github.com/berthd/berth/server/internal/logs"
	"github.com/berthd/berth/server/internal/socket"
)

// SocketName is the name of the registration socket in the directory.
const SocketName = "kubelet.sock"

// Config of the server.
type Config struct {
	// Dir is the directory of kubelet.sock and the plugins' sockets, absolute.
	// It is made if it is not there. Empty: there is no such directory, and nothing registers
	// by itself.
	Dir string
	// Deadlines of calls to plugins.
	Deadlines Deadlines
	// ForgetAfter is how long a resource without a plugin is kept if no pod holds its devices; 0
	// is for ever.
	ForgetAfter time.Duration
	// KeepName keeps the name of such a resource in the inventory, without capacity, until the
	// server ends. Pods that request it are refused, as by the kubelet.
	KeepName bool
	// MaxListBytes is the largest list that a plugin may send; 0 means 4 MiB, as in the kubelet.
	MaxListBytes int
	// MaxDevices is how many devices a resource may have, and MaxResources how many
	// resources plugins may have together; 0 means 65,536 and 256.
	MaxDevices, MaxResources int
	// UpdateEvery is how often a plugin's list counts; of several in between the last
	// one does. 0 means 100 ms.
	UpdateEvery time.Duration
	// Breaker configures when calls to an unresponsive plugin stop.
	Breaker breaker.Config
}

// Deadlines of calls to plugins; 0 means the default. The kubelet has none for
// Options, Preferred and Allocate, and a plugin that hangs stops all admissions
// of its node (kubernetes#117435).
type Deadlines struct {
	// Dial is for connecting to a plugin that registers: 10 s.
	Dial time.Duration
	// Options is for GetDevicePluginOptions: 10 s.
	Options time.Duration
	// Preferred is for GetPreferredAllocation: 10 s.
	Preferred time.Duration
	// Allocate is for Allocate: 30 s.
	Allocate time.Duration
	// PreStart is for PreStartContainer: 30 s, as in the kubelet.
	PreStart time.Duration
}

// Memory keeps across restarts what resources there are.
type Memory interface {
	// Remember notes that a resource's plugin has a connection, or had one until
	// then.
	Remember(ctx context.Context, r ledger.SeenResource) error
	// Forget deletes a resource. If a pod holds some of it, the error is of class Precondition
	// and names the holders. Forget calls may in the same transaction, and returns its error.
	// Earlier calls of Remember are complete at that time.
	Forget(ctx context.Context, resource string, may func() error) error
}

// Observer gets events of plugins, for metrics.
type Observer interface {
	// Registered is called for each Register call, whatever its result.
	Registered(resource string)
	// Allocated: a plugin answered Allocate, or failed to, after so long.
	Allocated(resource string, took time.Duration)
}

// Parts hold what the server works with.
type Parts struct {
	Inventory *device.Inventory
	Memory    Memory
	Log       *slog.Logger
	Now       func() time.Time
	// ExternalProvider returns the hint provider outside berthd that has registered for a
	// resource; nil means that there are none.
	ExternalProvider func(resource string) (provider string, ok bool)
	// Observer may be nil.
	Observer Observer
}

// Server registers plugins and speaks with them. Its methods are safe for
// concurrent use.
type Server struct {
	pluginapi.UnimplementedRegistrationServer

	Config
	Parts
	ready chan struct{}

	mu       sync.Mutex
	sessions map[string]*session // guarded by mu; the newest of each resource
	older    []*standby          // guarded by mu; of all resources, the newest last
	running  context.Context     // guarded by mu; nil while the server does not run
	socket   *socket.Keeper      // guarded by mu; nil while the server does not run
	streams  sync.WaitGroup      // the goroutines of sessions and calls; added to under mu
}

var _ device.Plugins = (*Server)(nil)

// New makes a server. It touches nothing.
func New(cfg Config, parts Parts) *Server {
	if parts.Log != nil {
		parts.Log = logs.Limit(parts.Log) // plugins can register and end as often as they like
	}
	d := &cfg.Deadlines
	d.Dial, d.Options, d.Preferred = cmp.Or(d.Dial, 10*time.Second), cmp.Or(d.Options, 10*time.Second), cmp.Or(d.Preferred, 10*time.Second)
	d.Allocate, d.PreStart = cmp.Or(d.Allocate, 30*time.Second), cmp.Or(d.PreStart, 30*time.Second)
	cfg.MaxListBytes = cmp.Or(cfg.MaxListBytes, 4<<20)
	cfg.MaxDevices = cmp.Or(cfg.MaxDevices, 1<<16)
	cfg.MaxResources = cmp.Or(cfg.MaxResources, 256)
	cfg.UpdateEvery = cmp.Or(cfg.UpdateEvery, 100*time.Millisecond)
	return &Server{
		Config: cfg, Parts: parts,
		ready:    make(chan struct{}),
		sessions: map[string]*session{},
	}
}

// Path returns the path of the registration socket.
func (s *Server) Path() string { return filepath.Join(s.Dir, SocketName) }

// Problem reports why plugins do not reach the registration socket by its path; nil while they do, or before Run.
func (s *Server) Problem() error {
	s.mu.Lock()
	kept := s.socket
	s.mu.Unlock()
	if kept == nil {
		return nil
	}
	return kept.Problem()
}

// goes runs a call to a plugin in a goroutine that Run waits for. It returns false if Run is
// ending.
func (s *Server) goes(call func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == nil {
		return false
	}
	s.streams.Go(call)
	return true
}

// Ready is closed when plugins can register.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Run cleans the directory, opens the registration socket and serves it until ctx
// ends; then it ends all sessions. It is called once.
func (s *Server) Run(ctx context.Context) error {
	kept, err := s.open()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	s.running, s.socket = ctx, kept
	s.mu.Unlock()

	server := grpc.NewServer(grpc.WaitForHandlers(true), grpc.ChainUnaryInterceptor(
		recovery.UnaryServerInterceptor(recovery.WithRecoveryHandlerContext(s.panicked))))
	pluginapi.RegisterRegistrationServer(server, s)
	failed := make(chan error, 1)
	if kept == nil {
		failed <- nil
	} else {
		go func() {
			failed <- kept.Serve(server.Serve)
			cancel()
		}()
	}
	close(s.ready)
	for s.expire(ctx) {
	}

	cancel()
	server.Stop()
	s.mu.Lock()
	s.running, s.socket = nil, nil
	s.mu.Unlock()
	s.streams.Wait()
	if err := <-failed; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return errdefs.Unavailablef("serve %s: %w", s.Path(), err)
	}
	return nil
}

// panicked makes an answer of a panic in a handler; plugins that are registered
// are served on.
func (s *Server) panicked(ctx context.Context, p any) error {
	s.Log.ErrorContext(ctx, "panic while a device plugin registered", "panic", p, "stack", string(debug.Stack()))
	return errdefs.Internalf("panic in berthd, see its log: %v", p)
}

// expire takes the capacity of plugins that have been away for too long, and
// waits until there may be another one; false when ctx has ended.
func (s *Server) expire(ctx context.Context) bool {
	for _, name := range s.Inventory.Expire(s.Now()) {
		s.Log.Warn("device plugin did not come back, its resource has no capacity any more", "resource", name)
	}
	// Before forgetting: what changes from here on wakes this again.
	snap := s.Inventory.Snapshot()
	at, ok := snap.Expiry()
	if next := s.forgetAway(ctx, snap); !next.IsZero() && (!ok || next.Before(at)) {
		at, ok = next, true
	}
	var due <-chan time.Time
	if ok {
		timer := time.NewTimer(at.Sub(s.Now()) + time.Millisecond)
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-ctx.Done():
		return false
	case <-snap.Superseded():
	case <-due:
	}
	return true
}
