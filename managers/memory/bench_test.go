package memory

import (
	"context"
	"fmt"
	"testing"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
)

// benchNode has nodes of 64 GiB with pages of two sizes, and pods on half of
// them.
func benchNode(b *testing.B, nodes, pods int) *testNode {
	topo := machinetest.Build(fmt.Sprintf("1s%dn2c,mem=64Gi,huge=2Mi:1024,huge=1Gi:8", nodes))
	n := newNode(b, topo)
	draft := ledger.NewDraft(n.View())
	for i := range pods {
		record := ledgertest.Pod(fmt.Sprint("p", i), "c")
		node := fmt.Sprint(i % max(nodes/2, 1))
		draft.PutPod(ledgertest.With(record, ledgertest.Memory("c", "memory", node, gi),
			ledgertest.Memory("c", "hugepages-2Mi", node, 2*mi)))
	}
	if err := n.commit(draft, nil); err != nil {
		b.Fatal(err)
	}
	return n
}

var benchPod = pod("new", "c=1Gi 2Mi=64Mi 1Gi=1Gi")

// BenchmarkHints: one container with memory and two page sizes.
func BenchmarkHints(b *testing.B) {
	for _, nodes := range []int{2, 4, 8, 64} {
		for _, pods := range []int{0, 50} {
			b.Run(fmt.Sprintf("nodes=%d/pods=%d", nodes, pods), func(b *testing.B) {
				n := benchNode(b, nodes, pods)
				req := hint.Request{Pod: benchPod, Container: 0}
				b.ReportAllocs()
				for b.Loop() {
					if answers, err := n.Hints(context.Background(), n.View(), req); err != nil || len(answers) != 3 {
						b.Fatal(answers, err)
					}
				}
			})
		}
	}
}

// BenchmarkPlan: the same container under an affinity that does, and without one.
func BenchmarkPlan(b *testing.B) {
	for _, row := range []struct {
		name     string
		affinity hint.Hint
	}{{"decided", preferably(7)}, {"default", anywhere}} {
		b.Run(row.name, func(b *testing.B) {
			n := benchNode(b, 8, 50)
			req := hint.Request{Pod: benchPod, Container: 0}
			b.ReportAllocs()
			for b.Loop() {
				if claims, err := n.Plan(context.Background(), n.View(), req, row.affinity); err != nil || len(claims) != 3 {
					b.Fatal(claims, err)
				}
			}
		})
	}
}
