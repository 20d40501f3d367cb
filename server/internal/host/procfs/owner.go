package procfs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"syscall"

	"github.com/berthd/berth/managers/errdefs"
)

// UIDs reads a process's real and saved user ids (proc_pid_status(5)). A process that has ended
// is an error of class NotFound.
func UIDs(proc fs.FS, pid int) (own, saved uint32, err error) {
	file := path.Join(strconv.Itoa(pid), "status")
	text, err := fs.ReadFile(proc, file)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, 0, errdefs.NotFoundf("there is no process %d: %w", pid, err).Coded(errdefs.ProcessNotFound)
	}
	if err != nil {
		return 0, 0, errdefs.Unavailablef("find out whose process %d is: %w", pid, err)
	}
	for line := range strings.Lines(string(text)) {
		ids, ok := strings.CutPrefix(line, "Uid:")
		if !ok {
			continue
		}
		// Real, effective, saved, and that of the file system.
		if _, err := fmt.Sscan(ids, &own, new(uint32), &saved); err != nil {
			break
		}
		return own, saved, nil
	}
	return 0, 0, errdefs.Unavailablef("find out whose process %d is: %s has no line of user ids", pid, file)
}

// Since reads a process's start time, in clock ticks since the boot (proc_pid_stat(5)). It
// distinguishes two successive processes with the same id. A process that has ended is an error
// of class NotFound.
func Since(proc fs.FS, pid int) (ticks uint64, err error) {
	const begin = 22
	return statField(proc, pid, begin, "when process %d began")
}

// KernelThread reports whether a process is a kernel thread, which runs no program
// (proc_pid_stat(5), flags; PF_KTHREAD of linux/sched.h). Every user can read this. A process
// that has ended is an error of class NotFound.
func KernelThread(proc fs.FS, pid int) (bool, error) {
	const (
		flags   = 9
		kthread = 0x00200000
	)
	have, err := statField(proc, pid, flags, "what process %d runs")
	return have&kthread != 0, err
}

// statField reads a field of a process's stat, by its number in proc_pid_stat(5), after
// the second.
func statField(proc fs.FS, pid, field int, what string) (uint64, error) {
	what = fmt.Sprintf("find out "+what, pid)
	file := path.Join(strconv.Itoa(pid), "stat")
	text, err := fs.ReadFile(proc, file)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ESRCH):
		return 0, errdefs.NotFoundf("there is no process %d: %w", pid, err)
	case err != nil:
		return 0, errdefs.Unavailablef("%s: %w", what, err)
	}
	// The second field is the name of the program, and may contain anything.
	const third = 3
	_, rest, _ := bytes.Cut(text[bytes.LastIndexByte(text, ')')+1:], []byte(" "))
	if fields := bytes.Fields(rest); len(fields) > field-third {
		if value, err := strconv.ParseUint(string(fields[field-third]), 10, 64); err == nil {
			return value, nil
		}
	}
	return 0, errdefs.Unavailablef("%s: %s has no field of that", what, file)
}
