package rpc

import (
	"context"
	"fmt"
	"net"
	"slices"
	"syscall"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// Peer is the caller's process at the time of its connection.
type Peer struct {
	UID, GID uint32
	PID      int32
	// Groups are its supplementary groups; empty if the kernel does not report them.
	Groups []uint32
	// Name is the kernel's name of the process, which the process can choose; empty if it is
	// not known.
	Name string
	// Page is true for berthd's page, which makes calls for users of HTTP.
	Page bool
}

// in reports whether the peer is of a group.
func (p Peer) in(gid uint32) bool { return p.GID == gid || slices.Contains(p.Groups, gid) }

// String names the peer for logs and refusals.
func (p Peer) String() string {
	if p.Page {
		return "page"
	}
	return fmt.Sprintf("uid %d, gid %d, pid %d", p.UID, p.GID, p.PID)
}

// AuthType names how the peer was identified.
func (Peer) AuthType() string { return "SO_PEERCRED" }

// PeerOf returns the caller; false if the transport does not report it.
func PeerOf(ctx context.Context) (Peer, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return Peer{}, false
	}
	return peerIn(p.AuthInfo)
}

// peerIn returns the peer in what identified a connection.
func peerIn(info credentials.AuthInfo) (Peer, bool) {
	switch who := info.(type) {
	case Peer:
		return who, true
	case link:
		return who.Peer, true
	case visitor:
		return peerIn(who.AuthInfo)
	}
	return Peer{}, false
}

// linkOf returns the counted connection of a call, false if it is not counted.
func linkOf(ctx context.Context) (link, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return link{}, false
	}
	info := p.AuthInfo
	if v, ok := info.(visitor); ok {
		info = v.AuthInfo
	}
	l, ok := info.(link)
	return l, ok
}

// peerCredentials reads the peer of each connection from the kernel.
type peerCredentials struct{}

// PeerCredentials are transport credentials for unix sockets. They encrypt nothing. The kernel
// identifies the peer (unix(7), SO_PEERCRED).
func PeerCredentials() credentials.TransportCredentials { return peerCredentials{} }

func (peerCredentials) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	who, err := PeerOfConn(c)
	if err != nil {
		return nil, nil, err
	}
	return c, who, nil
}

// PeerOfConn returns the process that has connected to a unix socket.
func PeerOfConn(c net.Conn) (Peer, error) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return Peer{}, fmt.Errorf("connection of type %T has no file descriptor, so its peer is unknown", c)
	}
	who, err := peerOf(sc)
	if err != nil {
		return Peer{}, fmt.Errorf("read the peer from the kernel: %w", err)
	}
	return who, nil
}

func (peerCredentials) ClientHandshake(_ context.Context, _ string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return c, nil, nil
}

func (peerCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "local"}
}

func (peerCredentials) Clone() credentials.TransportCredentials { return peerCredentials{} }

func (peerCredentials) OverrideServerName(string) error { return nil }
