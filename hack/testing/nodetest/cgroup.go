package nodetest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

const mount = "/sys/fs/cgroup"

// Cgroups lists the directories of a cgroup and of what is below it, in all hierarchies.
// Parents come before their children. The root belongs to no pod: it has no parent.
func Cgroups(path string) (dirs []string) {
	if path = filepath.Clean("/" + path); path == "/" {
		return nil
	}
	hierarchies, _ := filepath.Glob(mount + "/*")
	for _, hierarchy := range append(hierarchies, mount) {
		if info, err := os.Lstat(hierarchy); err != nil || info.Mode()&fs.ModeSymlink != 0 {
			continue // cpu is a link to cpu,cpuacct as a rule
		}
		_ = filepath.WalkDir(filepath.Join(hierarchy, path), func(dir string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, dir)
			}
			return nil
		})
	}
	return dirs
}

// KillIn kills what runs in a cgroup and below it, and reports what that was.
func KillIn(path string) (killed []string) {
	for _, dir := range Cgroups(path) {
		text, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		for _, id := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(id); err == nil && pid > 0 { // 0 is one that is not in our namespace
				_ = syscall.Kill(pid, syscall.SIGKILL)
				killed = append(killed, fmt.Sprintf("process %d in %s", pid, dir))
			}
		}
	}
	return killed
}

// RemoveCgroups removes a cgroup and what is below it from all hierarchies. A killed
// process holds its cgroup until it is reaped: that is waited for as long as the context
// allows.
func RemoveCgroups(ctx context.Context, path string) error {
	for _, dir := range slices.Backward(Cgroups(path)) {
		var err error
		waited := Await(ctx, func() bool {
			err = os.Remove(dir)
			return !errors.Is(err, syscall.EBUSY)
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return errors.Join(err, waited)
		}
	}
	return nil
}
