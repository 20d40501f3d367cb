package machine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"github.com/berthd/berth/clients/internal/command"
)

// portTries is how often another free port is tried that is free on both loopback addresses.
const portTries = 16

// listenLoopback listens on an address of this machine only, and on the same port of both loopback addresses. ssh and
// browsers try one after the other for localhost: another user who listens on one of them would get the link. The
// first listener is that of the link.
func listenLoopback(ctx context.Context, address string) ([]net.Listener, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("--listen %s: %w", address, err)
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}
	first, err := netip.ParseAddr(host)
	if err != nil || !first.IsLoopback() {
		return nil, command.Usagef("web", "--listen %s: expected an address of this machine only, such as 127.0.0.1:8087", address)
	}
	for try := 1; ; try++ {
		listeners, err := listenAll(ctx, first, port)
		if err == nil {
			return listeners, nil
		}
		if number, _ := net.LookupPort("tcp", port); number != 0 || try == portTries {
			return nil, fmt.Errorf("--listen %s: both loopback addresses are needed, because browsers and ssh may use either: %w; name another port",
				address, err)
		}
	}
}

// listenAll listens on one port of the first address and of the loopback addresses, those that this machine has.
func listenAll(ctx context.Context, first netip.Addr, port string) (listeners []net.Listener, err error) {
	defer func() {
		if err != nil {
			closeAll(listeners)
			listeners = nil
		}
	}()
	addresses := []netip.Addr{first}
	for _, a := range []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()} {
		if a != first {
			addresses = append(addresses, a)
		}
	}
	for i, a := range addresses {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(a.String(), port))
		if i > 0 && (errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT)) {
			continue // nobody else can listen there either
		}
		if err != nil {
			return listeners, err
		}
		listeners = append(listeners, l)
		if at, ok := l.Addr().(*net.TCPAddr); ok {
			port = strconv.Itoa(at.Port)
		}
	}
	return listeners, nil
}

func closeAll(listeners []net.Listener) {
	for _, l := range listeners {
		_ = l.Close()
	}
}
