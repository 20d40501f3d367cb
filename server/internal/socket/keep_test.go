package socket

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/errdefs"
)

// kept is a socket whose server answers every connection with a byte.
type kept struct {
	*Keeper
	t     *testing.T
	path  string
	ended chan error

	mu        sync.Mutex
	log       bytes.Buffer
	listeners []net.Listener
	stopped   bool
}

func (k *kept) Write(p []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.log.Write(p)
}

func (k *kept) text() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.log.String()
}

func keep(t *testing.T) *kept {
	t.Helper()
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	k := &kept{t: t, path: filepath.Join(dir, "run", "b.sock"), ended: make(chan error, 1)}
	k.Keeper, err = Keep(k.path, Options{DirMode: 0o711, Mode: 0o606}, slog.New(slog.NewTextHandler(k, nil)))
	if err != nil {
		t.Fatal(err)
	}
	k.every = time.Millisecond
	go func() { k.ended <- k.Serve(k.serve) }()
	t.Cleanup(func() { k.stop(); k.ended <- <-k.ended })
	return k
}

func (k *kept) serve(l net.Listener) error {
	k.mu.Lock()
	k.listeners = append(k.listeners, l)
	if k.stopped {
		_ = l.Close()
	}
	k.mu.Unlock()
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		_, _ = c.Write([]byte("x"))
		go func() { _, _ = c.Read(make([]byte, 1)); _ = c.Close() }()
	}
}

// stop closes the listeners, as a server does that ends, and each that it is given later.
func (k *kept) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stopped = true
	for _, l := range k.listeners {
		_ = l.Close()
	}
}

// until waits for a condition.
func (k *kept) until(what string, done func() bool) {
	k.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	late := time.NewTimer(time.Minute)
	defer late.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-late.C:
			k.t.Fatalf("waited in vain: %s\n%s", what, k.text())
		}
	}
}

// answers reports whether the server is reached by the path.
func (k *kept) answers() bool {
	c, err := net.Dial("unix", k.path)
	if err != nil {
		return false
	}
	defer c.Close()
	n, _ := c.Read(make([]byte, 1))
	return n == 1
}

// removeDirectory removes a directory in one step. The keeper can create the socket again between the steps of os.RemoveAll.
func removeDirectory(dir string) error {
	away := dir + ".away"
	return errors.Join(os.Rename(dir, away), os.RemoveAll(away))
}

// TestRemovedSocketsComeBack: with the same permissions, as often as they are removed, and connections stay.
func TestRemovedSocketsComeBack(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(path string) error{
		"removed":           os.Remove,
		"renamed":           func(path string) error { return os.Rename(path, path+".away") },
		"directory removed": func(path string) error { return removeDirectory(filepath.Dir(path)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := keep(t)
			old, err := net.Dial("unix", k.path)
			if err != nil {
				t.Fatal(err)
			}
			defer old.Close()
			if _, err := old.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if err := remove(k.path); err != nil {
					t.Fatal(err)
				}
				k.until("the socket is back", k.answers)
				info, err := os.Lstat(k.path)
				if err != nil || info.Mode() != fs.ModeSocket|0o606 {
					t.Errorf("it is back as %v, %v", info.Mode(), err)
				}
				dir, err := os.Stat(filepath.Dir(k.path))
				if err != nil || dir.Mode().Perm() != 0o711 {
					t.Errorf("its directory is back as %v, %v", dir.Mode(), err)
				}
				if err := k.Problem(); err != nil {
					t.Error(err)
				}
			}
			if err := old.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
				t.Error(err)
			}
			if _, err := old.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("a connection of before ended: %v", err)
			}
			k.stop()
			<-k.ended
			k.ended <- nil
			if _, err := os.Lstat(k.path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("left behind: %v", err)
			}
		})
	}
}

// TestReplacedSocketIsLeftAlone: what another program has put there is reported once and stays; when it goes the socket is
// back.
func TestReplacedSocketIsLeftAlone(t *testing.T) {
	t.Parallel()
	k := keep(t)
	k.until("the socket answers", k.answers)
	other := filepath.Join(filepath.Dir(k.path), "other.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: other, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	l.SetUnlinkOnClose(false)
	if err := os.Rename(other, k.path); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := k.Problem(); errdefs.ClassOf(err) != errdefs.Conflict ||
			!strings.Contains(err.Error(), "another program replaced socket "+k.path) {
			t.Errorf("the problem is %v", err)
		}
	}
	c, err := net.Dial("unix", k.path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := l.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Accept(); err != nil {
		t.Errorf("the other's socket does not reach the other: %v", err)
	}
	if err := os.Remove(k.path); err != nil {
		t.Fatal(err)
	}
	k.until("the socket is back", k.answers)
	if err := k.Problem(); err != nil {
		t.Error(err)
	}
	if text := k.text(); strings.Count(text, "by a file, so clients") != 1 || strings.Count(text, "is in place again") != 1 {
		t.Errorf("the log says\n%s", text)
	}
}

// TestSocketThatCannotBeMadeAgain: the reason is known, and it comes back when it can.
func TestSocketThatCannotBeMadeAgain(t *testing.T) {
	t.Parallel()
	k := keep(t)
	dir := filepath.Dir(k.path)
	file := dir + ".file"
	if err := errors.Join(os.WriteFile(file, nil, 0o600),
		unix.Renameat2(unix.AT_FDCWD, file, unix.AT_FDCWD, dir, unix.RENAME_EXCHANGE), os.RemoveAll(file)); err != nil {
		t.Fatal(err)
	}
	k.until("it is told", func() bool {
		err := k.Problem()
		return err != nil && strings.Contains(err.Error(), "not a directory")
	})
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	k.until("the socket is back", k.answers)
	k.until("nothing is wrong any more", func() bool { return k.Problem() == nil })
	if text := k.text(); strings.Count(text, "is not in place") > 2 || strings.Count(text, "is in place again") != 1 {
		t.Errorf("the log says\n%s", text)
	}
}

// TestServeEndsWithItsServer: a server that fails, or that ends, ends Serve; the socket does not come back then.
func TestServeEndsWithItsServer(t *testing.T) {
	t.Parallel()
	k := keep(t)
	k.until("it serves", k.answers)
	k.stop()
	if err := <-k.ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v", err)
	}
	k.ended <- nil
	if k.answers() || k.Problem() != nil {
		t.Errorf("it answers: %v; problem %v", k.answers(), k.Problem())
	}
}

// TestSetModeWhileMadeAgain: the mode is set while the socket is created again. The socket gets the new mode, however both are ordered.
func TestSetModeWhileMadeAgain(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "b.sock")
	k, err := Keep(path, Options{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	for i := range 300 {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		mode := []os.FileMode{0o660, 0o600}[i%2]
		var both sync.WaitGroup
		both.Go(func() { k.restore() })
		both.Go(func() {
			if err := k.SetMode(mode); err != nil {
				t.Error(err)
			}
		})
		both.Wait()
		if info, err := os.Lstat(path); err != nil || info.Mode().Perm() != mode {
			t.Fatalf("round %d: %v, %v, want mode %#o", i, info, err, mode)
		}
	}
}

// TestSetModeOfForeignFile: a file that another program has put in the place of the socket, also a link, keeps its mode.
func TestSetModeOfForeignFile(t *testing.T) {
	t.Parallel()
	k := keep(t)
	k.until("the socket answers", k.answers)
	other := filepath.Join(filepath.Dir(k.path), "other")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	link := other + ".link"
	if err := errors.Join(os.Symlink(other, link), os.Rename(link, k.path)); err != nil {
		t.Fatal(err)
	}
	if err := k.SetMode(0o666); err != nil {
		t.Error(err)
	}
	if info, err := os.Lstat(other); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v: the file of another program has another mode", info, err)
	}
}
