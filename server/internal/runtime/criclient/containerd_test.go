package criclient_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/berthd/berth/hack/testing/containerd"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
)

// TestContainerd holds a real containerd against the contract.
func TestContainerd(t *testing.T) {
	d := containerd.Run(t)
	b := newBench(t, d.Socket)
	b.parent, b.old = d.Cgroup, d.Old
	events(b)
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

// events holds the events of a real containerd against what berthd relies on: there are none,
// or two listeners get all. A stream is open some time after the call, so pods are run until
// both listeners have an event.
func events(b *bench) {
	ctx, cancel := context.WithTimeout(b.t.Context(), timeout)
	defer cancel()
	one, two := listen(ctx, b.client), listen(ctx, newBench(b.t, b.socket).client)
	defer one.stop()
	defer two.stop()
	for n := 0; len(one.events) == 0 || len(two.events) == 0; n++ {
		if len(one.ended) > 0 {
			if err := <-one.ended; errdefs.ClassOf(err) != errdefs.Unsupported || !b.old {
				b.t.Errorf("events of containerd: %v", err)
			}
			return
		}
		uid := "probe" + strconv.Itoa(n)
		b.pod(ctx, uid)
		sandboxes, err := b.client.Sandboxes(ctx, uid)
		b.must(err)
		b.stopPod(ctx, sandboxes[0].ID)
	}
	holdsEvents(ctx, b, one, two)
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
