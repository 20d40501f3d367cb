package deviceplugin_test

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berthd/berth/hack/testing/script"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/server/internal/deviceplugin"
)

// leave puts a socket without a listener in a directory.
func leave(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestStartCleansTheDirectory(t *testing.T) {
	t.Parallel()
	dir, outside := directory(t), directory(t)
	leave(t, filepath.Join(dir, "kubelet.sock"))
	leave(t, filepath.Join(dir, "plugin.sock"))
	leave(t, filepath.Join(outside, "elsewhere.sock"))
	for link, target := range map[string]string{
		"link.sock": filepath.Join(outside, "elsewhere.sock"),
		"dangling":  filepath.Join(outside, "nothing"),
	} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(dir, "kubelet_internal_checkpoint"))
	write(t, filepath.Join(dir, "DEPRECATION"))
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	leave(t, filepath.Join(dir, "sub", "deep.sock"))

	b := start(t, deviceplugin.Config{Dir: dir})
	for name, want := range map[string]bool{
		"kubelet.sock": true, "plugin.sock": false, "link.sock": false, "dangling": true,
		"kubelet_internal_checkpoint": true, "DEPRECATION": true, "sub/deep.sock": true,
	} {
		if got := exists(dir, name); got != want {
			t.Errorf("%s: there is %v, want %v", name, got, want)
		}
	}
	if !exists(outside, "elsewhere.sock") {
		t.Error("the target of a link was removed")
	}
	info, err := os.Stat(b.Path())
	if err != nil || info.Mode() != fs.ModeSocket|0o755 {
		t.Errorf("kubelet.sock: mode %v, %v", info.Mode(), err)
	}
	if !strings.Contains(b.log.String(), "keeps plugins from registering") {
		t.Errorf("nothing is said about DEPRECATION:\n%s", b.log)
	}
	if err := b.stop(); err != nil {
		t.Error(err)
	}
	if exists(dir, "kubelet.sock") || !exists(dir, "kubelet_internal_checkpoint") {
		t.Error("after the end: kubelet.sock is there, or the checkpoint is not")
	}
}

func TestStartWithoutDeprecation(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(directory(t), "made")
	b := start(t, deviceplugin.Config{Dir: dir})
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != deviceplugin.SocketName {
		t.Errorf("directory after the start: %v, %v", entries, err)
	}
	if strings.Contains(b.log.String(), "DEPRECATION") {
		t.Error("a warning about a file that is not there")
	}
}

func TestSecondServerIsRefused(t *testing.T) {
	t.Parallel()
	first := start(t, deviceplugin.Config{})
	p := first.registered(script.Config{Devices: devices(t, "a")})
	second := deviceplugin.New(deviceplugin.Config{Dir: first.Dir}, first.Parts)
	if err := second.Run(first.ctx); errdefs.ClassOf(err) != errdefs.Conflict {
		t.Errorf("second server on %s: %v", first.Dir, err)
	}
	if !exists(first.Dir, p.Endpoint) {
		t.Error("the second server removed the plugin's socket")
	}
}

func TestUnusableDirectory(t *testing.T) {
	t.Parallel()
	file := filepath.Join(directory(t), "file")
	write(t, file)
	for dir, class := range map[string]errdefs.Class{
		"relative/dir":                        errdefs.Invalid,
		"/tmp/" + strings.Repeat("long/", 30): errdefs.Invalid,
		file:                                  errdefs.Unavailable,
	} {
		s := deviceplugin.New(deviceplugin.Config{Dir: dir}, deviceplugin.Parts{})
		if err := s.Run(t.Context()); errdefs.ClassOf(err) != class {
			t.Errorf("directory %q: %v (%v), want class %v", dir, err, errdefs.ClassOf(err), class)
		}
	}
}

func TestRegisterAndList(t *testing.T) {
	t.Parallel()
	b := start(t, deviceplugin.Config{})
	p := b.registered(script.Config{Devices: devices(t, "g1@1,g0@0+1,odd@,none,bad!,far@99"), Preferred: true, PreStart: true})
	r := b.untilCounts(gpu, 6, 5)
	want := []device.Device{
		{ID: "bad"},
		{ID: "far", Healthy: true, Topology: true, Alien: true},
		{ID: "g0", Healthy: true, Nodes: numa.Of(0, 1), Topology: true},
		{ID: "g1", Healthy: true, Nodes: numa.Of(1), Topology: true},
		{ID: "none", Healthy: true},
		{ID: "odd", Healthy: true, Topology: true},
	}
	if !slices.Equal(r.Devices, want) {
		t.Errorf("devices\n%+v, want\n%+v", r.Devices, want)
	}
	if r.State != device.Connected || r.Options != (device.Options{Preferred: true, PreStart: true}) {
		t.Errorf("state %v, options %+v", r.State, r.Options)
	}
	if n := len(p.Calls(script.Options)); n != 1 {
		t.Errorf("the plugin was asked for its options %d times", n)
	}

	p.SetHealth("g0", false)
	b.untilCounts(gpu, 6, 4)
	p.SetHealth("g0", true)
	b.untilCounts(gpu, 6, 5)
	p.SetDevices(devices(t, "new")...)
	b.untilCounts(gpu, 1, 1)
	p.SetDevices()
	b.untilCounts(gpu, 0, 0)
	if n := b.mem.times(gpu); n != 1 {
		t.Errorf("remembered %d times in one session", n)
	}
	if _, most := p.Streams(); most != 1 {
		t.Errorf("%d streams at a time", most)
	}
}

// The options in a registration are ignored, as the kubelet does.
func TestOptionsOfTheCallBackCount(t *testing.T) {
	t.Parallel()
	b := start(t, deviceplugin.Config{})
	p := b.plugin(script.Config{Devices: devices(t, "a"), PreStart: true})
	err := p.RegisterAs(b.ctx, &pluginapi.RegisterRequest{
		Version: "v1beta1", ResourceName: gpu, Endpoint: p.Endpoint,
		Options: &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	if r := b.untilCounts(gpu, 1, 1); r.Options != (device.Options{PreStart: true}) {
		t.Errorf("options %+v", r.Options)
	}
}

func TestRefusedRegistrations(t *testing.T) {
	t.Parallel()
	b := start(t, deviceplugin.Config{})
	p := b.plugin(script.Config{Endpoint: "p.sock", Devices: devices(t, "a")})
	for _, row := range []struct {
		name                        string
		version, resource, endpoint string
		want                        string
	}{
		{"version", "v1", gpu, "p.sock", `API version "v1"`},
		{"version in other letters", "V1beta1", gpu, "p.sock", `API version "V1beta1"`},
		{"no version", "", gpu, "p.sock", `API version ""`},
		{"native resource", "v1beta1", "cpu", "p.sock", `the ResourceName "cpu" is invalid`},
		{"no domain", "v1beta1", "foo", "p.sock", `the ResourceName "foo" is invalid`},
		{"Kubernetes' domain", "v1beta1", "kubernetes.io/x", "p.sock", "is invalid"},
		{"below Kubernetes' domain", "v1beta1", "foo.kubernetes.io/x", "p.sock", "is invalid"},
		{"quota", "v1beta1", "requests.foo/x", "p.sock", "is invalid"},
		{"two slashes", "v1beta1", "a/b/c", "p.sock", "is invalid"},
		{"capitals", "v1beta1", "UPPER.io/x", "p.sock", "is invalid"},
		{"no name", "v1beta1", "a.io/", "p.sock", "is invalid"},
		{"endpoint outside", "v1beta1", gpu, "../p.sock", `the Endpoint "../p.sock" is invalid`},
		{"absolute endpoint", "v1beta1", gpu, filepath.Join(b.Dir, "p.sock"), "is invalid"},
		{"the parent", "v1beta1", gpu, "..", "is invalid"},
		{"the parent with a slash", "v1beta1", gpu, "/..", "is invalid"},
		{"outside with a slash", "v1beta1", gpu, "/../p.sock", "is invalid"},
		{"only a slash", "v1beta1", gpu, "//", "is invalid"},
		{"no endpoint", "v1beta1", gpu, "", `the Endpoint "" is invalid`},
		{"the directory", "v1beta1", gpu, "sub/..", "is invalid"},
		{"ourselves", "v1beta1", gpu, "kubelet.sock", "failed to get device plugin options"},
	} {
		err := p.RegisterAs(b.ctx, &pluginapi.RegisterRequest{Version: row.version, ResourceName: row.resource, Endpoint: row.endpoint})
		if err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, want a text with %q", row.name, err, row.want)
		}
	}
	if n := len(p.Calls(script.Options)); n != 0 {
		t.Errorf("a refused plugin was called back %d times", n)
	}
	if _, found := b.inv.Snapshot().Resource(gpu); found {
		t.Error("a refused plugin made a resource")
	}
}

// The kubelet joins whatever it is given to its directory, so a slash before a
// name makes no difference to plugins.
func TestEndpoints(t *testing.T) {
	t.Parallel()
	b := start(t, deviceplugin.Config{})
	p := b.plugin(script.Config{Endpoint: "p.sock", Devices: devices(t, "a")})
	for _, endpoint := range []string{"p.sock", "/p.sock", "//p.sock", "./p.sock", "x/../p.sock"} {
		err := p.RegisterAs(b.ctx, &pluginapi.RegisterRequest{Version: "v1beta1", ResourceName: gpu, Endpoint: endpoint})
		if err != nil {
			t.Errorf("%q: %v", endpoint, err)
		}
	}
}

// Ids are the plugin's own affair: it gets back what it sent, whatever that is. Those that
// are empty, or too long for the ledger, are left out.
func TestStrangeIDs(t *testing.T) {
	t.Parallel()
	b := start(t, deviceplugin.Config{})
	var list []script.Device
	ids := []string{"\x00", "\n", "../..", "a b", "a,b", "ünï", strings.Repeat("x", 500)}
	slices.Sort(ids)
	for _, id := range ids {
		list = append(list, script.Device{ID: id, Nodes: []int64{-1, 0, 0, 1 << 40}})
	}
	unusable := []script.Device{{ID: ""}, {ID: strings.Repeat("y", 1025)}}
	p := b.plugin(script.Config{Devices: append(unusable, list...)})
	if err := p.Register(b.ctx); err != nil {
		t.Fatal(err)
	}
	r := b.untilCounts(gpu, len(ids), len(ids))
	for i, d := range r.Devices {
		if d.ID != ids[i] || d.Nodes != numa.Of(0) || d.Alien {
			t.Errorf("device %d is %+v, want %q near to node 0", i, d, ids[i])
		}
	}
	// The plugin sets a variable to its ids, and no variable can have a zero byte.
	if _, err := b.Allocate(b.ctx, gpu, ids[:1]); err == nil || !strings.Contains(err.Error(), "no container can have") {
		t.Errorf("a variable with a zero byte: %v", err)
	}
	if _, err := b.Allocate(b.ctx, gpu, ids[1:]); err != nil {
		t.Fatal(err)
	}
	if calls := p.Calls(script.Allocate); len(calls) != 2 || !slices.Equal(calls[1].IDs, ids[1:]) {
		t.Errorf("the plugin was asked %+v", calls)
	}
}

// Who registers without serving is waited for, as plugins do so a moment too early.
func TestNobodyServes(t *testing.T) {
	t.Parallel()
	b := start(t, deviceplugin.Config{Deadlines: deviceplugin.Deadlines{Dial: 100 * time.Millisecond}})
	p := b.plugin(script.Config{})
	err := p.RegisterAs(b.ctx, &pluginapi.RegisterRequest{Version: "v1beta1", ResourceName: gpu, Endpoint: "nobody.sock"})
	if err == nil || !strings.Contains(err.Error(), "failed to dial device plugin: no process serves") {
		t.Errorf("%v", err)
	}
	if _, found := b.inv.Snapshot().Resource(gpu); found {
		t.Error("a refused plugin made a resource")
	}
}

// A plugin that fails its options is called once and never appears.
func TestFailingOptions(t *testing.T) {
	t.Parallel()
	for _, how := range []script.Manner{script.Refuse, script.Hang, script.Die} {
		var limits deviceplugin.Deadlines
		if how == script.Hang {
			limits.Options = hanging
		}
		b := start(t, deviceplugin.Config{Deadlines: limits})
		p := b.plugin(script.Config{Devices: devices(t, "a")})
		p.Behave(script.Options, how)
		if err := p.Register(b.ctx); err == nil || !strings.Contains(err.Error(), "failed to get device plugin options") {
			t.Errorf("options %s: %v", how, err)
		}
		// Time may be up before a call has reached a plugin that would hang.
		if n := len(p.Calls(script.Options)); n > 1 || n == 0 && how != script.Hang {
			t.Errorf("options %s: %d calls", how, n)
		}
		if _, found := b.inv.Snapshot().Resource(gpu); found {
			t.Errorf("options %s: the resource is there", how)
		}
	}
}

// A refused newcomer leaves the plugin that is there alone.
func TestRefusedNewcomer(t *testing.T) {
	t.Parallel()
	b := start(t, deviceplugin.Config{})
	old := b.registered(script.Config{Devices: devices(t, "a")})
	newcomer := b.plugin(script.Config{Endpoint: "new.sock", Devices: devices(t, "b")})
	newcomer.Behave(script.Options, script.Refuse)
	if newcomer.Register(b.ctx) == nil {
		t.Fatal("registered")
	}
	old.SetHealth("a", false)
	b.untilCounts(gpu, 1, 0)
}

// A resource has one provider: a plugin for one that a hint provider outside
// serves is told who that is, and leaves nothing behind.
func TestResourceOfAnExternalProvider(t *testing.T) {
	t.Parallel()
	b := start(t, deviceplugin.Config{})
	p := b.plugin(script.Config{Resource: externalProviders, Devices: devices(t, "a")})
	if err := p.Register(b.ctx); err == nil || !strings.Contains(err.Error(), "hint provider cards serves it") {
		t.Errorf("%v, want a refusal that names the provider", err)
	}
	if _, found := b.inv.Snapshot().Resource(externalProviders); found {
		t.Error("a refused plugin made a resource")
	}
}

// TestRememberedBeforeListed: no pod gets devices of a resource that would
// not be known after a crash.
func TestRememberedBeforeListed(t *testing.T) {
	t.Parallel()
	b := start(t, deviceplugin.Config{})
	known := make(chan bool, 1)
	b.mem.during = func() {
		r, ok := b.inv.Snapshot().Resource(gpu)
		known <- ok && r.Capacity() > 0
	}
	p := b.registered(script.Config{Devices: devices(t, "a"), PreStart: true})
	if <-known {
		t.Error("the devices were there before the resource was remembered")
	}
	b.mem.mu.Lock()
	last := b.mem.last
	b.mem.mu.Unlock()
	if last.Name != p.Resource || !last.PreStart || last.LastSeen.IsZero() {
		t.Errorf("remembered is %+v", last)
	}
}

// A panic in the handler is that one registration's error: the plugins that are here
// are served on, and others can register.
func TestPanicInTheHandler(t *testing.T) {
	t.Parallel()
	b := start(t, deviceplugin.Config{})
	b.registered(script.Config{Devices: devices(t, "a,b")})
	p := b.plugin(script.Config{Resource: panics})
	if err := p.Register(b.ctx); err == nil || !strings.Contains(err.Error(), "panic in berthd, see its log: the observer was told to") {
		t.Errorf("register: %v", err)
	}
	if !strings.Contains(b.log.String(), "goroutine") {
		t.Errorf("the log does not say where:\n%s", b.log)
	}
	if _, err := b.Allocate(b.ctx, gpu, []string{"a"}); err != nil {
		t.Errorf("the plugin that is here: %v", err)
	}
	b.registered(script.Config{Resource: "example.com/nic", Devices: devices(t, "n")})
}

func TestReturnWithinGrace(t *testing.T) {
	t.Parallel()
	b := start(t, deviceplugin.Config{})
	p := b.registered(script.Config{Devices: devices(t, "a,b")})
	p.Die()
	p.Wait()
	if r := b.untilCounts(gpu, 2, 0); r.State != device.Stopped {
		t.Errorf("after its death: %v", r.State)
	}
	again := b.plugin(script.Config{Devices: devices(t, "a,c,d")})
	b.register(again)
	if r := b.untilCounts(gpu, 3, 3); r.State != device.Connected {
		t.Errorf("after its return: %v", r.State)
	}
	if n := b.mem.times(gpu); n != 3 {
		t.Errorf("remembered %d times, want at both lists and at the death", n)
	}
}

// A stream that ends, whatever way, ends the session; it is not opened again.
func TestStreamEnds(t *testing.T) {
	t.Parallel()
	for _, how := range []script.Manner{script.End, script.Refuse, script.Garbage, script.Die} {
		b := start(t, deviceplugin.Config{})
		p := b.registered(script.Config{Devices: devices(t, "a")})
		p.Behave(script.ListAndWatch, how)
		b.until(gpu, "stopped", func(r *device.Resource) bool {
			return r.State == device.Stopped && r.Capacity() == 1 && r.Allocatable() == 0
		})
		if _, most := p.Streams(); most != 1 {
			t.Errorf("%s: %d streams", how, most)
		}
	}
}

func TestStreamFailsAtOnce(t *testing.T) {
	t.Parallel()
	b := start(t, deviceplugin.Config{})
	p := b.plugin(script.Config{Devices: devices(t, "a")})
	p.Behave(script.ListAndWatch, script.Refuse)
	if err := p.Register(b.ctx); err != nil {
		t.Fatal(err)
	}
	b.until(gpu, "known and stopped", func(r *device.Resource) bool {
		return r.State == device.Stopped && r.Capacity() == 0
	})
}

// The same process registers again while its stream is alive: the old stream has
// ended before the new one begins.
func TestSamePluginAgain(t *testing.T) {
	t.Parallel()
	b := start(t, deviceplugin.Config{})
	p := b.registered(script.Config{Devices: devices(t, "a")})
	for n := 2; n <= 5; n++ {
		if err := p.Register(b.ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Await(b.ctx, script.ListAndWatch, n); err != nil {
			t.Fatal(err)
		}
	}
	p.SetHealth("a", false)
	b.untilCounts(gpu, 1, 0)
	if err := p.AwaitStreams(b.ctx, 1); err != nil {
		now, _ := p.Streams()
		t.Errorf("%d streams are open", now)
	}
}

// Two plugins on one resource: the newer one counts, and the death of the older
// changes nothing (kubernetes#121994, kubernetes#127803).
func TestTwoPlugins(t *testing.T) {
	t.Parallel()
	b := start(t, deviceplugin.Config{})
	old := b.registered(script.Config{Endpoint: "old.sock", Devices: devices(t, "a,b")})
	newer := b.registered(script.Config{Endpoint: "new.sock", Devices: devices(t, "a,b,c")})
	old.SetDevices(devices(t, "z")...)
	old.Stop()
	old.Wait()
	newer.SetHealth("c", false)
	if r := b.untilCounts(gpu, 3, 2); r.State != device.Connected {
		t.Errorf("state %v", r.State)
	}
	if _, err := b.Allocate(b.ctx, gpu, []string{"a"}); err != nil {
		t.Error(err)
	}
	if len(newer.Calls(script.Allocate)) != 1 || len(old.Calls(script.Allocate)) != 0 {
		t.Error("the older plugin was asked")
	}
}

// Plugins notice a restart of the server by either signal.
func TestServerRestart(t *testing.T) {
	t.Parallel()
	for _, signal := range []script.Signal{script.OwnSocket, script.ServerSocket, script.BothSignals} {
		first := start(t, deviceplugin.Config{})
		p := script.New(script.Config{Dir: first.Dir, Resource: gpu, Devices: devices(t, "a,b"), Signal: signal})
		done := make(chan error, 1)
		t.Cleanup(func() {
			p.Stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		go func() { done <- p.Run(first.ctx) }()
		first.untilCounts(gpu, 2, 2)
		if err := first.stop(); err != nil {
			t.Fatal(err)
		}
		if r, _ := first.inv.Snapshot().Resource(gpu); r.State != device.Connected || r.Allocatable() != 2 {
			t.Errorf("%s: berth's own end counts as the plugin's: %v", signal, r.State)
		}

		seen := []ledger.SeenResource{{Name: gpu}}
		// A plugin that noticed one sign registers, it may be just when the server that
		// starts removes its new socket. That is not served any more, and the plugin
		// learns it with the end of the call, and registers again.
		again := deviceplugin.Config{Dir: first.Dir, Deadlines: deviceplugin.Deadlines{Dial: time.Second}}
		second := startWith(t, again, device.NewInventory(seen, time.Now()), time.Now)
		if _, ok := second.inv.Snapshot().Resource(gpu); !ok {
			t.Errorf("%s: the resource is not known after the restart", signal)
		}
		second.untilCounts(gpu, 2, 2)
	}
}

func TestGraceEnds(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	inv := device.NewInventory([]ledger.SeenResource{{Name: gpu}}, begin)
	now := func() time.Time { return begin.Add(device.Grace + time.Second) }
	b := startWith(t, deviceplugin.Config{}, inv, now)
	b.until(gpu, "expired", func(r *device.Resource) bool { return r.State == device.Expired })

	// And it comes back.
	b.registered(script.Config{Devices: devices(t, "a")})
}

// A list may have almost 4 MiB, as with the kubelet. A longer one ends the session.
func TestLongList(t *testing.T) {
	t.Parallel()
	b := start(t, deviceplugin.Config{})
	long := strings.Repeat("x", 1000)
	var list []script.Device
	for i := range 4000 {
		list = append(list, script.Device{ID: long + string(rune('a'+i%26)) + time.Duration(i).String()})
	}
	b.registered(script.Config{Devices: list})
	b.untilCounts(gpu, 4000, 4000)

	short := start(t, deviceplugin.Config{MaxListBytes: 1000})
	p := short.plugin(script.Config{Devices: list[:2]})
	if err := p.Register(short.ctx); err != nil {
		t.Fatal(err)
	}
	short.until(gpu, "stopped", func(r *device.Resource) bool { return r.State == device.Stopped })
}
