package procfs

import (
	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/fault"
)

// NoSwap tells, with class Unsupported, why memory-backed file systems cannot be
// kept out of swap space: tmpfs has its option noswap since Linux 6.4, outside of
// user namespaces only. It asks the kernel for such a file system and mounts none.
func NoSwap() error {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fault.Unsupportedf("ask for a tmpfs: %w", err)
	}
	defer func() { _ = unix.Close(fs) }()
	if err := unix.FsconfigSetFlag(fs, "noswap"); err != nil {
		return fault.Unsupportedf("ask for a tmpfs with noswap: %w", err)
	}
	return nil
}
