package decisions_test

import (
	"testing"

	"google.golang.org/protobuf/proto"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/convert/decisions"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
)

func nodes(ids ...uint32) *typesv1.NUMANodeSet { return &typesv1.NUMANodeSet{Ids: ids} }

func TestTrace(t *testing.T) {
	t.Parallel()
	claim := ledgertest.Exclusive("main", "2")
	l, _ := ledgertest.Open(t, journal.Options{Journal: ledgertest.NewJournal(), Rules: ledger.Rules{Machine: machinetest.Build("4c")},
		Epoch: 5})
	view := l.View()
	got := decisions.Trace(view, &ledger.Trace{
		AdmissionID: "a", Pod: "u", Namespace: "ns", Name: "n", Generation: 7, DryRun: true, Reason: "R", Message: "m",
		Steps: []ledger.Step{
			{
				Kind: ledger.StepAnswered, Container: "main", Provider: "cpu", Resource: "cpu", Answer: "options",
				Hints: []ledger.Affinity{{Nodes: numa.Of(0), Preferred: true}, {Any: true}}, Omitted: 3,
			},
			{Kind: ledger.StepMerged, Affinity: &ledger.Affinity{Nodes: numa.Of(0)}, Approximate: true},
			{Kind: ledger.StepPlanned, Claim: &claim},
			{Kind: ledger.StepRefused, Text: "t", Shortages: []ledger.Shortage{
				{
					Resource: "cpu", Nodes: "0", Need: 4, Free: 1, Held: 2, Withheld: 3, Why: "reserved",
					Holders: []ledger.Owner{{Pod: "v", Container: "c"}, {Pod: "w"}}, MoreHolders: 4, Structural: true,
				},
			}},
		},
		Suggestions: []ledger.Suggestion{
			{Kind: ledger.SuggestRequest, Text: "t", Requests: []ledger.RequestChange{{Container: "main", Resource: "cpu", From: 4,
				To: 1}}},
			{Kind: ledger.SuggestPolicy, Policy: "best-effort", Scope: "pod"},
			{Kind: ledger.SuggestRemoval, Remove: []string{"v", "w"}},
			{Kind: ledger.SuggestWait, Wait: []string{"v"}, How: []string{"watch", "it"}},
			{Kind: ledger.SuggestSplit},
		},
		Tried: 5, Missing: []string{"cpu", "memory"},
	})
	want := &typesv1.Trace{
		AdmissionId: "a", PodUid: "u", Namespace: "ns", Name: "n", Revision: 5<<10 + 7, DryRun: true, Reason: "R", Message: "m",
		Steps: []*typesv1.TraceStep{
			{
				Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_ANSWERED, ContainerName: "main", Provider: "cpu", Resource: "cpu",
				Answer: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_OPTIONS,
				Hints:  []*typesv1.TopologyHint{{NumaNodes: nodes(0), Preferred: true}, {}}, Omitted: 3,
			},
			{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_MERGED, Affinity: &typesv1.TopologyHint{NumaNodes: nodes(0)}, Approximate: true},
			{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_PLANNED,
				Claim: &typesv1.Claim{Payload: &typesv1.Claim_Cpu{Cpu: convert.Claim(&claim).GetCpu()}}},
			{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_REFUSED, Text: "t", Shortages: []*typesv1.Shortage{
				{
					Resource: "cpu", NumaNodes: &typesv1.NUMANodeSet{Ids: []uint32{0}}, Need: 4, Free: 1, Held: 2, Withheld: 3,
					Why:     "reserved",
					Holders: []*typesv1.ContainerRef{{PodUid: "v", ContainerName: "c"}, {PodUid: "w"}}, MoreHolders: 4, Structural: true,
				},
			}},
		},
		Suggestions: []*typesv1.Suggestion{
			{Kind: typesv1.SuggestionKind_SUGGESTION_KIND_REQUEST, Text: "t",
				Requests: []*typesv1.RequestChange{{ContainerName: "main", Resource: "cpu", Current: 4, Proposed: 1}}},
			{Kind: typesv1.SuggestionKind_SUGGESTION_KIND_POLICY, Policy: "best-effort", Scope: "pod"},
			{Kind: typesv1.SuggestionKind_SUGGESTION_KIND_REMOVAL, RemovePodUids: []string{"v", "w"}},
			{Kind: typesv1.SuggestionKind_SUGGESTION_KIND_WAIT, WaitPodUids: []string{"v"}, How: []string{"watch", "it"}},
			{Kind: typesv1.SuggestionKind_SUGGESTION_KIND_SPLIT},
		},
		Tried: 5, Missing: []string{"cpu", "memory"},
	}
	if !proto.Equal(got, want) {
		t.Errorf("got\n\t%v\nwant\n\t%v", got, want)
	}
	if got := decisions.Trace(view, nil); got != nil {
		t.Errorf("no trace is %v, want nil", got)
	}
}
