package deviceplugin_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fsnotify/fsnotify"

	"github.com/berthd/berth/hack/testing/script"
	"github.com/berthd/berth/server/internal/deviceplugin"
)

// watching calls react for every event in a directory, until the test ends or react
// reports that it is done.
func watching(t *testing.T, dir string, react func(fsnotify.Event) (done bool)) {
	t.Helper()
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	if err := watcher.Add(dir); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for e := range watcher.Events {
			if react(e) {
				return
			}
		}
	}()
	t.Cleanup(func() { _ = watcher.Close(); <-ended })
}

// TestPluginThatDialsAtOnce replaces plugins that watch for the creation of
// exactly kubelet.sock, then make their own socket again and dial at once, once: what
// they find has to answer, and their own old socket has to be gone by then, since
// others look at that.
func TestPluginThatDialsAtOnce(t *testing.T) {
	t.Parallel()
	dir := directory(t)
	p := script.New(script.Config{Dir: dir, Resource: gpu, Devices: devices(t, "a,b")})
	t.Cleanup(func() { p.Stop(); p.Wait() })
	registered := make(chan error, 2)
	watching(t, dir, func(e fsnotify.Event) bool {
		if !e.Has(fsnotify.Create) || e.Name != filepath.Join(dir, deviceplugin.SocketName) {
			return false
		}
		if _, err := os.Lstat(p.Socket()); !errors.Is(err, fs.ErrNotExist) {
			registered <- errors.New("its old socket is still there")
			return false
		}
		p.Stop()
		if err := p.Serve(); err != nil {
			registered <- err
			return false
		}
		registered <- p.Register(t.Context())
		return false
	})
	for range 2 {
		b := start(t, deviceplugin.Config{Dir: dir})
		if err := <-registered; err != nil {
			t.Fatalf("%v\n%s", err, b.log)
		}
		b.untilCounts(gpu, 2, 2)
		if err := b.stop(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPluginThatRefusesToDouble replaces plugins that start again when their own
// socket is removed or renamed, and refuse to while another process answers there.
func TestPluginThatRefusesToDouble(t *testing.T) {
	t.Parallel()
	dir := directory(t)
	first := start(t, deviceplugin.Config{Dir: dir})
	p := first.registered(script.Config{Devices: devices(t, "a,b")})
	restarted := make(chan error, 1)
	watching(t, dir, func(e fsnotify.Event) bool {
		if e.Name != p.Socket() || !e.Has(fsnotify.Remove) && !e.Has(fsnotify.Rename) {
			return false
		}
		if conn, err := net.Dial("unix", p.Socket()); err == nil {
			_ = conn.Close()
			restarted <- errors.New("somebody answers at its socket")
			return true
		}
		p.Stop()
		restarted <- p.Serve()
		return true
	})
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	b := start(t, deviceplugin.Config{Dir: dir})
	if err := <-restarted; err != nil {
		t.Fatal(err)
	}
	b.register(p)
	if _, err := b.Allocate(b.ctx, gpu, []string{"a"}); err != nil {
		t.Error(err)
	}
}

// TestManyDevices: one call has all ids of a container, however many, and a plugin
// without the option is not called for them.
func TestManyDevices(t *testing.T) {
	t.Parallel()
	var list []string
	for i := range 1000 {
		list = append(list, fmt.Sprintf("GPU-%08d-4b1c-11ee-be56-0242ac120002::%d", i, i%7))
	}
	b := start(t, deviceplugin.Config{})
	p := b.registered(script.Config{Devices: devices(t, strings.Join(list, ","))})
	if err := b.admission(p, int64(len(list))).run(); err != nil {
		t.Fatal(err)
	}
	if calls := p.Calls(script.Allocate, script.Preferred); len(calls) != 1 || len(calls[0].IDs) != len(list) {
		t.Errorf("%d calls", len(calls))
	}
}
