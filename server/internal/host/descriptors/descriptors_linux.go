// Package descriptors tells when the file descriptors of this process run out.
//
// Invariant: what can do without a descriptor takes none of the last Reserve ones. These are for the
// calls of root.
package descriptors

import "golang.org/x/sys/unix"

// Reserve is the number of descriptors for the calls of root: a call needs a few at the same time.
const Reserve = 32

// Few reports whether at most Reserve descriptors are left. The kernel assigns the lowest number that is
// free, so a number counts the descriptors that are open, or is too low.
func Few() bool {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return true
	}
	_ = unix.Close(fd)
	var limit unix.Rlimit
	return unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil && uint64(fd)+Reserve >= limit.Cur
}
