package reconcile_test

import (
	"log/slog"
	"testing"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/qos"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/reconcile"
)

// A runtime gets the path of the cgroup that the container will have.
func TestContainerPathIsThatOfTheCgroup(t *testing.T) {
	t.Parallel()
	l := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("4c")})
	record := ledgertest.Pod("a", "main")
	record.QoS = workload.Burstable
	view, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(record); return nil })
	if err != nil {
		t.Fatal(err)
	}
	facts := memtree.V2()
	layout, err := cgroup.NewLayout("/berth", facts.Driver)
	if err != nil {
		t.Fatal(err)
	}
	loop := reconcile.New(reconcile.Config{
		Tree: memtree.New(facts, cpuset.Range(0, 3), numa.Of(0)), Layout: layout,
		Limits: reconcile.Limits{QoS: qos.Config{Cgroup: cgroup.DefaultConfig(facts)}}, View: l.View, Log: slog.New(slog.DiscardHandler),
	})
	if _, _, err := loop.EnsurePod(t.Context(), view, "a"); err != nil {
		t.Fatal(err)
	}
	owner := ledger.Owner{Pod: "a", Container: "main"}
	made, err := loop.EnsureContainer(t.Context(), view, admission.Start{Binding: ledger.Binding{ID: "c1", Owner: owner}})
	if err != nil {
		t.Fatal(err)
	}
	told, err := loop.ContainerPath(record, "main")
	if err != nil || told != made || told != "/berth/kubepods/burstable/poda/main" {
		t.Errorf("told %q, %v; the cgroup is %q", told, err, made)
	}
	if path, err := loop.ContainerPath(record, "../b"); err == nil {
		t.Errorf("a name that leaves the pod's cgroup gives %q", path)
	}
}
