package memory

import (
	"reflect"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
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
		{"guaranteed", PolicyStatic, true, pod(workload.Guaranteed, 500, 1), pod(workload.Guaranteed, 500, 2), true},
		{"cpu only", PolicyStatic, true, pod(workload.Guaranteed, 500, 1), pod(workload.Guaranteed, 600, 1), false},
		{"burstable", PolicyStatic, false, pod(workload.Burstable, 500, 1), pod(workload.Burstable, 500, 2), false},
		{"no policy", PolicyNone, false, pod(workload.Guaranteed, 500, 1), pod(workload.Guaranteed, 500, 2), false},
		{"pinned before the policy went", PolicyNone, true, pod(workload.Guaranteed, 500, 1), pod(workload.Guaranteed, 500, 2), true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m, err := New(Config{Policy: tt.policy, AllowUnreserved: true}, topo)
			if err != nil {
				t.Fatal(err)
			}
			record := ledgertest.Pod("a", "c")
			if tt.holds {
				record = ledgertest.With(record, ledgertest.Memory("c", "memory", "0", 1))
			}
			d := ledger.NewDraft(ledgertest.New(t, ledger.Rules{Machine: topo}).View())
			d.PutPod(record)
			_, err = m.Resize(t.Context(), d.View(), tt.old, tt.wanted, hint.Widening{})
			reason, _ := errdefs.ReasonOf(err)
			if (err != nil) != tt.infeasible || tt.infeasible && reason != errdefs.Infeasible {
				t.Errorf("got %v, want infeasible: %t", err, tt.infeasible)
			}
		})
	}
}

// TestResizePinned: two nodes with 8 GiB each.
func TestResizePinned(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		affinity hint.Hint
		others   string // on node 0
		from, to string
		want     string // usage
		reason   errdefs.Reason
	}{
		"more on its node":                   {affinity: preferably(0), from: "2Gi", to: "5Gi", want: "5Gi[0] 0[1]"},
		"less":                               {affinity: preferably(1), from: "5Gi", to: "2Gi", want: "0[0] 2Gi[1]"},
		"its node is too small, best-effort": {affinity: on(0), from: "2Gi", to: "9Gi", want: "8Gi[0-1] 1Gi[0-1]"},
		"its node is taken, preferred": {affinity: preferably(0), others: "5Gi", from: "2Gi", to: "4Gi",
			reason: errdefs.ResizeDeferred},
		"its huge pages stay": {affinity: preferably(0), from: "2Gi 1Gi=1Gi", to: "3Gi 1Gi=1Gi", want: "3Gi[0] 0[1]"},
		"on both nodes":       {affinity: on(0, 1), from: "10Gi", to: "12Gi", want: "8Gi[0-1] 4Gi[0-1]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topo := machinetest.Build("1s2n1c", machinetest.Memory(0, 8*gi), machinetest.Memory(1, 8*gi),
				machinetest.HugePages(0, gi/ki, 2))
			if name != "its huge pages stay" {
				topo = nodesOf(8*gi, 8*gi)
			}
			n := newNode(t, topo)
			n.must(n.admit(pod("a", "c="+tt.from), tt.affinity))
			if tt.others != "" {
				n.must(n.admit(pod("b", "c="+tt.others), preferably(0)))
			}
			wanted := pod("a", "c="+tt.to)
			before := n.View()
			claims, err := n.Resize(t.Context(), before, pod("a", "c="+tt.from), wanted, hint.Widening{})
			if reason, _ := errdefs.ReasonOf(err); reason != tt.reason {
				t.Fatalf("got %v, want reason %q", err, tt.reason)
			}
			if tt.reason != "" {
				return
			}
			n.must(err)
			d := ledger.NewDraft(before)
			had, _ := before.Pod("a")
			record := *had
			record.Pod = *wanted
			d.PutPod(&record)
			d.AddClaims("a", claims...)
			n.must(n.commit(d, nil))
			if got := n.usage("memory"); got != tt.want {
				t.Errorf("usage %s, want %s", got, tt.want)
			}
			now, _ := n.View().Pod("a")
			for i := range now.Claims {
				if !reflect.DeepEqual(now.Claims[i].Affinity, had.Claims[i].Affinity) {
					t.Errorf("the affinity of %s changed to %v", now.Claims[i].Resource, now.Claims[i].Affinity)
				}
			}
		})
	}
}
