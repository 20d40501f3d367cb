package socket_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/socket"
)

func listen(t *testing.T, path string) net.Listener {
	t.Helper()
	l, err := socket.Listen(path, socket.Options{Mode: 0o600})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func reachable(path string) bool {
	c, err := net.Dial("unix", path)
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}

func TestListenMakesDirectoryAndSocket(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "sub", "b.sock")
	l := listen(t, path)
	if !reachable(path) {
		t.Fatal("nobody answers")
	}
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("mode %v, %v; want 0600", info.Mode(), err)
	}
	if got := l.Addr().String(); got != path {
		t.Errorf("address %s, want %s", got, path)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestListenTakesOverStaleSocket(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "b.sock")
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	if err := stale.Close(); err != nil {
		t.Fatal(err)
	}
	if reachable(path) {
		t.Fatal("the stale socket answers")
	}
	listen(t, path)
	if !reachable(path) {
		t.Fatal("the new socket does not answer")
	}
}

func TestCloseLeavesASuccessorAlone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "b.sock")
	old := listen(t, path)
	listen(t, path+"2")
	if err := os.Rename(path+"2", path); err != nil {
		t.Fatal(err)
	}
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	if !reachable(path) {
		t.Fatal("closing the old socket removed the new one")
	}
}

func TestListenRefusesALiveSocket(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"unix", "unixgram"} {
		path := filepath.Join(t.TempDir(), "b.sock")
		if kind == "unix" {
			listen(t, path)
		} else {
			c, err := net.ListenUnixgram(kind, &net.UnixAddr{Name: path, Net: kind})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
		}
		before, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := socket.Listen(path, socket.Options{}); errdefs.ClassOf(err) != errdefs.Conflict ||
			!strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v; want class conflict with the path", kind, err)
		}
		if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) {
			t.Errorf("%s: the socket was replaced: %v", kind, err)
		}
	}
}

func TestListenRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	long := "/" + strings.Repeat("x", 102)
	for name, c := range map[string]struct{ path, want string }{
		"relative": {"b.sock", "absolute"},
		"too long": {long, "103 bytes and 5 for the name it is made under are 108, but the kernel takes at most 107"},
		"a file":   {file, "no socket"},
	} {
		_, err := socket.Listen(c.path, socket.Options{})
		if errdefs.ClassOf(err) != errdefs.Invalid || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want class invalid with %q", name, err, c.want)
		}
	}
	if err := socket.CheckPath(long[:102]); err != nil {
		t.Errorf("a path of 102 bytes: %v", err)
	}
}
