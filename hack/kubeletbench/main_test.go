package main

import (
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/hack/kubeletbench/cases"
)

func TestGoMod(t *testing.T) {
	t.Parallel()
	const kubernetes = `// A comment.
module k8s.io/kubernetes

go 1.27.0

require k8s.io/api v0.0.0

replace (
	k8s.io/api => ./staging/src/k8s.io/api
	k8s.io/ktesting => ./staging/src/k8s.io/ktesting
)
`
	const want = `// A comment.
module github.com/berthd/berth

go 1.27.0

require k8s.io/api v0.0.0

replace (
	k8s.io/api => k8s.io/api v0.38.0-beta.0
	k8s.io/ktesting => ./empty/k8s.io/ktesting
)

require k8s.io/kubernetes v1.38.0-beta.0

replace sigs.k8s.io/structured-merge-diff/v7 => sigs.k8s.io/structured-merge-diff/v7 v7.0.0
`
	if got := goMod(kubernetes, "v1.38.0-beta.0"); got != want {
		t.Errorf("got\n%s", got)
	}
	if got := goMod(kubernetes, "v1.37.2"); !strings.Contains(got, "k8s.io/ktesting => k8s.io/ktesting v0.37.2\n") {
		t.Errorf("got\n%s", got)
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	samples := func(aside float64, ns ...float64) (all []cases.Sample) {
		for _, v := range ns {
			all = append(all, cases.Sample{NS: v, AsideNS: aside, Allocs: 7})
		}
		return all
	}
	programs := []*program{{name: "berth"}, {name: "kubelet 1"}, {name: "kubelet 2"}}
	rows := []row{
		{
			cases.Case{Operation: "merge", Nodes: 2},
			[][]cases.Sample{samples(0, 900, 1000, 1100), samples(0, 12345), samples(0, 500)}, make([]bool, 3),
		},
		{
			cases.Case{Operation: "merge", Nodes: 4},
			[][]cases.Sample{samples(0, 1e6), samples(0, 2e6), nil}, []bool{false, false, true},
		},
		{
			cases.Case{Operation: "decision", Nodes: 2},
			[][]cases.Sample{samples(0, 2000), samples(0, 1), samples(10e3, 50e3)}, make([]bool, 3),
		},
	}
	var b strings.Builder
	table(&b, programs, rows, 20*time.Second)
	want := `| operation | nodes | berth | kubelet 1 | kubelet 2 | kubelet 2 : berth |
| --- | --- | --- | --- | --- | --- |
| merge | 2 | 1.00 µs ± 10 %, 7 allocs | 12.3 µs ± 0 %, 7 allocs | 500 ns ± 0 %, 7 allocs | 0.5 |
|  | 4 | 1.00 ms ± 0 %, 7 allocs | 2.00 ms ± 0 %, 7 allocs | over 20 s | over 20 thousand |
| decision | 2 | 2.00 µs ± 0 %, 7 allocs | 1 ns ± 0 %, 7 allocs | 50.0 µs ± 0 %, 7 allocs; 40.0 µs without Allocate of devices | 20 |
`
	if b.String() != want {
		t.Errorf("got\n%s", b.String())
	}
}
