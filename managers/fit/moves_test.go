package fit_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/fit"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// stays refuses moves of memory.
type stays struct{}

func (stays) CheckMove(context.Context, *ledger.View, string, *ledger.Move) error {
	return errdefs.Refuse(errdefs.Infeasible, "its cgroup is not known")
}

func (stays) Settled(context.Context, *ledger.View, string) error { return nil }

// TestFitAfterMoves: node 0 has CPUs 1-3 for pods, and node 1 has CPUs 4-7. A pod that may move has CPUs 1-2, and one that may
// not has CPUs 4-5.
func TestFitAfterMoves(t *testing.T) {
	t.Parallel()
	m := machinetest.Build("2s1n4c1t", machinetest.Memory(0, 1024*mi), machinetest.Memory(1, 1024*mi))
	set, err := managerset.New(managerset.Config{
		CPU:      cpu.Config{Policy: cpu.PolicyStatic, ReservedCPUs: cpuset.Of(0)},
		Memory:   memory.Config{Policy: memory.PolicyStatic, AllowUnreserved: true},
		Topology: topology.Config{Policy: topology.SingleNUMANode, Scope: hint.ContainerScope},
	}, m)
	if err != nil {
		t.Fatal(err)
	}
	if set, err = set.Join(nil, nil); err != nil {
		t.Fatal(err)
	}
	sized := func(uid string, cpus int64) workload.Pod {
		return pod(uid, workload.Quantities{workload.CPU: cpus * 1000, workload.Memory: 64 * mi})
	}
	d := ledger.NewDraft(ledgertest.New(t, set.Rules).View())
	for uid, list := range map[string]string{"a": "1-2", "b": "4-5"} {
		p := ledgertest.With(ledgertest.Pod(uid, "main"), ledgertest.Exclusive("main", list),
			ledgertest.Memory("main", "memory", fmt.Sprint(len(uid)-1+int(list[0]-'1')/3), 64*mi))
		p.Pod = sized(uid, 2)
		p.QoS = workload.Guaranteed
		if uid == "a" {
			p.Pod.Annotations = map[string]string{workload.MovableAnnotation: string(workload.MovableAnywhere)}
		}
		d.PutPod(p)
	}
	view := d.View()
	for _, f := range check.View(view) {
		t.Fatal(f)
	}
	for name, row := range map[string]struct {
		search fit.Search
		pods   []workload.Pod
		want   string
	}{
		"without a search": {fit.Search{}, []workload.Pod{sized("big", 3)}, "later"},
		"one moves": {fit.Search{MaxMoves: 1}, []workload.Pod{sized("big", 3)},
			"after-defragmentation by 1 moves of 64 MiB"},
		"each has the room of its own": {fit.Search{MaxMoves: 4}, []workload.Pod{sized("big", 3), sized("also", 3), sized("huge", 9)},
			"after-defragmentation by 1 moves of 64 MiB, later, never"},
		"those that fit now come first": {fit.Search{MaxMoves: 4}, []workload.Pod{sized("big", 3), sized("small", 2)},
			"later, now"},
		"its memory cannot move": {fit.Search{MaxMoves: 4, Mover: stays{}}, []workload.Pod{sized("big", 3)}, "later"},
	} {
		out, limited, err := fit.Try(t.Context(), admission.Config{}, view, set, time.Now(), row.pods, row.search)
		if err != nil || limited {
			t.Fatalf("%s: limited %v, %v", name, limited, err)
		}
		var got []string
		for _, o := range out {
			text := string(o.When)
			if o.Moves > 0 {
				text += fmt.Sprintf(" by %d moves of %d MiB", o.Moves, o.Bytes/mi)
			}
			got = append(got, text)
		}
		if text := strings.Join(got, ", "); text != row.want {
			t.Errorf("%s: %s, want %s", name, text, row.want)
		}
	}

	// Many pods share the limit of the search: each tries to do without pod a, pod c and both.
	c := ledgertest.With(ledgertest.Pod("c", "main"), ledgertest.Memory("main", "memory", "1", 64*mi))
	c.Pod.Annotations = map[string]string{workload.MovableAnnotation: string(workload.MovableAnywhere)}
	d.PutPod(c)
	var many []workload.Pod
	for i := range 256 {
		many = append(many, sized(fmt.Sprint("p", i), 4))
	}
	out, limited, err := fit.Try(t.Context(), admission.Config{}, d.View(), set, time.Now(), many, fit.Search{MaxMoves: 4})
	if err != nil || !limited || len(out) != len(many) {
		t.Errorf("many: limited %v, %d outcomes, %v", limited, len(out), err)
	}
}
