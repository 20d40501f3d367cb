package bench

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/qos"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/host/cgroupfs"
	"github.com/berthd/berth/server/internal/host/cgroupfs/ocicgroups"
	"github.com/berthd/berth/server/internal/reconcile"
)

// BenchmarkCgroup makes the cgroup of one more Burstable pod as an admission does,
// its tier's weight included, and in turns with it does what the kernel cannot
// avoid: the directories, and the same values into the same files. The figures are
// medians of all turns, in processor time of the one thread that does it all;
// "x-kernel" is the one by the other.
func BenchmarkCgroup(b *testing.B) {
	tree, err := cgroupfs.Open(cgroupfs.Options{Setter: ocicgroups.Setter{}})
	if err != nil {
		b.Skipf("no usable tree: %v", err)
	}
	defer tree.Close()
	root := cgroup.Name{fmt.Sprintf("berthbench-%d", os.Getpid())}
	layout, err := cgroup.NewLayout(root.String(), tree.Facts().Driver)
	if err != nil {
		b.Fatal(err)
	}
	l := ledgertest.New(b, ledger.Rules{Machine: machinetest.Build("4c")})
	loop := reconcile.New(reconcile.Config{
		Tree: tree, Layout: layout, Limits: reconcile.Limits{QoS: qos.Config{Cgroup: cgroup.DefaultConfig(tree.Facts())}},
		View: l.View, Log: slog.New(slog.DiscardHandler),
	})
	put := func(d *ledger.Draft, uid string) {
		p := ledgertest.Pod(uid, "c")
		p.QoS, p.Pod.QoS = workload.Burstable, workload.Burstable
		both := workload.Quantities{workload.CPU: 100, workload.Memory: 1 << 20}
		p.Pod.Containers[0].Requests, p.Pod.Containers[0].Limits = both, both
		d.PutPod(p)
	}
	if _, err := l.Update(b.Context(), func(d *ledger.Draft) error {
		for i := range 30 {
			put(d, fmt.Sprintf("old%d", i))
		}
		return nil
	}); err != nil {
		b.Fatal(err)
	}
	if err := loop.Pass(b.Context()); err != nil {
		b.Skipf("the tree cannot be written to: %v", err)
	}
	defer func() {
		if err := tree.Remove(context.WithoutCancel(b.Context()), root); err != nil {
			b.Error(err)
		}
	}()
	d := ledger.NewDraft(l.View())
	put(d, "new")
	view := d.View()
	pod, _ := view.Pod("new")
	node, err := cgroup.PodNode(pod, layout, cgroup.DefaultConfig(tree.Facts()))
	if err != nil {
		b.Fatal(err)
	}
	weight := uint64(3100)
	tier := cgroup.Node{Name: node.Name.Parent(), Values: cgroup.Values{CPUShares: &weight}}
	undo := func() {
		if err := loop.ForgetPod(b.Context(), view, "new"); err != nil {
			b.Fatal(err)
		}
		if _, err := loop.UpdateTiers(b.Context()); err != nil {
			b.Fatal(err)
		}
		if err := loop.Pass(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	dirs := mounts(b, tree.Facts())
	for _, who := range []string{"berth", "kernel"} {
		b.Run("pod and its tier/30/"+who, func(b *testing.B) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			times := map[string][]time.Duration{}
			turn := func(name string, do func()) {
				start := threadTime(b)
				do()
				times[name] = append(times[name], threadTime(b)-start)
				undo()
			}
			for b.Loop() {
				turn("berth", func() {
					if _, _, err := loop.EnsurePod(b.Context(), view, "new"); err != nil {
						b.Fatal(err)
					}
				})
				turn("kernel", func() { bare(b, dirs, tree.Facts(), node, tier) })
			}
			b.ReportMetric(float64(median(times[who])), "cpu-ns/op")
			b.ReportMetric(float64(median(times[who]))/float64(median(times["kernel"])), "x-kernel")
		})
	}
}

// threadTime is what this thread has used of all processors.
func threadTime(b *testing.B) time.Duration {
	b.Helper()
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		b.Fatal(err)
	}
	return time.Duration(t.Nano())
}

// mounts are the directories in which the tree's cgroups are.
func mounts(b *testing.B, f cgroup.Facts) []string {
	b.Helper()
	const top = "/sys/fs/cgroup"
	if f.Version == cgroup.V2 {
		return []string{top}
	}
	entries, err := os.ReadDir(top)
	if err != nil {
		b.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		// Those of devices are the runtime's; cpu is a link where cpuacct is with it.
		if e.IsDir() && e.Name() != "devices" {
			out = append(out, filepath.Join(top, e.Name()))
		}
	}
	return out
}

// bare makes a cgroup and writes the values by the shortest way there is.
func bare(b *testing.B, dirs []string, facts cgroup.Facts, nodes ...cgroup.Node) {
	b.Helper()
	for _, dir := range dirs {
		if err := os.Mkdir(filepath.Join(dir, nodes[0].Name.String()), 0o755); err != nil {
			b.Fatal(err)
		}
	}
	if facts.Version == cgroup.V1 { // without these it would take no process
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			text, err := os.ReadFile(filepath.Join("/sys/fs/cgroup/cpuset", nodes[0].Name.Parent().String(), file))
			if err == nil {
				err = os.WriteFile(filepath.Join("/sys/fs/cgroup/cpuset", nodes[0].Name.String(), file), text, 0o600)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	for _, n := range nodes {
		for _, f := range n.Values.Files(facts) {
			dir := "/sys/fs/cgroup"
			if facts.Version == cgroup.V1 {
				controller, _, _ := strings.Cut(f.Name, ".")
				dir = filepath.Join(dir, controller)
			}
			if err := os.WriteFile(filepath.Join(dir, n.Name.String(), f.Name), []byte(f.Text), 0o600); err != nil {
				b.Fatal(err)
			}
		}
	}
}
