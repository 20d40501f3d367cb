//go:build linux && cgo

package builtin

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/system"
	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/errdefs"
)

// firstProcess is a container's first process, by a descriptor, so that no later process with its number is taken for it.
//
// libcontainer takes a process for ended when its first thread is a zombie. Its other threads may go on: for a moment if
// one of them replaces the program (execve(2)), for good if a hostile program ends its first thread. The descriptor tells
// the end of the whole process (pidfd_open(2)).
type firstProcess struct{ fd int }

// errEnded is the answer of a container whose first process has ended.
var errEnded = errdefs.Preconditionf("it has ended")

// openFirst opens the first process of a loaded container. It gives errEnded if it has ended.
func openFirst(c *libcontainer.Container) (firstProcess, error) {
	state, err := c.State()
	if err != nil {
		return firstProcess{}, err
	}
	p := firstProcess{-1}
	if state.InitProcessPid <= 0 {
		return p, errEnded
	}
	p.fd, err = unix.PidfdOpen(state.InitProcessPid, 0)
	// Threads have numbers, too; a thread with this one is of another process.
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return p, errEnded
	}
	if err != nil {
		return p, fmt.Errorf("its first process: %w", err)
	}
	// Compared after the opening: it is this process, and no later one.
	stat, err := system.Stat(state.InitProcessPid)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ESRCH), err == nil && stat.StartTime != state.InitProcessStartTime:
		err = errEnded
	case err == nil:
		err = p.alive()
	}
	if err != nil {
		p.close()
	}
	return p, err
}

func (p firstProcess) close() { _ = unix.Close(p.fd) }

// alive gives errEnded if the process has ended.
func (p firstProcess) alive() error {
	ended, err := p.wait(0)
	if err == nil && ended {
		err = errEnded
	}
	return err
}

// wait reports whether the process ends within a time.
func (p firstProcess) wait(millis int) (bool, error) {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}, millis)
		// Go's scheduler interrupts, too.
		if !errors.Is(err, unix.EINTR) {
			return n > 0, err
		}
	}
}

// signal does nothing to a process that has ended.
func (p firstProcess) signal(sig unix.Signal) error {
	if err := unix.PidfdSendSignal(p.fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}
