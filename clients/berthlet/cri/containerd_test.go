package cri_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthd/berth/clients/berthlet/container"
	"github.com/berthd/berth/clients/berthlet/container/containertest"
	"github.com/berthd/berth/hack/containerd"
)

const patience = time.Minute

// daemon runs a real containerd with an image called probe.
func daemon(t *testing.T) (*containerd.Daemon, string) {
	t.Helper()
	programs := os.Getenv(containerd.Variable)
	if programs == "" {
		t.Skipf("needs a containerd: %s names a folder with one; make test-all builds it", containerd.Variable)
	}
	dir, err := os.MkdirTemp("", "cd")
	if err != nil {
		t.Fatal(err)
	}
	cgroup := "/berth-" + filepath.Base(dir)
	d, err := containerd.New(programs, dir, false)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := d.Start(ctx); err != nil {
		t.Fatalf("%v\n%s", err, d.Log())
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if t.Failed() {
			t.Log(d.Log())
		}
		if err := errors.Join(d.Close(ctx), removeCgroups(cgroup), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	binary := filepath.Join(dir, "probe")
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, "../../../hack/probe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := d.Load(ctx, binary, "docker.io/library/probe:latest"); err != nil {
		t.Fatal(err)
	}
	return d, cgroup
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

// TestContainerd holds the runtime against the same demands on a real containerd.
func TestContainerd(t *testing.T) {
	t.Parallel()
	d, cgroup := daemon(t)
	var opened atomic.Int64
	t.Run("suite", func(t *testing.T) {
		containertest.Run(t, func(t *testing.T) containertest.Bench {
			suffix := fmt.Sprintf("-%d", opened.Add(1))
			r, changed := open(t, d.Socket, "us"+suffix)
			return containertest.Bench{
				Runtime: r, Image: "probe", Program: "/probe", Changed: changed, OwnIDs: true,
				CgroupParent: cgroup + "/pod" + suffix, LogDir: t.TempDir(), Suffix: suffix,
				Listening: listening,
			}
		})
	})
}

// listening waits for the first line of a container's log.
func listening(ctx context.Context, s container.Spec) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if text, err := os.ReadFile(s.LogPath); err == nil && strings.Contains(string(text), " stdout F ") {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
