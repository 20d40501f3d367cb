// Package memlimit returns how much memory a process may use before the kernel kills it:
// the smallest limit of the cgroups that contain it.
package memlimit

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/berthd/berth/managers/errdefs"
)

// unlimited is what version 1 has in place of no limit, or more: it depends on the size of a page.
const unlimited = 1 << 62

// Own reads the limit of this process in bytes. proc is /proc, and mount is where cgroups are mounted. It is false where
// no cgroup has a limit, and where none counts memory.
func Own(proc, mount fs.FS) (bytes int64, ok bool, err error) {
	text, err := fs.ReadFile(proc, "self/cgroup")
	if err != nil {
		return 0, false, errdefs.Unavailablef("find out in which cgroups berthd is: %w", err)
	}
	dir, file := "", "memory.max"
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		for name := range strings.SplitSeq(fields[1], ",") {
			if name == "memory" { // version 1: it wins, a controller is in one hierarchy only
				return least(mount, path.Join("memory", fields[2]), "memory", "memory.limit_in_bytes")
			}
		}
		if fields[0] == "0" {
			dir = path.Clean("./" + fields[2])
		}
	}
	if dir == "" {
		return 0, false, nil
	}
	return least(mount, dir, ".", file)
}

// least returns the lowest limit from a directory up to the root of its hierarchy. Directories
// outside of a cgroup namespace do not exist.
func least(mount fs.FS, dir, root, file string) (bytes int64, ok bool, err error) {
	for ; ; dir = path.Dir(dir) {
		text, err := fs.ReadFile(mount, path.Join(dir, file))
		value := strings.TrimSpace(string(text))
		switch {
		case errors.Is(err, fs.ErrNotExist), err == nil && value == "max":
		case err != nil:
			return 0, false, errdefs.Unavailablef("read the memory limit of berthd's cgroup: %w", err)
		default:
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				return 0, false, errdefs.Unavailablef("read the memory limit of berthd's cgroup: %w",
					fmt.Errorf("%s/%s: %w", dir, file, err))
			}
			if n < unlimited && (!ok || n < bytes) {
				bytes, ok = n, true
			}
		}
		if dir == root || dir == "." {
			return bytes, ok, nil
		}
	}
}
