package metrics_test

import (
	"context"
	"testing"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

func (cgroups) CheckResize(context.Context, *ledger.View, string) error { return nil }

func (cgroups) Resize(context.Context, *ledger.View, string) error { return nil }

func TestResizes(t *testing.T) {
	t.Parallel()
	h := build(t, topology.None)
	h.admit(t, "a", 2)
	resize := func(cpu, memory int64, dry bool) {
		t.Helper()
		q := workload.Quantities{workload.CPU: cpu, workload.Memory: memory}
		changes := []workload.Change{{Container: "a", Requests: q, Limits: q}}
		if _, err := h.Resize(t.Context(), live.ResizeRequest{UID: "a", Changes: changes, DryRun: dry}); err != nil {
			t.Fatal(err)
		}
	}
	resize(3000, 1, false) // a holder of CPUs
	resize(3000, 1, true)
	resize(2000, 2, false)
	resize(2000, 2, false) // the same again
	if _, err := h.Resize(t.Context(), live.ResizeRequest{}); errdefs.ClassOf(err) != errdefs.NotFound {
		t.Error(err)
	}
	h.expect(t,
		`kubelet_pod_infeasible_resizes_total{reason_detail="guaranteed_pod_cpu_manager_static_policy"} 1`,
		`kubelet_pod_resize_duration_milliseconds_count{success="true"} 1`,
		`kubelet_pod_resize_duration_milliseconds_count{success="false"} 1`,
	)
}

func TestReplacements(t *testing.T) {
	t.Parallel()
	h := build(t, topology.None)
	cpus, nodes, memory := live.Loss{CPUs: cpuset.Of(1), Short: 1}, live.Loss{Nodes: 2}, live.Loss{Short: 1}
	h.set.Replaced(cpus, nil)
	h.set.Replaced(cpus, nil)
	h.set.Replaced(nodes, errdefs.Refuse(errdefs.ResizeDeferred, "nothing is free"))
	h.set.Replaced(memory, errdefs.Unavailablef("the disk is full"))
	h.expect(t,
		`berth_replacements_total{lost="cpus",result="moved"} 2`,
		`berth_replacements_total{lost="numa_nodes",result="reported"} 1`,
		`berth_replacements_total{lost="memory",result="failed"} 1`,
	)
}
