package procfs

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"syscall"

	"github.com/berthd/berth/managers/errdefs"
)

// accepting is the flag of a socket that takes connections (__SO_ACCEPTCON of unix(7)'s /proc/net/unix).
const accepting = 0x10000

// Listening finds the listening socket at a path without connecting to it, because a connection
// could start a service. An empty inode means that there is none.
func Listening(proc fs.FS, socket string) (inode string, err error) {
	text, err := fs.ReadFile(proc, "net/unix")
	if err != nil {
		return "", errdefs.Unavailablef("read the open sockets: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		// Num RefCount Protocol Flags Type St Inode Path
		fields := strings.SplitN(strings.Join(strings.Fields(line), " "), " ", 8)
		if len(fields) < 8 || fields[7] != socket {
			continue
		}
		if flags, err := strconv.ParseUint(fields[3], 16, 64); err == nil && flags&accepting != 0 {
			return fields[6], nil
		}
	}
	return "", nil
}

// HasSocket reports whether a process has a socket open; false also if its descriptors cannot be
// read.
func HasSocket(proc fs.FS, pid int, inode string) bool {
	dir := path.Join(strconv.Itoa(pid), "fd")
	entries, err := fs.ReadDir(proc, dir)
	if err != nil {
		return false
	}
	for _, e := range entries {
		if to, err := fs.ReadLink(proc, path.Join(dir, e.Name())); err == nil && to == "socket:["+inode+"]" {
			return true
		}
	}
	return false
}

// FlockHolder returns the process that holds a lock of flock(2) on a file, 0 if there is none.
func FlockHolder(proc fs.FS, file fs.FileInfo) (pid int, err error) {
	stat, ok := file.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, nil
	}
	text, err := fs.ReadFile(proc, "locks")
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, errdefs.Unavailablef("read the file locks: %w", err)
	}
	suffix := fmt.Sprintf(":%d", stat.Ino)
	for line := range strings.Lines(string(text)) {
		// 1: FLOCK  ADVISORY  WRITE 708 08:01:17 0 EOF
		fields := strings.Fields(line)
		if len(fields) < 6 || fields[1] != "FLOCK" || !strings.HasSuffix(fields[5], suffix) {
			continue
		}
		return strconv.Atoi(fields[4])
	}
	return 0, nil
}
