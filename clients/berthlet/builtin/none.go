//go:build !linux || !cgo

package builtin

import (
	"context"

	"github.com/berthd/berth/clients/berthlet/container"
	"github.com/berthd/berth/managers/errdefs"
)

// Runtime is not there in this build.
type Runtime struct{ container.Runtime }

// Child reports whether the process was started to be something else than its main
// function: never, in this build.
func Child() bool { return false }

// New returns an error of class Unsupported.
func New(Options) (*Runtime, error) {
	return nil, errdefs.Unsupportedf("this berthlet was built without cgo or not for Linux, so it has no built-in container runtime; name one that is installed with --runtime-endpoint")
}

// Exec returns an error of class Unsupported.
func Exec(context.Context, string, string, Execution) (int, error) {
	return 0, errdefs.Unsupportedf("this berthlet was built without cgo or not for Linux, so it has no built-in container runtime")
}

// Stop does nothing.
func (*Runtime) Stop() {}
