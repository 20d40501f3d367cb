package runtime_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/berthd/berth/hack/containerd"
	"github.com/berthd/berth/managers/cgroup"
)

// TestContainerd holds a real containerd against the contract.
func TestContainerd(t *testing.T) {
	d := containerd.Run(t)
	b := newBench(t, d.Socket)
	b.parent, b.old = d.Cgroup, d.Old
	b.read = readKernel(t)
	b.restart = func() {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
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
