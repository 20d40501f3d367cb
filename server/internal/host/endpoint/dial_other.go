//go:build !linux

package endpoint

import (
	"context"
	"net"

	"github.com/berthd/berth/managers/errdefs"
)

// Dial connects to the unix socket at a path if a user's process serves it. Only Linux reports
// that.
func Dial(context.Context, string, uint32) (net.Conn, error) {
	return nil, errdefs.Unsupportedf("who serves a socket is known on Linux only")
}

// Server is not supported.
func Server(context.Context, string) (int, error) {
	return 0, errdefs.Unsupportedf("who serves a socket is known on Linux only")
}
