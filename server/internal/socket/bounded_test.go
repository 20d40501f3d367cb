package socket_test

import (
	"errors"
	"net"
	"path/filepath"
	"testing"

	"github.com/berthd/berth/server/internal/socket"
)

// TestBounded: as many connections as there is room for, the next when one has gone,
// and none after the end.
func TestBounded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.sock")
	inner, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	const room = 3
	l := socket.Bounded(inner, room)
	accepted := make(chan net.Conn)
	failed := make(chan error, 1)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				failed <- err
				return
			}
			accepted <- c
		}
	}()
	for range room + 2 {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	var open []net.Conn
	for range room {
		open = append(open, <-accepted)
	}
	select {
	case <-accepted:
		t.Error("accepted more than there is room for")
	default:
	}
	for range 2 {
		if err := open[0].Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Fatal(err)
		}
	}
	open[0] = <-accepted
	select {
	case <-accepted:
		t.Error("one that was closed twice made room for two")
	default:
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; !errors.Is(err, net.ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
	for _, c := range open {
		_ = c.Close()
	}
}
