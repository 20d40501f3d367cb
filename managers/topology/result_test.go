package topology

import (
	"testing"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
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
		{"none", None, nil, Unasked, 0, 0, "policy none: no provider is called"},
		{"agreed", Restricted, []hint.Reply{reply(p(1), p(2), n(1, 2))}, Preferred, 1, 1, "node 1 is preferred by all"},
		{"any", SingleNUMANode, nil, Preferred, 0, 0, "any nodes are preferred by all"},
		{"apart", Restricted, []hint.Reply{named("a", reply(p(1), n(0, 1))), named("b", reply(p(0), n(0, 1)))}, NotPreferred, 1, 2,
			"no nodes are preferred for both r of a and r of b; policy restricted refuses"},
		{"apart, but admitted", BestEffort, []hint.Reply{named("a", reply(p(1), n(0, 1))), named("b", reply(p(0), n(0, 1)))},
			NotPreferred, 1, 2,
			"no nodes are preferred for both r of a and r of b; policy best-effort continues with node 0, which r on 0-1 and r on 0 have in common"},
		{"rules apart", BestEffort, []hint.Reply{oneOf(1), oneOf(2)}, NotPreferred, 2, 4,
			"no nodes are preferred for both r of p and r of p; policy best-effort continues with nodes 0-1"},
		{"impossible", SingleNUMANode, []hint.Reply{reply()}, NoCandidate, 0, 0, "r cannot be given; policy single-numa-node refuses"},
		{"impossible, but admitted", BestEffort, []hint.Reply{reply(), named("q", reply(p(1)))}, NotPreferred, 1, 0,
			"r cannot be given; policy best-effort continues with node 1"},
		{"nothing preferred", BestEffort, []hint.Reply{reply(n(0, 1))}, NotPreferred, 2, 0,
			"no nodes are preferred for r; policy best-effort continues with nodes 0-1"},
		{"nothing narrow", SingleNUMANode, []hint.Reply{reply(p(0, 1))}, NoCandidate, 0, 0,
			"no single node can give r; policy single-numa-node refuses"},
		{"nothing left", BestEffort, []hint.Reply{reply(n(0)), reply(n(1))}, NoCandidate, 1, 0,
			"no nodes are preferred for r; policy best-effort continues with all nodes"},
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

// oneOf is a rule about so many of four nodes.
func oneOf(count int) hint.Reply {
	return byRule(&hint.Rule{Universe: 15, Need: uint64(count), PreferredSize: count, Weights: numa.Weights{1, 1, 1, 1}})
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
