package main

import (
	"strings"
	"testing"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/numa"
)

// TestPlacementsAreFolded: a machine with 8 nodes has 255 sets of them.
func TestPlacementsAreFolded(t *testing.T) {
	t.Parallel()
	a := &typesv1.TopologyHints{Resource: "cpu", Kind: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_OPTIONS}
	for i := range uint32(shownHints + 2) {
		a.Hints = append(a.Hints, hintOf(i < 2, i))
	}
	if got, want := answerText("cpu", a, false), "cpu offers on nodes {0}*, {1}*, {2}, {3}, {4}, {5}, {6}, {7} and 2 more"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := answerText("cpu", a, true); !strings.HasSuffix(got, "{8}, {9}") {
		t.Errorf("-o wide leaves out some: %s", got)
	}
}

// TestMissingIsSaidOnce: the node as a whole is reported only where its usage shows
// something else than those of the NUMA nodes.
func TestMissingIsSaidOnce(t *testing.T) {
	t.Parallel()
	short := func(resource, nodes string, need, free uint64) *typesv1.Shortage {
		mask, err := numa.Parse(nodes)
		if err != nil {
			t.Fatal(err)
		}
		return &typesv1.Shortage{Resource: resource, NumaNodes: convert.SomeNodes(mask), Need: need, Free: free}
	}
	trace := &typesv1.Trace{Steps: []*typesv1.TraceStep{
		{Shortages: []*typesv1.Shortage{short("cpu", "0-1", 4, 2), short("memory", "0-1", 9, 8)}},
		{Shortages: []*typesv1.Shortage{short("cpu", "", 4, 2), short("memory", "", 9, 7), short("example.com/gpu", "", 2, 1)}},
	}}
	var got strings.Builder
	explainMissing(&got, trace, nil)
	want := `
missing
  cpu on nodes 0-1: 4 needed, 2 free
  memory on nodes 0-1: 9 needed, 8 free
  memory: 9 needed, 7 free
  example.com/gpu: 2 needed, 1 free
`
	if got.String() != want {
		t.Errorf("got %s, want %s", got.String(), want)
	}
}
