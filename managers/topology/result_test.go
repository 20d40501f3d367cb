package topology

import (
	"testing"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
)

func TestResultsExplain(t *testing.T) {
	t.Parallel()
	named := func(provider string, r hint.Reply) hint.Reply {
		r.Provider = provider
		return r
	}
	for _, row := range []struct {
		name    string
		policy  Policy
		replies []hint.Reply
		stage   Stage
		b       int
		losers  int
		text    string
	}{
		{"none", None, nil, Unasked, 0, 0, "policy none: nobody is asked"},
		{"agreed", Restricted, []hint.Reply{reply(p(1), p(2), n(1, 2))}, Preferred, 1, 1, "preferred by all: nodes 1"},
		{"any", SingleNUMANode, nil, Preferred, 0, 0, "preferred by all: any nodes will do"},
		{"apart", Restricted, []hint.Reply{named("a", reply(p(1), n(0, 1))), named("b", reply(p(0), n(0, 1)))}, NotPreferred, 1, 2,
			"no placement is preferred by all; nodes 0 come nearest to the 1 that are needed at least; a for r and b for r prefer no nodes in common"},
		{"impossible", SingleNUMANode, []hint.Reply{reply()}, NoCandidate, 0, 0, "no nodes are left that serve all; p for r prefers nothing"},
	} {
		r := manager(t, row.policy, false, 4).Merge(row.replies)
		if r.Stage != row.stage || r.B != row.b || len(r.Losers) != row.losers || r.Text() != row.text {
			t.Errorf("%s: got %+v, %q", row.name, r, r.Text())
		}
		step := r.Step()
		if step.Kind != ledger.StepMerged || *step.Affinity != r.Affinity || step.Text != row.text || len(step.Hints) != row.losers {
			t.Errorf("%s: step %+v", row.name, step)
		}
	}
}

// The losers are the next best, and what is left out of them is counted.
func TestLosers(t *testing.T) {
	t.Parallel()
	r := manager(t, BestEffort, false, 8).Merge([]hint.Reply{reply(p(7), p(6), p(5), p(4), p(3), p(2), p(1), p(0), p(0, 1))})
	want := []ledger.Affinity{p(1), p(2), p(3), p(4)}
	if r.Affinity != p(0) || len(r.Losers) != len(want) || r.Omitted != 4 {
		t.Fatalf("got %+v", r)
	}
	for i := range want {
		if r.Losers[i] != want[i] {
			t.Errorf("loser %d is %+v, want %+v", i, r.Losers[i], want[i])
		}
	}
}
