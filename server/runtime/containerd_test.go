package runtime_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/berthd/berth/hack/containerd"
	"github.com/berthd/berth/managers/cgroup"
)

// TestContainerd holds a real containerd against the contract.
func TestContainerd(t *testing.T) {
	programs := os.Getenv(containerd.Variable)
	if programs == "" {
		t.Skipf("needs a containerd: %s names a folder with one; make test-all builds it", containerd.Variable)
	}
	dir, err := os.MkdirTemp("", "cd")
	if err != nil {
		t.Fatal(err)
	}
	d, err := containerd.New(programs, dir, false)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	parent := "/berth-" + filepath.Base(dir)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if t.Failed() {
			t.Log(d.Log())
		}
		if err := errors.Join(d.Close(ctx), removeCgroups(parent), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	if err := d.Start(ctx); err != nil {
		t.Fatalf("%v\n%s", err, d.Log())
	}
	binary := filepath.Join(dir, "probe")
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, "../../hack/probe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := d.Load(ctx, binary, "docker.io/library/probe:latest"); err != nil {
		t.Fatal(err)
	}
	b := newBench(t, d.Socket)
	b.parent, b.old = parent, d.Old
	b.read = readKernel(t)
	b.restart = func() {
		if err := errors.Join(d.Kill(), d.Start(ctx)); err != nil {
			t.Fatal(err)
		}
	}
	contract(b)
}

// readKernel reads a cgroup of either version.
func readKernel(t *testing.T) func(name cgroup.Name) (string, int64) {
	first := func(name cgroup.Name, files ...string) string {
		for _, file := range files {
			hierarchy, base := filepath.Split(file)
			text, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", hierarchy, name.ToCgroupfs(), base))
			if err == nil {
				return strings.TrimSpace(string(text))
			}
		}
		t.Errorf("cgroup %s has none of %v", name, files)
		return ""
	}
	return func(name cgroup.Name) (string, int64) {
		memory, err := strconv.ParseInt(first(name, "memory/memory.limit_in_bytes", "memory.max"), 10, 64)
		if err != nil {
			t.Error(err)
		}
		return first(name, "cpuset/cpuset.cpus", "cpuset.cpus"), memory
	}
}

// removeCgroups removes a cgroup with what is below from all hierarchies.
func removeCgroups(name string) error {
	tops, err := filepath.Glob("/sys/fs/cgroup/*" + name)
	errs := []error{err}
	for _, top := range append(tops, "/sys/fs/cgroup"+name) {
		var dirs []string
		_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append([]string{path}, dirs...)
			}
			return nil
		})
		for _, dir := range dirs {
			errs = append(errs, os.Remove(dir))
		}
	}
	return errors.Join(errs...)
}
