package get

import (
	"strings"
	"testing"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

// TestPlacementsAreFolded: a machine with 8 nodes has 255 sets of them.
func TestPlacementsAreFolded(t *testing.T) {
	t.Parallel()
	a := &typesv1.TopologyHints{Resource: "cpu", Kind: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_OPTIONS}
	for i := range uint32(shownHints + 2) {
		a.Hints = append(a.Hints, &typesv1.TopologyHint{NumaNodes: &typesv1.NUMANodeSet{Ids: []uint32{i}}, Preferred: i < 2})
	}
	if got, want := answerText("cpu", a, false), "cpu offers on nodes {0}*, {1}*, {2}, {3}, {4}, {5}, {6}, {7} and 2 more"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := answerText("cpu", a, true); !strings.HasSuffix(got, "{8}, {9}") {
		t.Errorf("-o wide leaves out some: %s", got)
	}
}
