package try

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/berthd/berth/managers/errdefs"
)

// checkMounts refuses a directory with mounts: a removal would go on in what is mounted, which is not the try's.
func checkMounts(root *os.Root) error {
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	// The path without links, which is also right where the directory was renamed.
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()))
	if err != nil {
		return err
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(path))
	if err != nil || len(mounts) == 0 {
		return err
	}
	points := make([]string, 0, len(mounts))
	for _, m := range slices.Backward(mounts) { // the order in which they can be unmounted
		points = append(points, m.Mountpoint)
	}
	return errdefs.Preconditionf("there are mounts in it: umount %s", strings.Join(points, " "))
}
