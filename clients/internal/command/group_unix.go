//go:build unix

package command

import (
	"io/fs"
	"os/user"
	"strconv"
	"syscall"
)

// groupOf returns the name of the group of a file; empty if it has none.
func groupOf(info fs.FileInfo) string {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	group, err := user.LookupGroupId(strconv.FormatUint(uint64(stat.Gid), 10))
	if err != nil {
		return ""
	}
	return group.Name
}
