package reconcile_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"testing"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/qos"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/host/cgroupfs"
	"github.com/berthd/berth/server/internal/host/cgroupfs/ocicgroups"
	"github.com/berthd/berth/server/internal/reconcile"
)

// sleeperEnv makes the test's program a process that only lives until its input ends.
const sleeperEnv = "RECONCILE_TEST_SLEEPER"

func TestMain(m *testing.M) {
	if os.Getenv(sleeperEnv) != "" {
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	os.Exit(m.Run())
}

// TestKernelNarrowsNestedCpusets has the kernel itself narrow a container that made cgroups of
// its own, with a process in the innermost: a start that needs its CPUs goes through, and what
// was narrowed gets its CPUs back.
func TestKernelNarrowsNestedCpusets(t *testing.T) {
	t.Parallel()
	tree, err := cgroupfs.Open(cgroupfs.Options{Setter: ocicgroups.Setter{}})
	if err != nil {
		t.Skipf("no usable tree: %v", err)
	}
	t.Cleanup(func() { _ = tree.Close() })
	if tree.Facts().Version != cgroup.V1 {
		t.Skipf("cgroup v%d narrows what is nested by itself", tree.Facts().Version)
	}
	root := cgroup.Name{fmt.Sprintf("berthtest-nested-%d", os.Getpid())}
	seen, err := tree.Observe(t.Context(), cgroup.Name{}, 0)
	if err != nil || len(seen.Nodes) == 0 || !cpuset.Of(0, 1).IsSubsetOf(seen.Nodes[0].Values.CPUs) {
		t.Skipf("CPUs 0 and 1 are needed: %+v, %v", seen, err)
	}
	layout, err := cgroup.NewLayout(root.String(), tree.Facts().Driver)
	if err != nil {
		t.Fatal(err)
	}
	l := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("2c")})
	update := func(change func(*ledger.Draft)) {
		t.Helper()
		if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { change(d); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	loop := reconcile.New(reconcile.Config{
		Tree: tree, Layout: layout, Limits: reconcile.Limits{QoS: qos.Config{Cgroup: cgroup.DefaultConfig(tree.Facts())}},
		View: l.View, Log: slog.New(slog.DiscardHandler),
	})
	start := func(uid string) (cgroup.Name, error) {
		owner := ledger.Owner{Pod: uid, Container: "c"}
		path, err := loop.EnsureContainer(t.Context(), l.View(), admission.Start{Binding: ledger.Binding{ID: uid, Owner: owner}})
		if err == nil {
			update(func(d *ledger.Draft) {
				d.Bind(ledger.Binding{ID: uid, Owner: owner, CgroupPath: path, Own: true, Sequence: 1})
			})
		}
		return layout.Driver().Parse(path), err
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	update(func(d *ledger.Draft) {
		p := ledgertest.Pod("a", "c")
		p.QoS, p.Pod.QoS = workload.Burstable, workload.Burstable
		d.PutPod(p)
	})
	t.Cleanup(func() {
		if err := tree.Remove(context.WithoutCancel(t.Context()), root); err != nil {
			t.Errorf("left behind: %v", err)
		}
	})
	if err := loop.Pass(t.Context()); err != nil {
		t.Skipf("the tree cannot be written to (uid %d): %v", os.Getuid(), err)
	}
	path, err := start("a")
	must(err)
	nested := []cgroup.Name{append(path.Parent(), path.Base()), append(path, "docker"), append(path, "docker", "all"),
		append(path, "docker", "there")}
	for i, set := range []cpuset.Set{{}, cpuset.Of(0, 1), cpuset.Of(0, 1), cpuset.Of(1)} {
		if !set.IsEmpty() {
			_, err := tree.Ensure(t.Context(), cgroup.Node{Name: nested[i], Values: cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: set}}})
			must(err)
		}
	}
	sleeper := exec.Command(os.Args[0]) // a machine of the tests has no program for this
	sleeper.Env = append(os.Environ(), sleeperEnv+"=1")
	_, err = sleeper.StdinPipe()
	must(err)
	must(sleeper.Start())
	t.Cleanup(func() { _ = sleeper.Process.Kill(); _ = sleeper.Wait() })
	must(tree.Move(t.Context(), nested[3], sleeper.Process.Pid))
	want := func(lists ...string) {
		t.Helper()
		for i, name := range nested {
			seen, err := tree.Observe(t.Context(), name, 0)
			must(err)
			if got := seen.Find(name).Values.CPUs.String(); got != lists[i] {
				t.Errorf("%s has CPUs %s, want %s", name, got, lists[i])
			}
		}
	}
	for range 2 {
		update(func(d *ledger.Draft) {
			d.PutPod(ledgertest.With(ledgertest.Pod("own", "c"), ledgertest.Exclusive("c", "1")))
		})
		_, _, err = loop.EnsurePod(t.Context(), l.View(), "own")
		must(err)
		_, err = start("own")
		must(err)
		want("0", "0", "0", "0")
		must(loop.RemovePod(t.Context(), l.View(), "own"))
		update(func(d *ledger.Draft) { d.RemovePod("own") })
		must(loop.Follow(t.Context()))
		want("0-1", "0-1", "0-1", "0-1")
	}
}
