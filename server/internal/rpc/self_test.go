package rpc_test

import (
	"os"

	"github.com/berthd/berth/server/internal/rpc"
)

// self is the test process as a peer.
func self() rpc.Peer {
	return rpc.Peer{UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), PID: int32(os.Getpid())}
}
