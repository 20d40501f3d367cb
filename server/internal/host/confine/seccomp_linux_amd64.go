package confine

import "golang.org/x/sys/unix"

// machineCalls adds system calls that only older machines have.
func machineCalls() (machine uint32, calls []uintptr, ok bool) {
	return unix.AUDIT_ARCH_X86_64, []uintptr{
		unix.SYS_OPEN, unix.SYS_STAT, unix.SYS_LSTAT, unix.SYS_NEWFSTATAT, unix.SYS_ACCESS, unix.SYS_READLINK, unix.SYS_MKDIR,
		unix.SYS_RMDIR,
		unix.SYS_UNLINK, unix.SYS_RENAME, unix.SYS_LINK, unix.SYS_CHMOD, unix.SYS_CHOWN, unix.SYS_LCHOWN, unix.SYS_PIPE, unix.SYS_DUP2,
		unix.SYS_POLL, unix.SYS_SELECT, unix.SYS_EPOLL_WAIT, unix.SYS_EPOLL_CREATE, unix.SYS_GETDENTS, unix.SYS_ARCH_PRCTL, unix.SYS_TIME,
	}, true
}
