package recovery_test

import (
	"testing"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/recovery"
)

// TestUnionOfMemory: the union of two records has of each set of nodes as much as the record with more of it, also where
// a record has several blocks there.
func TestUnionOfMemory(t *testing.T) {
	t.Parallel()
	block := func(bytes uint64, nodes ...int) ledger.Block {
		return ledger.Block{Nodes: numa.Of(nodes...), Bytes: bytes}
	}
	for _, row := range []struct {
		a, b []ledger.Block
		want map[numa.Mask]uint64
	}{
		{[]ledger.Block{block(3, 0), block(4, 0)}, []ledger.Block{block(3, 0), block(4, 0)}, map[numa.Mask]uint64{numa.Of(0): 7}},
		{[]ledger.Block{block(3, 0), block(4, 0)}, []ledger.Block{block(5, 0)}, map[numa.Mask]uint64{numa.Of(0): 7}},
		{[]ledger.Block{block(5, 0)}, []ledger.Block{block(3, 0), block(4, 0)}, map[numa.Mask]uint64{numa.Of(0): 7}},
		{[]ledger.Block{block(3, 0), block(4, 0)}, []ledger.Block{block(9, 0)}, map[numa.Mask]uint64{numa.Of(0): 9}},
		{
			[]ledger.Block{block(3, 0), block(1, 1)}, []ledger.Block{block(2, 0), block(4, 1), block(1, 0, 1)},
			map[numa.Mask]uint64{numa.Of(0): 3, numa.Of(1): 4, numa.Of(0, 1): 1},
		},
	} {
		claim := func(blocks []ledger.Block) []ledger.Claim {
			return []ledger.Claim{{Owner: ledger.Owner{Pod: "a", Container: "c"}, Provider: "memory", Resource: "memory", Memory: blocks}}
		}
		got := map[numa.Mask]uint64{}
		union := recovery.Union(claim(row.a), claim(row.b))
		for _, b := range union[0].Memory {
			got[b.Nodes] += b.Bytes
		}
		for nodes, bytes := range row.want {
			if len(union) != 1 || len(got) != len(row.want) || got[nodes] != bytes {
				t.Errorf("%v and %v: %v, want %v", row.a, row.b, got, row.want)
			}
		}
	}
}
