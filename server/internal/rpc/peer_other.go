//go:build !linux

package rpc

import (
	"errors"
	"syscall"
)

func peerOf(syscall.Conn) (Peer, error) {
	return Peer{}, errors.New("peer credentials are only supported on Linux")
}
