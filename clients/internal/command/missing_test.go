package command

import (
	"strings"
	"testing"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/numa"
)

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
	ExplainMissing(&got, trace, nil)
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
