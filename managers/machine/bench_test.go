package machine_test

import (
	"testing"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
)

var benchShapes = []string{"2s4n32c2t", "2s32n32c2t"}

func BenchmarkNew(b *testing.B) {
	for _, shape := range benchShapes {
		b.Run(shape, func(b *testing.B) {
			s := machinetest.Describe(shape)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := machine.New(s); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkCPUsInNodes(b *testing.B) {
	for _, shape := range benchShapes {
		b.Run(shape, func(b *testing.B) {
			m := machinetest.Build(shape)
			b.ReportAllocs()
			for b.Loop() {
				m.CPUsInNodes(numa.Of(1, 3, 5))
			}
		})
	}
}

func BenchmarkNodesOf(b *testing.B) {
	for _, shape := range benchShapes {
		b.Run(shape, func(b *testing.B) {
			m := machinetest.Build(shape)
			set := cpuset.Range(60, 75)
			b.ReportAllocs()
			for b.Loop() {
				m.NodesOf(set)
			}
		})
	}
}

func BenchmarkCoverCores(b *testing.B) {
	for _, shape := range benchShapes {
		b.Run(shape, func(b *testing.B) {
			m := machinetest.Build(shape)
			set := cpuset.Range(60, 75)
			b.ReportAllocs()
			for b.Loop() {
				m.ByCore().Cover(set)
			}
		})
	}
}
