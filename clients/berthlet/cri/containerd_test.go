package cri_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthd/berth/clients/berthlet/container"
	"github.com/berthd/berth/clients/berthlet/container/containertest"
	"github.com/berthd/berth/hack/testing/containerd"
	"github.com/berthd/berth/hack/testing/nodetest"
)

const timeout = time.Minute

// TestContainerd holds the runtime against the same demands on a real containerd.
func TestContainerd(t *testing.T) {
	t.Parallel()
	d := containerd.Run(t)
	var opened atomic.Int64
	t.Run("suite", func(t *testing.T) {
		containertest.Run(t, func(t *testing.T) containertest.Bench {
			suffix := fmt.Sprintf("-%d", opened.Add(1))
			r, changed := open(t, d.Socket, "us"+suffix)
			return containertest.Bench{
				Runtime: r, Image: "probe", Program: "/probe", Changed: changed, OwnIDs: true,
				CgroupParent: d.Cgroup + "/pod" + suffix, LogDir: t.TempDir(), Suffix: suffix,
				Listening: listening,
			}
		})
	})
}

// TestContainerdKilledWhileItMakes has a containerd that was killed before it had written
// down how far a container is, and does not know it afterwards: the container ends.
func TestContainerdKilledWhileItMakes(t *testing.T) {
	t.Parallel()
	d := containerd.Run(t)
	if d.CRIO {
		t.Skip("needs containerd: CRI-O writes down a container before it makes it")
	}
	r, changed := open(t, d.Socket, "us")
	dir := t.TempDir()
	p := thePod(dir)
	p.CgroupParent = d.Cgroup + "/podu"
	must(t, r.Open(t.Context(), p))
	must(t, r.Create(t.Context(), theSpec(dir)))
	id := only(t, r, "u").ID
	must(t, d.Kill())
	must(t, os.Remove(filepath.Join(filepath.Dir(d.Socket), "root/io.containerd.grpc.v1.cri/containers", id, "status")))
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	must(t, d.Start(ctx))
	must(t, nodetest.Await(ctx, func() bool { // a connection that failed is tried again a moment later
		_, err := r.List(ctx, "u")
		return err == nil
	}))
	ends(t, r, changed)
	must(t, r.Remove(ctx, id))
}

// listening waits for the first line of a container's log.
func listening(ctx context.Context, s container.Spec) error {
	return nodetest.Await(ctx, func() bool {
		text, err := os.ReadFile(s.LogPath)
		return err == nil && strings.Contains(string(text), " stdout F ")
	})
}

// TestContainerdSandboxCPUs keeps the process of a sandbox to some CPUs.
func TestContainerdSandboxCPUs(t *testing.T) {
	t.Parallel()
	d := containerd.Run(t)
	r, _ := open(t, d.Socket, "us")
	p := thePod(t.TempDir())
	p.CgroupParent, p.SandboxCPUs = d.Cgroup+"/podu", "0"
	must(t, r.Open(t.Context(), p))
	found := 0
	for _, dir := range nodetest.Cgroups(p.CgroupParent) {
		procs, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		for _, pid := range strings.Fields(string(procs)) {
			text, err := os.ReadFile("/proc/" + pid + "/status")
			must(t, err)
			if _, rest, _ := strings.Cut(string(text), "\nCpus_allowed_list:"); !strings.HasPrefix(strings.TrimSpace(rest), "0\n") {
				t.Errorf("process %s of the sandbox is on CPUs %.10s", pid, strings.TrimSpace(rest))
			}
			found++
		}
	}
	if found == 0 {
		t.Error("the sandbox has no process")
	}
	must(t, r.Close(t.Context(), p.UID))
}
