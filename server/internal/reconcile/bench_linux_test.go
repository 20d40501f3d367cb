package reconcile_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"testing"

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

// BenchmarkEnsurePod makes the cgroup of one more pod, its tier's weight
// included, as an admission does; "follow" puts a committed pod into force, "pass"
// compares the whole tree of some 30 pods.
// Package cgroupfs has the kernel's own part of it as a benchmark of its own.
func BenchmarkEnsurePod(b *testing.B) {
	tree, err := cgroupfs.Open(cgroupfs.Options{Setter: ocicgroups.Setter{}})
	if err != nil {
		b.Skipf("no usable tree: %v", err)
	}
	defer tree.Close()
	root := cgroup.Name{fmt.Sprintf("berthbench-pods-%d", os.Getpid())}
	layout, err := cgroup.NewLayout(root.String(), tree.Facts().Driver)
	if err != nil {
		b.Fatal(err)
	}
	l := ledgertest.New(b, ledger.Rules{Machine: machinetest.Build("4c")})
	put := func(d *ledger.Draft, uid string) {
		p := ledgertest.Pod(uid, "c")
		p.QoS, p.Pod.QoS = workload.Burstable, workload.Burstable
		p.Pod.Containers[0].Requests = workload.Quantities{workload.CPU: 100, workload.Memory: 1 << 20}
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
	loop := reconcile.New(reconcile.Config{
		Tree: tree, Layout: layout, Limits: reconcile.Limits{QoS: qos.Config{Cgroup: cgroup.DefaultConfig(tree.Facts())}},
		View: l.View, Log: slog.New(slog.DiscardHandler), Records: tree,
	})
	if err := loop.Pass(b.Context()); err != nil {
		b.Skipf("the tree cannot be written to: %v", err)
	}
	defer func() {
		if err := tree.Remove(context.WithoutCancel(b.Context()), root); err != nil {
			b.Error(err)
		}
	}()
	b.Run("pod", func(b *testing.B) {
		d := ledger.NewDraft(l.View())
		put(d, "new")
		view := d.View()
		for b.Loop() {
			if _, _, err := loop.EnsurePod(b.Context(), view, "new"); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			if err := loop.ForgetPod(b.Context(), view, "new"); err != nil {
				b.Fatal(err)
			}
			if _, err := loop.UpdateTiers(b.Context()); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	})
	b.Run("record", func(b *testing.B) { // what the claim record adds to an admission
		d := ledger.NewDraft(l.View())
		d.AddClaims("old0", ledgertest.Exclusive("c", "2-3"), ledgertest.Memory("c", "memory", "0", 1<<30),
			ledgertest.Devices("c", "vendor.com/gpu", "gpu-0", "gpu-1"))
		view := d.View()
		for b.Loop() {
			if _, err := loop.RecordClaims(b.Context(), view, "old0", false); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("follow", func(b *testing.B) {
		uid := 0
		for b.Loop() {
			b.StopTimer()
			uid++
			if _, err := l.Update(b.Context(), func(d *ledger.Draft) error {
				put(d, fmt.Sprintf("more%d", uid))
				d.RemovePod(fmt.Sprintf("more%d", uid-1))
				return nil
			}); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
			if err := loop.Follow(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("pass", func(b *testing.B) {
		for b.Loop() {
			if err := loop.Pass(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
}
