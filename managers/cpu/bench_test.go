package cpu

import (
	"context"
	"fmt"
	"testing"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine/machinetest"
)

// half leaves every second core of a machine free.
func half(t *table) cpuset.Set {
	var b cpuset.Builder
	for i := 0; i < t.part[core].Len(); i += 2 {
		b.AddSet(t.part[core].CPUs(i))
	}
	return b.Set()
}

// coresPerNode on 2 sockets of 4 nodes of 2 threads: 64 to 4,096 CPUs.
var coresPerNode = []int{4, 16, 32, 64, 128, 256}

func BenchmarkAssign(b *testing.B) {
	for _, cores := range coresPerNode {
		topo := machinetest.Build(fmt.Sprintf("2s4n4l%dc2t", cores/4))
		table := newTable(topo)
		free := half(table)
		for _, row := range []struct {
			name string
			n    int
			run  func(n int) (cpuset.Set, error)
		}{
			{"packed", 16, func(n int) (cpuset.Set, error) { return table.packed(free, n, manner{}) }},
			{"uncores", 16, func(n int) (cpuset.Set, error) { return table.packed(free, n, manner{uncores: true}) }},
			{"spread", 16, func(n int) (cpuset.Set, error) { return table.packed(free, n, manner{spread: true}) }},
			{"distributed", 130, func(n int) (cpuset.Set, error) { return table.distributed(free, n, evenly{group: 1}) }},
		} {
			n := min(row.n, free.Len())
			b.Run(fmt.Sprintf("%s/%d/cpus=%d", row.name, n, topo.CPUs().Len()), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := row.run(n); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkManager(b *testing.B) {
	for _, options := range []string{"", AlignBySocket} {
		for _, cores := range coresPerNode {
			topo := machinetest.Build(fmt.Sprintf("2s4n%dc2t", cores))
			n := newNode(b, topo, "0", options)
			draft := ledger.NewDraft(n.View())
			busy := n.Allocatable().Minus(half(n.table))
			draft.PutPod(&ledger.Pod{Pod: *pod("busy", "c=1"), Claims: []ledger.Claim{{
				Owner: ledger.Owner{Pod: "busy", Container: "c"}, Provider: Name, Resource: Resource,
				CPUs: &ledger.CPUs{Set: busy, Use: ledger.CPUExclusive},
			}}})
			view := draft.View()
			req := hint.Request{Pod: pod("p", "c=16"), Container: 0}
			name := fmt.Sprintf("cpus=%d,options=%s", topo.CPUs().Len(), options)
			b.Run("hints/"+name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := n.Hints(context.Background(), view, req); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run("plan/"+name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := n.Plan(context.Background(), view, req, on(2)); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
