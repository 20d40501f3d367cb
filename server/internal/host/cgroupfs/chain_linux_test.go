package cgroupfs

import (
	"os"
	"strconv"
	"syscall"
	"testing"
)

// chainEnv makes the test binary be a chain; its value is the process with which
// the chain ends.
const chainEnv = "BERTH_TEST_CHAIN"

func TestMain(m *testing.M) {
	if text := os.Getenv(chainEnv); text != "" {
		owner, err := strconv.Atoi(text)
		if err == nil {
			_, err = os.Stdin.Read(make([]byte, 1))
		}
		if err != nil {
			os.Exit(1)
		}
		chain(uintptr(owner))
	}
	if text := os.Getenv(workerEnv); text != "" {
		bytes, err := strconv.Atoi(text)
		if err != nil {
			os.Exit(1)
		}
		work(bytes)
		return
	}
	os.Exit(m.Run())
}

// chain forks and ends, and its child does the same, again and again: its process
// id is never the one that was just read. It continues until it is killed or its
// owner has gone. The program is not started again, which would be too slow to be
// a danger: the child continues as a copy with one thread, in which the runtime of
// Go does not work, so there are nothing but system calls.
//
//go:nosplit
//go:norace
func chain(owner uintptr) {
	for {
		child, _, failed := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
		_, _, gone := syscall.RawSyscall(syscall.SYS_KILL, owner, 0, 0)
		if gone != 0 || failed == 0 && child != 0 {
			_, _, _ = syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
}
