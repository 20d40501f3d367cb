//go:build linux && cgo

package builtin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/clients/berthlet/seccomp"
	"github.com/berthd/berth/managers/errdefs"
)

// A container's first process is this program until it becomes the container's own.
// libcontainer installs seccomp filters there only if it is built with a library of C.
// So a second thread of the process does it: it waits for the filter from the keeper,
// which sends it when the first thread is ready and only waits to be let run, and
// installs it for all threads (SECCOMP_FILTER_FLAG_TSYNC). By then the first thread has
// given up its capabilities, and the second one has not.

// filterFD is where a container's first process finds its end of the connection: the
// first file that the keeper hands on.
const filterFD = 3

// installed is what the second thread answers when the filter holds.
const installed = "installed"

// awaitFilter begins the second thread. It has to be called before libcontainer works.
func awaitFilter() {
	unix.CloseOnExec(filterFD)
	ready := make(chan struct{})
	go func() {
		runtime.LockOSThread() // without an unlock: the thread ends with the goroutine
		// So that the thread keeps what it may do when the process changes its user.
		err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0)
		close(ready)
		keeper := os.NewFile(filterFD, "keeper")
		defer keeper.Close()
		var f seccomp.Filter
		if decodeErr := json.NewDecoder(keeper).Decode(&f); errors.Is(decodeErr, io.EOF) {
			return // the container has none
		} else if err == nil {
			err = decodeErr
		}
		if err == nil {
			err = install(f)
		}
		answer := installed
		if err != nil {
			answer = err.Error()
		}
		_, _ = io.WriteString(keeper, answer)
	}()
	<-ready
}

// install installs a filter for all threads of the process.
func install(f seccomp.Filter) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var held [2]unix.CapUserData
	if err := unix.Capget(&header, &held[0]); err != nil {
		return fmt.Errorf("read the capabilities: %w", err)
	}
	for i := range held {
		held[i].Effective = held[i].Permitted
	}
	if err := unix.Capset(&header, &held[0]); err != nil {
		return fmt.Errorf("take the capabilities back: %w", err)
	}
	program := make([]unix.SockFilter, len(f.Program))
	for i, in := range f.Program {
		program[i] = unix.SockFilter{Code: in.Code, Jt: in.JT, Jf: in.JF, K: in.K}
	}
	code := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		uintptr(f.Flags|unix.SECCOMP_FILTER_FLAG_TSYNC), uintptr(unsafe.Pointer(&code)))
	switch {
	case errno != 0:
		return fmt.Errorf("seccomp(2): %w", errno)
	case thread != 0:
		return fmt.Errorf("seccomp(2): thread %d does not take it", thread)
	}
	return nil
}

// connection gives the two ends between a keeper and a container's first process.
func connection() (keepers, containers *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "container"), os.NewFile(uintptr(fds[1]), "keeper"), nil
}

// confine has the filter installed in a container's first process, and looks whether
// it is.
func confine(process *os.File, pid int, f seccomp.Filter) error {
	err := json.NewEncoder(process).Encode(f)
	var answer []byte
	if err == nil {
		answer, err = io.ReadAll(process)
	}
	if err == nil && string(answer) != installed {
		err = errdefs.Unavailablef("%s", answer)
	}
	if err == nil {
		err = filtered(pid)
	}
	if err != nil {
		return fmt.Errorf("install the seccomp filter: %w", err)
	}
	return nil
}

// filtered looks whether a process has a filter (proc_pid_status(5)).
func filtered(pid int) error {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err == nil && !strings.Contains(string(text), "\nSeccomp:\t2\n") {
		err = errdefs.Internalf("process %d has none", pid)
	}
	return err
}
