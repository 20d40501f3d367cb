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

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/berthd/berth/clients/berthlet/seccomp"
	"github.com/berthd/berth/managers/errdefs"
)

// A container's first process is this program until it executes the container's own. libcontainer
// installs seccomp filters there only if it is built with a C library. Here a second thread of
// the process does it. The keeper sends the filter when the first thread is ready and only waits
// to be started. The second thread installs the filter for all threads
// (SECCOMP_FILTER_FLAG_TSYNC). By then the first thread has dropped its capabilities, but the
// second one has not.

// filterFD is the descriptor of the connection in a container's first process: the first file
// that the keeper passes.
const filterFD = 3

// installed is what the second thread answers when the filter holds.
const installed = "installed"

// reached is sent by the second thread of an additional program when the first thread is about to
// execute the program.
const reached = "reached"

// aboutToExec is libcontainer's log message at that moment (setns_init_linux.go). Such a process
// does not wait to be started, as a container's first process does, and drops its privileges only
// then. TestExecIsConfined detects another text in a new version of libcontainer.
const aboutToExec = "setns_init: about to exec"

// gate holds the first thread up where it is about to become the program, until the second one is done.
type gate struct{ reached, done chan struct{} }

// Levels implements logrus.Hook.
func (*gate) Levels() []logrus.Level { return []logrus.Level{logrus.DebugLevel} }

// Fire implements logrus.Hook.
func (g *gate) Fire(e *logrus.Entry) error {
	if e.Message == aboutToExec {
		close(g.reached)
		<-g.done
	}
	return nil
}

// awaitFilter starts the second thread. Call it before libcontainer. A process that joins a
// container can get its filter only at this time. It exits if it gets neither a filter nor the
// message that there is none.
func awaitFilter(joins bool) {
	unix.CloseOnExec(filterFD)
	g := &gate{reached: make(chan struct{}), done: make(chan struct{})}
	if joins {
		logrus.AddHook(g)
	}
	ready := make(chan struct{})
	go func() {
		runtime.LockOSThread() // without an unlock: the thread ends with the goroutine
		// The thread keeps its capabilities when the process changes its user.
		err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0)
		close(ready)
		keeper := os.NewFile(filterFD, "keeper")
		defer keeper.Close()
		if joins {
			<-g.reached
			_, sayErr := io.WriteString(keeper, reached)
			err = errors.Join(err, sayErr)
		}
		var f *seccomp.Filter // nil: the container has none
		if decodeErr := json.NewDecoder(keeper).Decode(&f); errors.Is(decodeErr, io.EOF) && !joins {
			return // the container has none
		} else if err == nil {
			err = decodeErr
		}
		if err == nil && f != nil {
			err = install(*f)
		}
		answer := installed
		if err != nil {
			answer = err.Error()
		}
		_, _ = io.WriteString(keeper, answer)
		if joins && err != nil {
			os.Exit(1)
		}
		if joins {
			close(g.done)
			select {} // closing the connection is left to the program's start
		}
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

// confine installs the filter in a container's first process, and verifies it.
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

// confineLater has the filter installed, nil for none, in a process that joins a container, at the moment that the process
// names. prepare gets its id at that moment. After an error the process ends.
func confineLater(process *os.File, f *seccomp.Filter, prepare func(pid int) error) error {
	pid, err := awaitReached(process)
	if err == nil {
		if err := prepare(pid); err != nil {
			_ = process.Close()
			return err
		}
		err = json.NewEncoder(process).Encode(f)
	}
	answer := make([]byte, len(installed))
	if err == nil {
		_, err = io.ReadFull(process, answer)
	}
	if err == nil && string(answer) != installed {
		rest, _ := io.ReadAll(io.LimitReader(process, 1<<10))
		err = errdefs.Unavailablef("%s%s", answer, rest)
	}
	if err == nil && f != nil {
		err = filtered(pid)
	}
	if err != nil {
		_ = process.Close()
		return fmt.Errorf("install the seccomp filter: %w", err)
	}
	return nil
}

// awaitReached waits until a process that joins a container has reached its program. It returns the
// process's id, which the kernel adds to the message (unix(7), SCM_CREDENTIALS).
func awaitReached(process *os.File) (pid int, err error) {
	said, control := make([]byte, len(reached)), make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	var n, got int
	err = onDescriptor(process, func(fd int) (err error) {
		n, got, _, _, err = unix.Recvmsg(fd, said, control, unix.MSG_WAITALL)
		return err
	})
	if err == nil && string(said[:n]) != reached {
		err = errdefs.Unavailablef("the process ended before its program")
	}
	if err != nil {
		return 0, err
	}
	messages, err := unix.ParseSocketControlMessage(control[:got])
	if err != nil || len(messages) != 1 {
		return 0, errors.Join(err, errdefs.Internalf("%d messages of control", len(messages)))
	}
	sender, err := unix.ParseUnixCredentials(&messages[0])
	if err != nil {
		return 0, err
	}
	return int(sender.Pid), nil
}

// filtered verifies that a process has a filter (proc_pid_status(5)).
func filtered(pid int) error {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err == nil && !strings.Contains(string(text), "\nSeccomp:\t2\n") {
		err = errdefs.Internalf("process %d has none", pid)
	}
	return err
}
