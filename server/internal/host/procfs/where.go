package procfs

import (
	"errors"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"syscall"

	"github.com/berthd/berth/managers/errdefs"
)

// InCallersNamespace reports whether a process is in the pid namespace of this /proc itself.
// Containers' processes are usually in a nested one (proc_pid_status(5), NSpid). Every user can
// read this. A kernel without pid namespaces has one for all processes. A process that has ended
// is an error of class NotFound.
func InCallersNamespace(proc fs.FS, pid int) (bool, error) {
	text, err := readOf(proc, pid, "status")
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(text) {
		if ids, ok := strings.CutPrefix(line, "NSpid:"); ok {
			return len(strings.Fields(ids)) == 1, nil
		}
	}
	return true, nil
}

// Cgroup returns the path of a process's cgroup, with the kubelet's rules. If v2 is the only
// hierarchy, the path is v2's. Otherwise it is the path in systemd's hierarchy if there is one,
// else the common path of cpu and memory. If these differ, the error is of class Precondition. A
// process that has ended is an error of class NotFound.
func Cgroup(proc fs.FS, pid int) (string, error) {
	text, err := readOf(proc, pid, "cgroup")
	if err != nil {
		return "", err
	}
	paths := map[string]string{}
	for line := range strings.Lines(text) {
		_, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		names, at, ok := strings.Cut(rest, ":")
		if !ok {
			return "", errdefs.Unavailablef("find the cgroup of process %d: the line %q", pid, line)
		}
		for name := range strings.SplitSeq(names, ",") {
			paths[name] = at
		}
	}
	cpu, v1 := paths["cpu"]
	switch systemd, named := paths["name=systemd"]; {
	case !v1:
		if at, ok := paths[""]; ok {
			return at, nil
		}
		return "", errdefs.Preconditionf("process %d is in no cgroup with the controller cpu", pid)
	case cpu != paths["memory"]:
		return "", errdefs.Preconditionf("process %d is in cgroup %s for cpu and in %s for memory", pid, cpu, paths["memory"])
	case named:
		return systemd, nil
	}
	return cpu, nil
}

// readOf reads a file of a process's.
func readOf(proc fs.FS, pid int, file string) (string, error) {
	text, err := fs.ReadFile(proc, path.Join(strconv.Itoa(pid), file))
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ESRCH):
		return "", errdefs.NotFoundf("there is no process %d: %w", pid, err)
	case err != nil:
		return "", errdefs.Unavailablef("read process %d: %w", pid, err)
	}
	return string(text), nil
}
