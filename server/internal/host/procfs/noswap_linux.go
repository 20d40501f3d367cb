package procfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/errdefs"
)

// NoSwap returns an error of class Unsupported if memory-backed file systems can be swapped out.
// tmpfs has the option noswap since Linux 6.4, outside of user namespaces. NoSwap creates such a
// file system without mounting it. Without CAP_SYS_ADMIN, which berthd drops, it checks the
// kernel's version.
func NoSwap() error {
	at, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if errors.Is(err, unix.EPERM) {
		var name unix.Utsname
		if err := unix.Uname(&name); err != nil {
			return errdefs.Unsupportedf("read the kernel's version: %w", err)
		}
		return noSwapOf(os.DirFS("/proc"), unix.ByteSliceToString(name.Release[:]))
	}
	if err != nil {
		return errdefs.Unsupportedf("create a tmpfs: %w", err)
	}
	defer func() { _ = unix.Close(at) }()
	if err := unix.FsconfigSetFlag(at, "noswap"); err != nil {
		return errdefs.Unsupportedf("create a tmpfs with noswap: %w", err)
	}
	return nil
}

// noSwapOf answers by a kernel's release, and whether all users of the machine are mapped
// in the namespace that berthd is in.
func noSwapOf(proc fs.FS, release string) error {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil || major < 6 || major == 6 && minor < 4 {
		return errdefs.Unsupportedf("the kernel is %s, tmpfs has noswap since 6.4", release)
	}
	text, err := fs.ReadFile(proc, "self/uid_map")
	if err != nil {
		return errdefs.Unsupportedf("find out which user namespace berthd is in: %w", err)
	}
	if strings.Join(strings.Fields(string(text)), " ") != "0 0 4294967295" {
		return errdefs.Unsupportedf("berthd is in a user namespace of its own, where tmpfs has no noswap")
	}
	return nil
}
