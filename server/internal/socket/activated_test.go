package socket

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// held is a socket that something else made and keeps, as systemd does.
func held(t *testing.T) (path string, made *net.UnixListener, pass func() *net.UnixListener) {
	t.Helper()
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path = filepath.Join(dir, "b.sock")
	made, err = net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	made.SetUnlinkOnClose(false)
	t.Cleanup(func() { _ = made.Close() })
	return path, made, func() *net.UnixListener {
		f, err := made.File()
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		l, err := net.FileListener(f)
		if err != nil {
			t.Fatal(err)
		}
		return l.(*net.UnixListener)
	}
}

// one reads a byte from a connection.
func one(t *testing.T, c net.Conn) string {
	t.Helper()
	var b [1]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		t.Fatal(err)
	}
	return string(b[:])
}

// TestActivated: two keepers, one after the other, serve a socket that stays. A connection of
// the time between waits for the second; the end of the first waits for what it has taken.
func TestActivated(t *testing.T) {
	t.Parallel()
	path, _, pass := held(t)
	log := slog.New(slog.DiscardHandler)
	serve := func(name string, taken chan<- net.Conn) (*Keeper, <-chan error) {
		k := New(path, Options{Mode: 0o604}, log)
		if err := k.Listen(pass()); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			ended <- k.Serve(func(l net.Listener) error {
				for {
					c, err := l.Accept()
					if err != nil {
						return err
					}
					taken <- c
				}
			})
		}()
		return k, ended
	}
	taken := make(chan net.Conn)
	first, ended := serve("1", taken)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o604 {
		t.Errorf("mode %v, %v, want 0604", info.Mode(), err)
	}
	before, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	connection := <-taken
	drained := make(chan error, 1)
	go func() { drained <- first.Drain(t.Context()) }()
	if err := <-ended; err != nil {
		t.Errorf("the first keeper ended with %v", err)
	}
	between, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer between.Close()
	select {
	case err := <-drained:
		t.Fatalf("the end did not wait for a connection that was taken: %v", err)
	default:
	}
	if _, err := connection.Write([]byte("1")); err != nil {
		t.Fatal(err)
	}
	if err := <-drained; err != nil {
		t.Error(err)
	}
	if got := one(t, before); got != "1" {
		t.Error(got)
	}
	_ = connection.Close()
	if err := first.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}

	second, ended := serve("2", taken)
	connection = <-taken
	if _, err := connection.Write([]byte("2")); err != nil {
		t.Fatal(err)
	}
	if got := one(t, between); got != "2" {
		t.Error(got)
	}
	_ = connection.Close()
	if err := second.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	<-ended
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the file of the socket is gone: %v", err)
	}
}

// TestDrainIsBounded: a connection that nothing is written to does not hold the end up for ever.
func TestDrainIsBounded(t *testing.T) {
	t.Parallel()
	path, _, pass := held(t)
	k := New(path, Options{}, slog.New(slog.DiscardHandler))
	if err := k.Listen(pass()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := k.Drain(ctx); err == nil {
		t.Error("it was drained although it was never served")
	}
	own := keep(t)
	if err := own.Drain(ctx); err != nil {
		t.Errorf("a socket of berthd's own has to wait: %v", err)
	}
	own.until("the socket answers", own.answers)
}

// TestActivatedFileIsGone: a socket that cannot be reached is made again, and the log has a line.
func TestActivatedFileIsGone(t *testing.T) {
	t.Parallel()
	path, _, pass := held(t)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	k := New(path, Options{}, slog.New(slog.NewTextHandler(&log, nil)))
	if err := k.Listen(pass()); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "restart the socket unit") {
		t.Errorf("the log says %q", &log)
	}
	if err := k.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); err == nil {
		t.Error("berthd's own socket was not removed")
	}
}
