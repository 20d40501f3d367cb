//go:build !linux

package disk

import (
	"runtime"

	"github.com/berthd/berth/managers/errdefs"
)

// Size refuses with an error of class Unsupported.
func Size(dir string) (int64, error) {
	return 0, errdefs.Unsupportedf("measure the file system of %s: not on %s", dir, runtime.GOOS)
}
