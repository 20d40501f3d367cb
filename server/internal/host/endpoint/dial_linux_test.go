package endpoint_test

import (
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/host/endpoint"
)

// listen serves a socket whose connections are closed at once, and makes it a user's.
func listen(t *testing.T, path string, uid int) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, uid, -1); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
}

func TestDial(t *testing.T) {
	t.Parallel()
	dir, self := t.TempDir(), os.Getuid()
	if len(dir) > 80 {
		dir = short(t)
	}
	own := filepath.Join(dir, "own")
	listen(t, own, self)
	file, link, stale := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "stale")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(own, link); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	for _, row := range []struct {
		name, path string
		uid        int
		ok         bool
		class      errdefs.Class
	}{
		{"own", own, self, true, 0},
		{"own, by a link", link, self, true, 0},
		{"another's", own, self + 1, false, errdefs.PermissionDenied},
		{"no socket", file, self, false, errdefs.PermissionDenied},
		{"nothing", filepath.Join(dir, "nothing"), self, false, errdefs.PermissionDenied},
		{"nobody listens", stale, self, false, errdefs.Internal},
	} {
		c, err := endpoint.Dial(t.Context(), row.path, uint32(row.uid))
		if row.ok != (err == nil) || err != nil && errdefs.ClassOf(err) != row.class {
			t.Errorf("%s: %v", row.name, err)
		}
		if c != nil {
			_ = c.Close()
		}
	}
}

// short makes a directory whose sockets have paths that the kernel takes (unix(7)).
func short(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "endpoint")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// TestDialRace exchanges a user's own socket with a link to root's while it is dialled: no
// connection is one to root's.
func TestDialRace(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skipf("needs root, which can give files to other users: this is user %d", os.Getuid())
	}
	const user = 64110
	dir := short(t)
	roots, theirs, path := filepath.Join(dir, "roots"), filepath.Join(dir, "theirs"), filepath.Join(dir, "path")
	listen(t, roots, 0)
	listen(t, theirs, user) // and root serves it, so no connection is right
	stop := make(chan struct{})
	var swapping sync.WaitGroup
	swapping.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			next := filepath.Join(dir, "next")
			_ = os.Symlink([]string{roots, theirs}[i%2], next)
			_ = os.Rename(next, path)
		}
	})
	for range 2000 {
		c, err := endpoint.Dial(t.Context(), path, user)
		if err == nil {
			_ = c.Close()
			t.Error("connected")
			break
		}
		if errdefs.ClassOf(err) != errdefs.PermissionDenied {
			t.Errorf("%v", err)
			break
		}
	}
	close(stop)
	swapping.Wait()
}

func TestServer(t *testing.T) {
	t.Parallel()
	path := filepath.Join(short(t), "own")
	listen(t, path, os.Getuid())
	if pid, err := endpoint.Server(t.Context(), path); pid != os.Getpid() || err != nil {
		t.Errorf("process %d, %v, want %d", pid, err, os.Getpid())
	}
	if _, err := endpoint.Server(t.Context(), path+"-not"); errdefs.ClassOf(err) != errdefs.Unavailable {
		t.Errorf("nobody: %v", err)
	}
}
