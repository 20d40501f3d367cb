package trust

import (
	"io/fs"
	"syscall"
)

// owner returns the user that a file belongs to.
func owner(info fs.FileInfo) (uid int, known bool) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(stat.Uid), true
}

func group(info fs.FileInfo) int {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(stat.Gid)
	}
	return -1
}

// Removed reports whether a directory has no name any more. A mount still leads to it.
func Removed(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && stat.Nlink == 0
}

// readOnly reports whether a file lies on a file system that is mounted read-only here.
func readOnly(path string) bool {
	var stat syscall.Statfs_t
	return syscall.Statfs(path, &stat) == nil && stat.Flags&readOnlyMount != 0
}

// readOnlyMount is ST_RDONLY of statvfs(3).
const readOnlyMount = 1
