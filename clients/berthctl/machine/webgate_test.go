package machine

import (
	"net"
	"strings"
	"testing"
)

// TestWebListensOnBoth: the port of both loopback addresses is berthctl's, or none: another user on one of them would get
// what ssh forwards to localhost.
func TestWebListensOnBoth(t *testing.T) {
	t.Parallel()
	l, err := listenLoopback(t.Context(), "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	closeAll(l)
	if at := l[0].Addr().String(); !strings.HasPrefix(at, "127.0.0.1:") {
		t.Errorf("the link would have %s", at)
	}
	other, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skipf("this machine has no ::1: %v", err)
	}
	defer other.Close()
	_, port, _ := net.SplitHostPort(other.Addr().String())
	for _, host := range []string{"localhost", "127.0.0.1", "127.0.0.9"} {
		if l, err := listenLoopback(t.Context(), net.JoinHostPort(host, port)); err == nil ||
			!strings.Contains(err.Error(), "both loopback addresses are needed") {
			closeAll(l)
			t.Errorf("%s beside another listener on ::1: %v", host, err)
		}
	}
	// None is left open.
	again, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Close()
}

// TestWebGate: when there are too many connections, the oldest without a login is closed.
func TestWebGate(t *testing.T) {
	t.Parallel()
	g := &gate{most: 2}
	enter := func(known bool) (*entered, *entered) {
		near, far := net.Pipe()
		t.Cleanup(func() { _ = far.Close() })
		e := &entered{Conn: near, gate: g, known: known}
		return e, g.enter(e)
	}
	first, out := enter(true)
	if out != nil {
		t.Fatal("the first connection")
	}
	second, _ := enter(false)
	third, out := enter(true)
	if out != second {
		t.Errorf("%v is closed, not the oldest without a login", out)
	}
	_ = out.Close()
	if fourth, out := enter(false); out != fourth {
		t.Error("the newest is closed if all others have a login")
	} else {
		_ = out.Close()
	}
	_ = first.Close()
	_ = third.Close()
	if len(g.open) != 0 {
		t.Errorf("%d are left", len(g.open))
	}
}
