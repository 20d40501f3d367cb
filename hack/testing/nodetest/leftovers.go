package nodetest

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// ownerVariable has the process id of the tests in the environment of all processes that they start.
const ownerVariable = "BERTH_TEST_OWNER"

// Own marks the processes that this one starts as its own, and removes what tests left that were killed: their processes, and their
// cgroups, which are named by a prefix and the process id.
func Own(ctx context.Context, prefix string) error {
	if err := os.Setenv(ownerVariable, strconv.Itoa(os.Getpid())); err != nil {
		return err
	}
	killLeftProcesses()
	var failed error
	for _, name := range leftCgroups(prefix) {
		KillIn(name)
		failed = errors.Join(failed, RemoveCgroups(ctx, name))
	}
	return failed
}

// ended reports whether a process has ended.
func ended(pid int) bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

// killLeftProcesses kills the processes of tests that have ended. It leaves those of other pid namespaces alone, where a process id
// means another process.
func killLeftProcesses() {
	namespace, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return
	}
	environments, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range environments {
		text, _ := os.ReadFile(file)
		for _, variable := range bytes.Split(text, []byte{0}) {
			value, ok := strings.CutPrefix(string(variable), ownerVariable+"=")
			owner, err := strconv.Atoi(value)
			if !ok || err != nil || !ended(owner) {
				continue
			}
			dir := filepath.Dir(file)
			if of, err := os.Readlink(filepath.Join(dir, "ns/pid")); err != nil || of != namespace {
				continue
			}
			if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
}

// leftCgroups lists the cgroups of tests that have ended, but those with processes of another pid namespace.
func leftCgroups(prefix string) (names []string) {
	dirs, _ := filepath.Glob(filepath.Join(mount, prefix+"[0-9]*"))
	more, _ := filepath.Glob(filepath.Join(mount, "*", prefix+"[0-9]*"))
	for _, dir := range append(dirs, more...) {
		name := filepath.Base(dir)
		owner, _, _ := strings.Cut(strings.TrimPrefix(name, prefix), "-")
		if pid, err := strconv.Atoi(owner); err == nil && ended(pid) && !foreign(name) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// foreign reports whether a cgroup has processes of another pid namespace.
func foreign(name string) bool {
	return slices.ContainsFunc(Cgroups(name), func(dir string) bool {
		text, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		return slices.Contains(strings.Fields(string(text)), "0")
	})
}
