package deviceplugin_test

import (
	"bytes"
	"cmp"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/berthd/berth/hack/testing/script"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/internal/deviceplugin"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const gpu = "example.com/gpu"

// timeout bounds every wait, so that a test that fails does not hang.
const timeout = time.Minute

// bench is a server on a directory of its own.
type bench struct {
	*deviceplugin.Server
	t    *testing.T
	ctx  context.Context
	inv  *device.Inventory
	log  *syncBuffer
	mem  *memory
	stop func() error
}

// directory makes one with a short path: the kernel takes 107 bytes.
func directory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "dp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// start runs a server until the test ends or stop is called.
func start(t *testing.T, cfg deviceplugin.Config) *bench {
	t.Helper()
	return startWith(t, cfg, device.NewInventory(nil, time.Now()), time.Now)
}

func startWith(t *testing.T, cfg deviceplugin.Config, inv *device.Inventory, now func() time.Time) *bench {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = directory(t)
	}
	// Only tests that set it see a plugin run out of time, however busy the machine is.
	limits := &cfg.Deadlines
	for _, d := range []*time.Duration{&limits.Dial, &limits.Options, &limits.Preferred, &limits.Allocate, &limits.PreStart} {
		*d = cmp.Or(*d, timeout)
	}
	b := &bench{t: t, inv: inv, log: &syncBuffer{}, mem: &memory{}}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	b.ctx = ctx
	b.Server = deviceplugin.New(cfg, deviceplugin.Parts{
		Inventory: inv, Memory: b.mem, Log: slog.New(slog.NewTextHandler(b.log, nil)), Now: now, Observer: observer{},
		ExternalProvider: func(resource string) (string, bool) { return "cards", resource == externalProviders },
	})
	running, end := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Run(running) }()
	b.stop = sync.OnceValue(func() error { end(); return <-done })
	t.Cleanup(func() {
		if err := b.stop(); err != nil {
			t.Errorf("server: %v", err)
		}
		cancel()
	})
	select {
	case <-b.Ready():
	case err := <-done:
		done <- err
	case <-ctx.Done():
		t.Fatal("the server is not ready")
	}
	return b
}

// externalProviders is a resource of a hint provider outside berthd.
const externalProviders = "example.com/card"

// until waits for a state of a resource.
func (b *bench) until(resource string, what string, ok func(*device.Resource) bool) *device.Resource {
	b.t.Helper()
	for {
		snap := b.inv.Snapshot()
		r, found := snap.Resource(resource)
		if found && ok(r) {
			return r
		}
		select {
		case <-snap.Superseded():
		case <-b.ctx.Done():
			b.t.Fatalf("%s never was %s; it is %+v\n%s", resource, what, r, b.log)
		}
	}
}

// untilCounts waits for a capacity and a number of healthy devices.
func (b *bench) untilCounts(resource string, capacity, allocatable int) *device.Resource {
	b.t.Helper()
	return b.until(resource, "at that size", func(r *device.Resource) bool {
		return r.Capacity() == capacity && r.Allocatable() == allocatable
	})
}

// plugin serves a plugin in the bench's directory; it registers by itself only
// if the test sets that.
func (b *bench) plugin(cfg script.Config) *script.Plugin {
	b.t.Helper()
	cfg.Dir = b.Dir
	if cfg.Resource == "" {
		cfg.Resource = gpu
	}
	p := script.New(cfg)
	if err := p.Serve(); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { p.Stop(); p.Wait() })
	return p
}

// registered serves and registers a plugin and waits for its list.
func (b *bench) registered(cfg script.Config) *script.Plugin {
	b.t.Helper()
	p := b.plugin(cfg)
	b.register(p)
	return p
}

func (b *bench) register(p *script.Plugin) {
	b.t.Helper()
	if err := p.Register(b.ctx); err != nil {
		b.t.Fatalf("register: %v\n%s", err, b.log)
	}
	healthy := 0
	for _, d := range p.Devices {
		if !d.Unhealthy {
			healthy++
		}
	}
	b.untilCounts(p.Resource, len(p.Devices), healthy)
}

func devices(t *testing.T, list string) []script.Device {
	t.Helper()
	d, err := script.ParseDevices(list)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// panics is a resource whose registration makes berthd's own handler panic.
const panics = "example.com/panics"

type observer struct{}

func (observer) Registered(resource string) {
	if resource == panics {
		panic("the observer was told to")
	}
}

func (observer) Allocated(string, time.Duration) {}

// memory is what is remembered for the next start.
type memory struct {
	mu   sync.Mutex
	seen map[string]int
	last ledger.SeenResource
	// during, if set, is called when something is to be remembered.
	during func()
	// held makes Forget refuse, asked counts its calls.
	held  bool
	asked int
	// fail is what Remember answers.
	fail error
}

func (m *memory) Forget(_ context.Context, resource string, may func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked++
	if m.held {
		return errdefs.Preconditionf("%s is held", resource)
	}
	if err := may(); err != nil {
		return err
	}
	delete(m.seen, resource)
	return nil
}

// release releases all devices.
func (m *memory) release() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held = false
}

func (m *memory) Remember(_ context.Context, r ledger.SeenResource) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.seen == nil {
		m.seen = map[string]int{}
	}
	if m.fail != nil {
		return m.fail
	}
	m.seen[r.Name]++
	m.last = r
	if m.during != nil {
		m.during()
		m.during = nil
	}
	return nil
}

func (m *memory) times(resource string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.seen[resource]
}

// syncBuffer is a log that can be read while it is written.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func write(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func exists(dir, name string) bool {
	_, err := os.Lstat(filepath.Join(dir, name))
	return err == nil
}
