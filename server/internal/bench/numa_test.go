package bench

import (
	"fmt"
	"testing"

	"github.com/berthd/berth/managers/numa"
)

var (
	sinkMask numa.Mask
	sinkSum  int64
)

// BenchmarkNUMA has no reference beside it: the reference's masks live in the
// kubelet's main module, which cannot be imported.
func BenchmarkNUMA(b *testing.B) {
	firstNodes := func(nodes int) numa.Mask {
		var m numa.Mask
		for id := range nodes {
			m = m.With(id)
		}
		return m
	}
	for _, nodes := range []int{2, 8, 16} {
		universe := firstNodes(nodes)
		b.Run(fmt.Sprintf("subsets/%d/berth", nodes), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				for m := range numa.Subsets(universe) {
					sinkMask = m
				}
			}
		})
	}
	for _, nodes := range []int{2, 8, numa.MaxNodes} {
		rows := map[int]map[int]int{}
		for i := range nodes {
			rows[i] = map[int]int{}
			for j := range nodes {
				rows[i][j] = 10 + max(i-j, j-i)
			}
		}
		distances, err := numa.NewDistances(rows)
		if err != nil {
			b.Fatal(err)
		}
		universe := firstNodes(nodes)
		b.Run(fmt.Sprintf("distance-sum/%d/berth", nodes), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				sinkSum = distances.Sum(universe)
			}
		})
	}
}
