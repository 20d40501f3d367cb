package confine

import (
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data; the machines that berth builds for are little-endian.
const (
	offsetNumber   = 0
	offsetMachine  = 4
	offsetArgument = 16 // the low half of the first one
	offsetProtocol = 32 // and of the third, which is the protocol of a socket
)

// calls are the system calls of Go's runtime and standard library and of berthd that exist on
// every machine.
var calls = []uintptr{
	// Memory.
	unix.SYS_MMAP, unix.SYS_MUNMAP, unix.SYS_MPROTECT, unix.SYS_MADVISE, unix.SYS_BRK, unix.SYS_MREMAP, unix.SYS_MINCORE,
	unix.SYS_MEMBARRIER,
	// Threads, time and signals.
	unix.SYS_FUTEX, unix.SYS_SET_ROBUST_LIST, unix.SYS_GET_ROBUST_LIST, unix.SYS_RSEQ, unix.SYS_SET_TID_ADDRESS, unix.SYS_SCHED_YIELD,
	unix.SYS_SCHED_GETAFFINITY, unix.SYS_GETTID, unix.SYS_GETPID, unix.SYS_GETPPID, unix.SYS_TGKILL, unix.SYS_KILL, unix.SYS_EXIT,
	unix.SYS_EXIT_GROUP, unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_CLOCK_GETTIME, unix.SYS_CLOCK_GETRES, unix.SYS_GETTIMEOFDAY,
	unix.SYS_SIGALTSTACK, unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_RESTART_SYSCALL,
	unix.SYS_SETITIMER, unix.SYS_TIMER_CREATE, unix.SYS_TIMER_SETTIME, unix.SYS_TIMER_DELETE, unix.SYS_GETRANDOM, unix.SYS_UNAME,
	unix.SYS_PRLIMIT64, unix.SYS_GETRLIMIT, unix.SYS_SYSINFO, unix.SYS_PRCTL, unix.SYS_GETCPU,
	// Files.
	unix.SYS_READ, unix.SYS_WRITE, unix.SYS_PREAD64, unix.SYS_PWRITE64, unix.SYS_READV, unix.SYS_WRITEV, unix.SYS_LSEEK, unix.SYS_CLOSE,
	unix.SYS_OPENAT, unix.SYS_OPENAT2, unix.SYS_FCNTL, unix.SYS_FSTAT, unix.SYS_STATX, unix.SYS_STATFS, unix.SYS_FSTATFS,
	unix.SYS_FACCESSAT,
	unix.SYS_FACCESSAT2, unix.SYS_READLINKAT, unix.SYS_GETDENTS64, unix.SYS_MKDIRAT, unix.SYS_UNLINKAT, unix.SYS_RENAMEAT,
	unix.SYS_RENAMEAT2,
	unix.SYS_LINKAT, unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHMODAT2, unix.SYS_FCHOWN, unix.SYS_FCHOWNAT, unix.SYS_FTRUNCATE,
	unix.SYS_FALLOCATE, unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_FLOCK, unix.SYS_DUP, unix.SYS_DUP3, unix.SYS_PIPE2, unix.SYS_GETCWD,
	unix.SYS_UMASK, unix.SYS_UTIMENSAT, unix.SYS_GETXATTR, unix.SYS_LGETXATTR, unix.SYS_FGETXATTR, unix.SYS_SETXATTR, unix.SYS_LSETXATTR,
	unix.SYS_FSETXATTR, unix.SYS_REMOVEXATTR, unix.SYS_LREMOVEXATTR, unix.SYS_FREMOVEXATTR, unix.SYS_COPY_FILE_RANGE, unix.SYS_SENDFILE,
	unix.SYS_SPLICE, unix.SYS_IOCTL,
	// Waiting.
	unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EPOLL_PWAIT2, unix.SYS_EVENTFD2, unix.SYS_PPOLL,
	unix.SYS_PSELECT6,
	unix.SYS_INOTIFY_INIT1, unix.SYS_INOTIFY_ADD_WATCH, unix.SYS_INOTIFY_RM_WATCH,
	// Sockets.
	unix.SYS_BIND, unix.SYS_LISTEN, unix.SYS_ACCEPT, unix.SYS_ACCEPT4, unix.SYS_CONNECT, unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME,
	unix.SYS_GETSOCKOPT, unix.SYS_SETSOCKOPT, unix.SYS_SENDTO, unix.SYS_SENDMSG, unix.SYS_SENDMMSG, unix.SYS_RECVFROM, unix.SYS_RECVMSG,
	unix.SYS_SHUTDOWN,
	// Processes: their ids, and killing those of containers.
	unix.SYS_PIDFD_OPEN, unix.SYS_PIDFD_SEND_SIGNAL, unix.SYS_GETUID, unix.SYS_GETEUID, unix.SYS_GETGID, unix.SYS_GETEGID,
	unix.SYS_GETGROUPS,
	unix.SYS_CAPGET,
}

// families are the kinds of sockets that berthd makes, in addition to one of netlink. Multipath TCP is not among them: to
// Landlock it is no TCP. Where it is refused Go takes plain TCP.
var families = []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6}

// program is the filter. It allows the listed calls, sockets of the listed families, and new
// threads. Berthd starts and executes no program. Other calls fail with EPERM. Calls that are
// newer than the list fail with ENOSYS, as on a kernel without them. clone3 fails with ENOSYS
// too, because a filter cannot read its flags. C libraries then use clone.
func program(machine uint32, calls []uintptr) []unix.SockFilter {
	const (
		load   = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		bits   = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		above  = unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K
		result = unix.BPF_RET | unix.BPF_K
	)
	denied := unix.SockFilter{Code: result, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)}
	unknown := unix.SockFilter{Code: result, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)}
	allowed := unix.SockFilter{Code: result, K: unix.SECCOMP_RET_ALLOW}
	out := []unix.SockFilter{
		{Code: load, K: offsetMachine},
		{Code: equal, K: machine, Jt: 1},
		denied, // calls of another machine's kind, as 32-bit ones
		{Code: load, K: offsetNumber},
	}
	for _, nr := range calls {
		out = append(out, unix.SockFilter{Code: equal, K: uint32(nr), Jf: 1}, allowed)
	}
	out = append(out,
		unix.SockFilter{Code: equal, K: unix.SYS_CLONE, Jf: 4},
		unix.SockFilter{Code: load, K: offsetArgument},
		unix.SockFilter{Code: bits, K: unix.CLONE_THREAD, Jt: 1},
		denied,
		allowed,
	)
	for _, nr := range []uint32{unix.SYS_SOCKET, unix.SYS_SOCKETPAIR} {
		out = append(out,
			unix.SockFilter{Code: equal, K: nr, Jf: uint8(2*len(families) + 9)},
			unix.SockFilter{Code: load, K: offsetProtocol},
			unix.SockFilter{Code: equal, K: unix.IPPROTO_MPTCP, Jf: 1},
			denied,
			// Of netlink, the kernel's events about devices are needed and nothing else.
			unix.SockFilter{Code: equal, K: unix.NETLINK_KOBJECT_UEVENT, Jf: 3},
			unix.SockFilter{Code: load, K: offsetArgument},
			unix.SockFilter{Code: equal, K: unix.AF_NETLINK, Jf: 1},
			allowed,
			unix.SockFilter{Code: load, K: offsetArgument},
		)
		for _, family := range families {
			out = append(out, unix.SockFilter{Code: equal, K: family, Jf: 1}, allowed)
		}
		out = append(out, denied)
	}
	// A call of the x32 kind has a number above all others.
	const x32 = 0x40000000
	return append(out,
		unix.SockFilter{Code: equal, K: unix.SYS_CLONE3, Jt: 2},
		unix.SockFilter{Code: above, K: newestCall, Jt: 0, Jf: 2},
		unix.SockFilter{Code: bits, K: x32, Jt: 1},
		unknown,
		denied,
	)
}

// newestCall is the last number of a call that the list above was made with.
const newestCall = 470

// filter lets all threads make only the calls that berthd needs. It reports whether the
// kernel can do that.
func filter() (known bool, err error) {
	machine, more, ok := machineCalls()
	if !ok {
		return false, nil
	}
	list := program(machine, slices.Concat(calls, more))
	code := unix.SockFprog{Len: uint16(len(list)), Filter: &list[0]}
	const flags = unix.SECCOMP_FILTER_FLAG_TSYNC | unix.SECCOMP_FILTER_FLAG_LOG
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&code)))
	runtime.KeepAlive(list)
	switch {
	case errno == unix.ENOSYS || errno == unix.EINVAL:
		return false, nil
	case errno != 0:
		return false, fmt.Errorf("seccomp: %w", errno)
	case thread != 0:
		return false, fmt.Errorf("seccomp: thread %d has another filter", thread)
	}
	return true, nil
}
