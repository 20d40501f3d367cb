package bench

import (
	"fmt"
	"testing"

	reference "k8s.io/utils/cpuset"

	"github.com/berthd/berth/managers/cpuset"
)

// cpuCounts are the machine sizes to measure: a board, a laptop's limit of one
// word, the largest that a cpuset.Set holds without allocation, a big server,
// and the largest that the kernel supports.
var cpuCounts = []int{8, 64, 256, 1024, cpuset.MaxCPUs}

// setPair is the same two sets in both implementations. a and a2 have equal ids
// but no memory in common.
type setPair struct {
	a, a2, b          cpuset.Set
	refA, refA2, refB reference.CPUSet
	listA             string
}

// newSetPair takes every second CPU for a and every third for b: neither a few
// long ranges, which flatter the list format, nor single CPUs only.
func newSetPair(cpus int) setPair {
	var a, b []int
	for id := range cpus {
		if id%2 == 0 || id >= cpus-2 {
			a = append(a, id)
		}
		if id%3 == 0 || id == cpus-1 {
			b = append(b, id)
		}
	}
	return setPair{
		a: cpuset.Of(a...), a2: cpuset.Of(a...), b: cpuset.Of(b...),
		refA: reference.New(a...), refA2: reference.New(a...), refB: reference.New(b...),
		listA: cpuset.Of(a...).String(),
	}
}

// The results are kept so that the compiler cannot drop the work.
var (
	sinkSet  cpuset.Set
	sinkRef  reference.CPUSet
	sinkBool bool
	sinkText string
	sinkErr  error
)

// setOperations are the measured operations of both. answer returns a text that
// has to be the same for both.
var setOperations = []struct {
	name       string
	berth, ref func(p *setPair)
	answer     func(p *setPair) (berth, ref string)
}{
	{
		name:   "difference",
		berth:  func(p *setPair) { sinkSet = p.a.Minus(p.b) },
		ref:    func(p *setPair) { sinkRef = p.refA.Difference(p.refB) },
		answer: func(p *setPair) (string, string) { return p.a.Minus(p.b).String(), p.refA.Difference(p.refB).String() },
	},
	{
		name:   "union",
		berth:  func(p *setPair) { sinkSet = p.a.Union(p.b) },
		ref:    func(p *setPair) { sinkRef = p.refA.Union(p.refB) },
		answer: func(p *setPair) (string, string) { return p.a.Union(p.b).String(), p.refA.Union(p.refB).String() },
	},
	{
		name:  "equality",
		berth: func(p *setPair) { sinkBool = p.a == p.a2 },
		ref:   func(p *setPair) { sinkBool = p.refA.Equals(p.refA2) },
		answer: func(p *setPair) (string, string) {
			return fmt.Sprint(p.a == p.a2, p.a == p.b), fmt.Sprint(p.refA.Equals(p.refA2), p.refA.Equals(p.refB))
		},
	},
	{
		name:  "parse",
		berth: func(p *setPair) { sinkSet, sinkErr = cpuset.Parse(p.listA) },
		ref:   func(p *setPair) { sinkRef, sinkErr = reference.Parse(p.listA) },
		answer: func(p *setPair) (string, string) {
			berth, err := cpuset.Parse(p.listA)
			ref, refErr := reference.Parse(p.listA)
			return fmt.Sprint(berth, err), fmt.Sprint(ref, refErr)
		},
	},
	{
		name:   "format",
		berth:  func(p *setPair) { sinkText = p.a.String() },
		ref:    func(p *setPair) { sinkText = p.refA.String() },
		answer: func(p *setPair) (string, string) { return p.a.String(), p.refA.String() },
	},
}

// TestCPUSetAnswers keeps the benchmark honest: both sides do the same work.
func TestCPUSetAnswers(t *testing.T) {
	t.Parallel()
	for _, cpus := range cpuCounts {
		p := newSetPair(cpus)
		for _, op := range setOperations {
			if berth, ref := op.answer(&p); berth != ref {
				t.Errorf("%s of %d CPUs: berth answers %s, the reference %s", op.name, cpus, berth, ref)
			}
		}
	}
}

func BenchmarkCPUSet(b *testing.B) {
	for _, op := range setOperations {
		for _, cpus := range cpuCounts {
			p := newSetPair(cpus)
			b.Run(fmt.Sprintf("%s/%d/berth", op.name, cpus), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					op.berth(&p)
				}
			})
			b.Run(fmt.Sprintf("%s/%d/reference", op.name, cpus), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					op.ref(&p)
				}
			})
		}
	}
}
