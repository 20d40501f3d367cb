package rpc

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

func peerOf(c syscall.Conn) (Peer, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return Peer{}, err
	}
	var cred *unix.Ucred
	var groups []uint32
	var cerr error
	if err := raw.Control(func(fd uintptr) {
		if cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); cerr == nil {
			groups = peerGroups(fd)
		}
	}); err != nil {
		return Peer{}, err
	}
	if cerr != nil {
		return Peer{}, cerr
	}
	return Peer{UID: cred.Uid, GID: cred.Gid, PID: cred.Pid, Groups: groups, Name: processName(cred.Pid)}, nil
}

// processName reads the name of a process. That of one in a namespace that is not visible
// from here is empty.
func processName(pid int32) string {
	if pid <= 0 {
		return ""
	}
	name, err := os.ReadFile("/proc/" + strconv.Itoa(int(pid)) + "/comm")
	if err != nil {
		return ""
	}
	return strings.ToValidUTF8(strings.TrimSuffix(string(name), "\n"), "")
}

// peerGroups reads the supplementary groups (SO_PEERGROUPS, Linux 4.13). On older kernels it
// returns none, which grants fewer roles, so that is no error.
func peerGroups(fd uintptr) []uint32 {
	groups := make([]uint32, 32)
	for range 2 {
		size := uint32(4 * len(groups)) // socklen_t
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(unsafe.SliceData(groups))), uintptr(unsafe.Pointer(&size)), 0)
		switch errno {
		case 0:
			return groups[:min(int(size)/4, len(groups))]
		case unix.ERANGE: // size is the required size; a socket's groups do not change
			groups = make([]uint32, size/4)
		default:
			return nil
		}
	}
	return nil
}
