package cpu

import (
	"testing"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/workload"
)

func TestResize(t *testing.T) {
	t.Parallel()
	topo := machinetest.Build("1s8c")
	pod := func(class workload.QoSClass, milli, bytes int64) *workload.Pod {
		q := workload.Quantities{workload.CPU: milli, workload.Memory: bytes}
		return &workload.Pod{UID: "a", QoS: class, Containers: []workload.Container{{Name: "c", Requests: q, Limits: q}}}
	}
	tests := []struct {
		name        string
		policy      string
		holds       bool
		old, wanted *workload.Pod
		infeasible  bool
	}{
		{"guaranteed, pinned", PolicyStatic, true, pod(workload.Guaranteed, 2000, 1), pod(workload.Guaranteed, 3000, 1), true},
		{"guaranteed, shared", PolicyStatic, false, pod(workload.Guaranteed, 500, 1), pod(workload.Guaranteed, 600, 1), true},
		{"memory only", PolicyStatic, true, pod(workload.Guaranteed, 2000, 1), pod(workload.Guaranteed, 2000, 2), false},
		{"burstable", PolicyStatic, false, pod(workload.Burstable, 500, 1), pod(workload.Burstable, 600, 1), false},
		{"no policy", PolicyNone, false, pod(workload.Guaranteed, 2000, 1), pod(workload.Guaranteed, 3000, 1), false},
		{"pinned before the policy went", PolicyNone, true, pod(workload.Guaranteed, 2000, 1), pod(workload.Guaranteed, 3000, 1), true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m, err := New(Config{Policy: tt.policy, ReservedMilliCPU: 1000}, topo)
			if err != nil {
				t.Fatal(err)
			}
			record := ledgertest.Pod("a", "c")
			if tt.holds {
				record = ledgertest.With(record, ledgertest.Exclusive("c", "1-2"))
			}
			d := ledger.NewDraft(ledgertest.New(t, ledger.Rules{Machine: topo}).View())
			d.PutPod(record)
			err = m.Resize(t.Context(), d.View(), tt.old, tt.wanted)
			reason, _ := errdefs.ReasonOf(err)
			if (err != nil) != tt.infeasible || tt.infeasible && reason != errdefs.Infeasible {
				t.Errorf("got %v, want infeasible: %t", err, tt.infeasible)
			}
		})
	}
}
