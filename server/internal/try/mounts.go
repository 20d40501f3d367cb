package try

import (
	"bytes"
	"fmt"
	"os"
	"strings"

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
	mounts, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return err
	}
	if points := mountsIn(path, mounts); len(points) > 0 {
		return errdefs.Preconditionf("there are mounts in it: umount %s", strings.Join(points, " "))
	}
	return nil
}

// unescaped reads the paths of mountinfo (proc_pid_mountinfo(5)).
var unescaped = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// mountsIn lists the mount points at a path and below, in the order in which they can be unmounted.
func mountsIn(path string, mountinfo []byte) (points []string) {
	for line := range bytes.Lines(mountinfo) {
		// 36 35 98:0 /root /point options ...
		fields := strings.Fields(string(line))
		if len(fields) < 5 {
			continue
		}
		if point := unescaped.Replace(fields[4]); strings.HasPrefix(point+"/", path+"/") {
			points = append([]string{point}, points...)
		}
	}
	return points
}
