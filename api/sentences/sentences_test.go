package sentences

import (
	"slices"
	"testing"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

// TestSteps: steps are grouped by owner, those in which nothing is decided are left out, and nothing of the outcome is said again.
func TestSteps(t *testing.T) {
	t.Parallel()
	hint := &typesv1.TopologyHint{NumaNodes: &typesv1.NUMANodeSet{Ids: []uint32{0, 1}}, Preferred: true}
	trace := &typesv1.Trace{Reason: "TopologyAffinityError", Message: "no", Steps: []*typesv1.TraceStep{
		{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_NOTED, Text: "a note"},
		{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_ANSWERED, ContainerName: "a", Provider: "cpu", Resource: "cpu",
			Answer: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_OPTIONS, Hints: []*typesv1.TopologyHint{hint}, Omitted: 2},
		{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_MERGED, ContainerName: "a", Text: "merged", Hints: []*typesv1.TopologyHint{hint}},
		{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_VALIDATED, Provider: "cpu"},
		{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_REFUSED, Provider: "cpu", Text: "no"},
	}}
	for _, tt := range []struct {
		wide bool
		want []Part
	}{
		{false, []Part{{"pod", []string{"note: a note"}},
			{"container a", []string{"cpu offers on nodes {0-1}* and 2 more", "merge: merged"}},
			{"pod", []string{"cpu refuses"}}}},
		{true, []Part{{"pod", []string{"note: a note"}},
			{"container a", []string{"cpu offers on nodes {0-1}* and 2 more", "merge: merged; lost: nodes {0-1}*"}},
			{"pod", []string{"validated by cpu", "cpu refuses"}}}},
	} {
		got, starred := Steps(trace, trace.GetSteps(), tt.wide)
		if !starred || !slices.EqualFunc(got, tt.want, func(a, b Part) bool {
			return a.Owner == b.Owner && slices.Equal(a.Steps, b.Steps)
		}) {
			t.Errorf("wide %t: %q, %t", tt.wide, got, starred)
		}
	}
	if got := Outcome(trace); got != "rejected: TopologyAffinityError: no" {
		t.Error(got)
	}
	if got := Caller(&inspectv1.HistoryCaller{Uid: 7, Name: "a (uid 0)"}); got != `"a (uid 0)" (uid 7)` {
		t.Error(got)
	}
}
