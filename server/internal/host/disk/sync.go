package disk

import (
	"errors"
	"os"

	"github.com/berthd/berth/managers/errdefs"
)

// Sync makes names in a directory durable. An error is of class Unavailable.
func Sync(dir string) error {
	d, err := os.Open(dir)
	if err == nil {
		err = errors.Join(d.Sync(), d.Close())
	}
	if err != nil {
		return errdefs.Unavailablef("sync directory %s: %w", dir, err)
	}
	return nil
}
