package disk

import (
	"errors"
	"io/fs"
	"math"
	"math/bits"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/errdefs"
)

// Size returns how many bytes the file system has on which a directory lies, or will
// lie once it is made. An error is of class Unavailable.
func Size(dir string) (int64, error) {
	var stat unix.Statfs_t
	for at := filepath.Clean(dir); ; at = filepath.Dir(at) {
		err := unix.Statfs(at, &stat)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || at == filepath.Dir(at) {
			return 0, errdefs.Unavailablef("measure the file system of %s: %w", dir, err)
		}
	}
	hi, size := bits.Mul64(stat.Blocks, uint64(stat.Bsize))
	if hi != 0 || size > math.MaxInt64 {
		size = math.MaxInt64
	}
	return int64(size), nil
}
