package registry_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	registrationapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/berthd/berth/hack/testing/script"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/internal/deviceplugin"
	"github.com/berthd/berth/server/internal/deviceplugin/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const gpu = "example.com/gpu"

// timeout bounds every wait, so that a test that fails does not hang.
const timeout = time.Minute

// bench is a registry on a directory of its own, with the plugin server that it
// attaches to and a clock that the test turns.
type bench struct {
	*registry.Registry
	t      *testing.T
	ctx    context.Context
	inv    *device.Inventory
	log    *syncBuffer
	pauses chan time.Duration
	resume chan time.Time
	stop   func()
}

// directory makes one with a short path: the kernel takes 107 bytes.
func directory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func start(t *testing.T, dir string) *bench { return startWith(t, registry.Config{Dir: dir}) }

func startWith(t *testing.T, cfg registry.Config) *bench {
	t.Helper()
	return startWatching(t, cfg, nil)
}

// startPolling is start where the kernel has no watches left.
func startPolling(t *testing.T, dir string) *bench {
	t.Helper()
	return startWatching(t, registry.Config{Dir: dir}, func(string) error { return syscall.EMFILE })
}

// bothWays runs a test with watches and without: both find the same.
func bothWays(t *testing.T, test func(t *testing.T, start func(t *testing.T, dir string) *bench)) {
	t.Helper()
	for name, start := range map[string]func(*testing.T, string) *bench{"watching": start, "polling": startPolling} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, start)
		})
	}
}

func startWatching(t *testing.T, cfg registry.Config, failWatch func(path string) error) *bench {
	t.Helper()
	cfg.Poll = time.Millisecond
	b := &bench{
		t: t, inv: device.NewInventory(nil, time.Now()), log: &syncBuffer{},
		pauses: make(chan time.Duration, 100), resume: make(chan time.Time),
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	b.ctx = ctx
	log := slog.New(slog.NewTextHandler(b.log, nil))
	// Only tests that set it see a plugin run out of time, however busy the machine is.
	for _, d := range []*time.Duration{&cfg.Deadlines.Dial, &cfg.Deadlines.Info, &cfg.Deadlines.Notify} {
		*d = cmp.Or(*d, timeout)
	}
	plugins := deviceplugin.New(deviceplugin.Config{
		Dir: directory(t), Deadlines: deviceplugin.Deadlines{Dial: timeout, Options: timeout},
	}, deviceplugin.Parts{
		Inventory: b.inv, Memory: forgetful{}, Log: log, Now: time.Now,
	})
	b.Registry = registry.New(cfg, registry.Parts{
		Plugins: plugins, Log: log, Now: time.Now, FailWatch: failWatch,
		After: func(d time.Duration) <-chan time.Time {
			b.pauses <- d
			return b.resume
		},
	})
	running, end := context.WithCancel(context.Background())
	var group sync.WaitGroup
	for name, run := range map[string]func(context.Context) error{"plugins": plugins.Run, "registry": b.Run} {
		group.Go(func() {
			if err := run(running); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	b.stop = sync.OnceFunc(func() { end(); group.Wait() })
	t.Cleanup(func() { b.stop(); cancel() })
	select {
	case <-b.Ready():
	case <-ctx.Done():
		t.Fatal("the registry is not ready")
	}
	return b
}

type forgetful struct{}

func (forgetful) Remember(context.Context, ledger.SeenResource) error { return nil }

func (forgetful) Forget(context.Context, string, func() error) error { return nil }

// serve makes a plugin that waits to be found.
func serve(t *testing.T, cfg script.Config) *script.Plugin {
	t.Helper()
	cfg.Watched = true
	if cfg.Resource == "" {
		cfg.Resource = gpu
	}
	if cfg.Devices == nil {
		cfg.Devices = []script.Device{{ID: "a"}, {ID: "b"}}
	}
	p := script.New(cfg)
	if err := p.Serve(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Stop(); p.Wait() })
	return p
}

// untilCounts waits for a capacity and a number of healthy devices.
func (b *bench) untilCounts(resource string, capacity, allocatable int) {
	b.t.Helper()
	for {
		snap := b.inv.Snapshot()
		r, found := snap.Resource(resource)
		if found && r.Capacity() == capacity && r.Allocatable() == allocatable {
			return
		}
		select {
		case <-snap.Superseded():
		case <-b.ctx.Done():
			b.t.Fatalf("%s never was %d/%d; it is %+v\n%s", resource, capacity, allocatable, r, b.log)
		}
	}
}

// await waits for the n-th call of a method.
func (b *bench) await(p *script.Plugin, m script.Method, n int) script.Call {
	b.t.Helper()
	call, err := p.Await(b.ctx, m, n)
	if err != nil {
		b.t.Fatalf("%s %d: %v\n%s", m, n, err, b.log)
	}
	return call
}

// paused waits until a visit has failed and returns the pause after it.
func (b *bench) paused() time.Duration {
	b.t.Helper()
	select {
	case d := <-b.pauses:
		return d
	case <-b.ctx.Done():
		b.t.Fatalf("no visit has failed\n%s", b.log)
		return 0
	}
}

// wake ends a pause.
func (b *bench) wake() {
	b.t.Helper()
	select {
	case b.resume <- time.Time{}:
	case <-b.ctx.Done():
		b.t.Fatal("nobody pauses")
	}
}

// synced makes sure that the registry has seen all that happened in its
// directory before.
func (b *bench) synced() {
	b.t.Helper()
	serve(b.t, script.Config{Dir: b.Dir, Resource: "example.com/last", Endpoint: last})
	b.untilCounts("example.com/last", 2, 2)
}

// last is the socket that synced makes.
const last = "last.sock"

func (b *bench) paths() (names []string) {
	for _, s := range b.Sockets() {
		name, err := filepath.Rel(b.Dir, s.Path)
		if err != nil {
			b.t.Fatal(err)
		}
		if name == last {
			continue
		}
		if s.Registered {
			name += " registered"
		}
		names = append(names, name)
	}
	return names
}

// follows waits until exactly these sockets are followed: a plugin hears of its
// registration a moment before the registry has noted it.
func (b *bench) follows(want []string) {
	b.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !slices.Equal(b.paths(), want) {
		select {
		case <-tick.C:
		case <-b.ctx.Done():
			b.t.Fatalf("followed are %q, want %q\n%s", b.paths(), want, b.log)
		}
	}
}

func TestFindsSockets(t *testing.T) {
	t.Parallel()
	bothWays(t, findsSockets)
}

func findsSockets(t *testing.T, start func(t *testing.T, dir string) *bench) {
	t.Helper()
	dir, outside := directory(t), directory(t)
	mkdir := func(name string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	var all []*script.Plugin
	add := func(dir, name string) *script.Plugin {
		p := serve(t, script.Config{Dir: dir, Resource: "example.com/" + strings.TrimPrefix(name, "."), Endpoint: name})
		all = append(all, p)
		return p
	}
	add(dir, "first")
	add(mkdir("sub/deep"), "second")
	hidden := add(dir, ".hidden")
	inHidden := add(mkdir(".folder"), "secret")
	if err := os.WriteFile(filepath.Join(dir, "file.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b := start(t, dir)
	add(dir, "third")
	add(mkdir("later"), "fourth")
	lateHidden := add(dir, ".late")
	moved := add(outside, "fifth")
	if err := os.Rename(moved.Socket(), filepath.Join(dir, "fifth")); err != nil {
		t.Fatal(err)
	}
	silent := []*script.Plugin{hidden, inHidden, lateHidden}
	for _, p := range all {
		if slices.Contains(silent, p) {
			continue
		}
		if call := b.await(p, script.Notify, 1); call.Error != "" {
			t.Errorf("%s was refused: %s", p.Resource, call.Error)
		}
		b.untilCounts(p.Resource, 2, 2)
	}
	b.synced()
	want := []string{"fifth registered", "first registered", "later/fourth registered", "sub/deep/second registered", "third registered"}
	b.follows(want)
	for _, p := range silent {
		if calls := p.Calls(); len(calls) > 0 {
			t.Errorf("%s was asked: %+v", p.Socket(), calls)
		}
	}
	if len(b.pauses) > 0 {
		t.Errorf("a visit has failed:\n%s", b.log)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		info func(*registrationapi.PluginInfo)
		want string
	}{
		"type": {func(i *registrationapi.PluginInfo) { i.Type = "TeaPlugin" },
			`no handler registered for plugin type: "TeaPlugin"`},
		"no type": {func(i *registrationapi.PluginInfo) { i.Type = "" }, `no handler registered for plugin type: ""`},
		"version": {func(i *registrationapi.PluginInfo) { i.SupportedVersions = []string{"v1", "v2"} },
			"manager version, v1beta1, is not among plugin supported versions"},
		"no version": {func(i *registrationapi.PluginInfo) { i.SupportedVersions = nil },
			"manager version, v1beta1, is not among plugin supported versions"},
		"name": {func(i *registrationapi.PluginInfo) { i.Name = "gpu" }, `the ResourceName "gpu" is invalid`},
		"relative endpoint": {func(i *registrationapi.PluginInfo) { i.Endpoint = "../x.sock" },
			`the endpoint "../x.sock" is not an absolute path`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := start(t, directory(t))
			p := serve(t, script.Config{Dir: b.Dir, Info: row.info})
			if call := b.await(p, script.Notify, 1); !strings.Contains(call.Error, row.want) {
				t.Errorf("the plugin was told %q, want %q", call.Error, row.want)
			}
			if d := b.paused(); d != registry.FirstPause {
				t.Errorf("the next visit is after %s", d)
			}
			if _, ok := b.inv.Snapshot().Resource(gpu); ok || len(p.Calls(script.Options)) > 0 {
				t.Error("a refused plugin was attached")
			}
		})
	}
}

func TestRefusedWhereItServes(t *testing.T) {
	t.Parallel()
	b := start(t, directory(t))
	p := script.New(script.Config{Dir: b.Dir, Watched: true, Resource: gpu})
	p.Behave(script.Options, script.Refuse)
	if err := p.Serve(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Stop(); p.Wait() })
	if call := b.await(p, script.Notify, 1); !strings.Contains(call.Error, "failed to get device plugin options") {
		t.Errorf("the plugin was told %q", call.Error)
	}
	b.paused()
	p.Behave(script.Options, script.Well)
	b.wake()
	if call := b.await(p, script.Notify, 2); call.Error != "" {
		t.Errorf("the second time the plugin was told %q", call.Error)
	}
}

func TestForeignPluginsAreLeftAlone(t *testing.T) {
	t.Parallel()
	b := start(t, directory(t))
	var foreign []*script.Plugin
	for _, kind := range []string{registrationapi.CSIPlugin, registrationapi.DRAPlugin} {
		p := serve(t, script.Config{Dir: b.Dir, Endpoint: kind, Info: func(i *registrationapi.PluginInfo) { i.Type = kind }})
		b.await(p, script.Info, 1)
		foreign = append(foreign, p)
	}
	b.stop()
	for _, p := range foreign {
		if calls := p.Calls(); len(calls) != 1 {
			t.Errorf("%s: %+v", p.Endpoint, calls)
		}
	}
	if len(b.pauses) > 0 {
		t.Error("it would be visited again")
	}
}

func TestEndpointElsewhere(t *testing.T) {
	t.Parallel()
	b, outside := start(t, directory(t)), directory(t)
	devices := serve(t, script.Config{Dir: outside, Endpoint: "devices.sock"})
	p := serve(t, script.Config{Dir: b.Dir, Info: func(i *registrationapi.PluginInfo) { i.Endpoint = devices.Socket() }})
	b.await(p, script.Notify, 1)
	b.untilCounts(gpu, 2, 2)
	if len(devices.Calls(script.ListAndWatch)) != 1 || len(p.Calls(script.ListAndWatch)) != 0 {
		t.Error("the list was not read where the plugin serves it")
	}
}

func TestSocketGoes(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(p *script.Plugin, outside string) error{
		"removed":        func(p *script.Plugin, _ string) error { return os.Remove(p.Socket()) },
		"renamed":        func(p *script.Plugin, outside string) error { return os.Rename(p.Socket(), outside+"/away.sock") },
		"folder renamed": func(p *script.Plugin, outside string) error { return os.Rename(p.Dir, outside+"/away") },
	} {
		bothWays(t, func(t *testing.T, start func(t *testing.T, dir string) *bench) {
			t.Helper()
			t.Log(name)
			b := start(t, directory(t))
			sub := filepath.Join(b.Dir, "sub")
			if err := os.Mkdir(sub, 0o700); err != nil {
				t.Fatal(err)
			}
			p := serve(t, script.Config{Dir: sub})
			b.await(p, script.Notify, 1)
			b.untilCounts(gpu, 2, 2)
			if err := leave(p, directory(t)); err != nil {
				t.Fatal(err)
			}
			b.untilCounts(gpu, 2, 0)
			b.synced()
			if got := b.paths(); len(got) > 0 {
				t.Errorf("still followed: %q", got)
			}
		})
	}
}

func TestPluginDiesAndComesBack(t *testing.T) {
	t.Parallel()
	bothWays(t, pluginDiesAndComesBack)
}

func pluginDiesAndComesBack(t *testing.T, start func(t *testing.T, dir string) *bench) {
	t.Helper()
	b := start(t, directory(t))
	p := serve(t, script.Config{Dir: b.Dir})
	b.await(p, script.Notify, 1)
	b.untilCounts(gpu, 2, 2)
	p.Die()
	b.untilCounts(gpu, 2, 0)
	b.paused()
	next := serve(t, script.Config{Dir: b.Dir, Devices: []script.Device{{ID: "a"}, {ID: "b"}, {ID: "c"}}})
	b.await(next, script.Notify, 1)
	b.untilCounts(gpu, 3, 3)
}

func TestLostListIsReadAgain(t *testing.T) {
	t.Parallel()
	b := start(t, directory(t))
	p := serve(t, script.Config{Dir: b.Dir})
	b.await(p, script.Notify, 1)
	b.untilCounts(gpu, 2, 2)
	p.Behave(script.ListAndWatch, script.End)
	b.untilCounts(gpu, 2, 0)
	b.paused()
	p.Behave(script.ListAndWatch, script.Well)
	b.wake()
	b.await(p, script.Notify, 2)
	b.untilCounts(gpu, 2, 2)
	if _, most := p.Streams(); most != 1 {
		t.Errorf("%d lists were read at a time", most)
	}
}

func TestPauses(t *testing.T) {
	t.Parallel()
	bothWays(t, pauses)
}

func pauses(t *testing.T, start func(t *testing.T, dir string) *bench) {
	t.Helper()
	b := start(t, directory(t))
	p := script.New(script.Config{Dir: b.Dir, Watched: true, Resource: gpu, Devices: []script.Device{{ID: "a"}}})
	p.Behave(script.Info, script.Refuse)
	if err := p.Serve(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Stop(); p.Wait() })
	for i, want := range []string{"500ms", "1s", "2s", "4s", "8s", "16s", "32s", "1m4s", "2m2s", "2m2s"} {
		if got := b.paused().String(); got != want {
			t.Errorf("pause %d is %s, want %s", i, got, want)
		}
		b.wake()
	}
	b.paused()
	if len(p.Calls(script.Notify)) > 0 {
		t.Error("a plugin that did not say who it is was told something")
	}
	// A new file of the same name starts over.
	next := serve(t, script.Config{Dir: b.Dir})
	b.await(next, script.Notify, 1)
	next.Behave(script.ListAndWatch, script.End)
	if got := b.paused(); got != registry.FirstPause {
		t.Errorf("the new socket's first pause is %s", got)
	}
}

func TestSilentPlugins(t *testing.T) {
	t.Parallel()
	b := startWith(t, registry.Config{Dir: directory(t), Deadlines: registry.Deadlines{Info: time.Millisecond, Notify: time.Millisecond}})
	p := script.New(script.Config{Dir: b.Dir, Watched: true, Resource: gpu})
	p.Behave(script.Info, script.Hang)
	if err := p.Serve(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Stop(); p.Wait() })
	b.paused()
	if !strings.Contains(b.log.String(), "failed to get plugin info (within 1ms)") {
		t.Errorf("the log says\n%s", b.log)
	}
}

func TestPluginThatDoesNotTakeTheNews(t *testing.T) {
	t.Parallel()
	b := start(t, directory(t))
	p := script.New(script.Config{Dir: b.Dir, Watched: true, Resource: gpu, Devices: []script.Device{{ID: "a"}}})
	p.Behave(script.Notify, script.Refuse)
	if err := p.Serve(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Stop(); p.Wait() })
	b.paused()
	if r, _ := b.inv.Snapshot().Resource(gpu); r.State != device.Stopped {
		t.Errorf("its resource is %s all the same", r.State)
	}
	p.Behave(script.Notify, script.Well)
	b.wake()
	b.await(p, script.Notify, 2)
	b.untilCounts(gpu, 1, 1)
}

func TestTwoPluginsOfOneResource(t *testing.T) {
	t.Parallel()
	b := start(t, directory(t))
	old := serve(t, script.Config{Dir: b.Dir, Endpoint: "old.sock"})
	b.await(old, script.Notify, 1)
	b.untilCounts(gpu, 2, 2)
	next := serve(t, script.Config{Dir: b.Dir, Endpoint: "new.sock", Devices: []script.Device{{ID: "c"}}})
	b.await(next, script.Notify, 1)
	b.untilCounts(gpu, 1, 1)
	b.synced()
	b.follows([]string{"new.sock registered", "old.sock"})
	// The newer one goes, and the older one is still there. Without its socket the
	// newer one is not visited any more, so there is one pause only.
	if err := os.Remove(next.Socket()); err != nil {
		t.Fatal(err)
	}
	b.untilCounts(gpu, 1, 0)
	b.paused()
	b.wake()
	b.await(old, script.Notify, 2)
	b.untilCounts(gpu, 2, 2)
}

func TestEndOfBerthIsNoNews(t *testing.T) {
	t.Parallel()
	b := start(t, directory(t))
	p := serve(t, script.Config{Dir: b.Dir})
	b.await(p, script.Notify, 1)
	b.untilCounts(gpu, 2, 2)
	b.stop()
	if r, _ := b.inv.Snapshot().Resource(gpu); r.State != device.Connected {
		t.Errorf("the plugin is taken for %s", r.State)
	}
	if calls := p.Calls(script.Notify); len(calls) != 1 {
		t.Errorf("the plugin was told %+v", calls)
	}
	if _, err := os.Stat(p.Socket()); err != nil {
		t.Errorf("the plugin's socket: %v", err)
	}
}

func TestDirectoryIsMadeAgain(t *testing.T) {
	t.Parallel()
	bothWays(t, directoryIsMadeAgain)
}

func directoryIsMadeAgain(t *testing.T, start func(t *testing.T, dir string) *bench) {
	t.Helper()
	b := start(t, filepath.Join(directory(t), "registry"))
	info, err := os.Stat(b.Dir)
	if err != nil || info.Mode().Perm() != 0o750 {
		t.Fatalf("%v, %v", info.Mode(), err)
	}
	p := serve(t, script.Config{Dir: b.Dir})
	b.await(p, script.Notify, 1)
	b.untilCounts(gpu, 2, 2)
	if err := os.RemoveAll(b.Dir); err != nil {
		t.Fatal(err)
	}
	b.untilCounts(gpu, 2, 0)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for _, err := os.Stat(b.Dir); err != nil; _, err = os.Stat(b.Dir) {
		select {
		case <-tick.C:
		case <-b.ctx.Done():
			t.Fatal("the directory is not made again")
		}
	}
	b.synced()
}

// TestWatchesRunOut: watches that run out end nothing. Plugins are found by polling, which is logged once, and are
// watched again when that is possible.
func TestWatchesRunOut(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]func(path string) bool{
		"all":               func(path string) bool { return path != "" },
		"all but the first": func(path string) bool { return strings.HasSuffix(path, "/sub") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out atomic.Bool
			b := startWatching(t, registry.Config{Dir: directory(t)}, func(path string) error {
				if out.Load() && fails(path) {
					return syscall.ENOSPC
				}
				return nil
			})
			out.Store(true)
			// The directory goes, so all watches are made again.
			sub := filepath.Join(b.Dir, "sub")
			if err := errors.Join(os.RemoveAll(b.Dir), os.MkdirAll(sub, 0o700)); err != nil {
				t.Fatal(err)
			}
			p := serve(t, script.Config{Dir: sub})
			b.await(p, script.Notify, 1)
			b.untilCounts(gpu, 2, 2)
			b.logs("cannot be watched", 1)
			out.Store(false)
			b.logs("is watched again", 1)
			if err := os.Remove(p.Socket()); err != nil {
				t.Fatal(err)
			}
			b.untilCounts(gpu, 2, 0)
			b.synced()
		})
	}
}

// TestNoWatchesAtTheStart: berthd starts all the same, and watches as soon as it can.
func TestNoWatchesAtTheStart(t *testing.T) {
	t.Parallel()
	var there atomic.Bool
	b := startWatching(t, registry.Config{Dir: directory(t)}, func(path string) error {
		if path == "" && !there.Load() {
			return syscall.EMFILE
		}
		return nil
	})
	p := serve(t, script.Config{Dir: b.Dir})
	b.await(p, script.Notify, 1)
	b.logs("cannot be watched", 1)
	there.Store(true)
	b.logs("is watched again", 1)
	b.synced()
}

// logs waits until the log has a text, and checks that it has it no more often than expected.
func (b *bench) logs(text string, times int) {
	b.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for strings.Count(b.log.String(), text) < times {
		select {
		case <-tick.C:
		case <-b.ctx.Done():
			b.t.Fatalf("the log does not say %q:\n%s", text, b.log)
		}
	}
	if got := strings.Count(b.log.String(), text); got != times {
		b.t.Errorf("the log says %q %d times:\n%s", text, got, b.log)
	}
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
