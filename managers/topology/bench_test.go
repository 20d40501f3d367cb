package topology

import (
	"fmt"
	"testing"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/numa"
)

// fullList has every non-empty set of count nodes; those of size nodes are
// preferred.
func fullList(count, size int) []hint.Hint {
	var hints []hint.Hint
	for m := range numa.Subsets(1<<count - 1) {
		hints = append(hints, hint.Hint{Nodes: m, Preferred: m.Len() == size})
	}
	return hints
}

// fullReplies are lists of all sets. If apart, they prefer one or two nodes by
// turns, so that nothing is preferred by all.
func fullReplies(count, lists int, apart bool) []hint.Reply {
	var replies []hint.Reply
	for i := range lists {
		size := 1
		if apart {
			size += i % 2
		}
		replies = append(replies, reply(fullList(count, size)...))
	}
	return replies
}

// wideReplies are lists of all sets of at least least nodes.
func wideReplies(count, lists, least int) []hint.Reply {
	replies := fullReplies(count, lists, true)
	for i := range replies {
		a := &replies[i].Answers[0]
		var kept []hint.Hint
		for _, h := range a.Hints {
			if h.Nodes.Len() >= least {
				kept = append(kept, h)
			}
		}
		a.Hints = kept
	}
	return replies
}

func BenchmarkMerge(b *testing.B) {
	run := func(name string, m *Manager, replies []hint.Reply) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				m.Merge(replies)
			}
		})
	}
	for _, count := range []int{2, 4, 8} {
		for _, lists := range []int{2, 3, 5} {
			size := fmt.Sprintf("nodes=%d/lists=%d", count, lists)
			run(size+"/preferred", manager(b, BestEffort, false, count), fullReplies(count, lists, false))
			run(size+"/not-preferred", manager(b, BestEffort, false, count), fullReplies(count, lists, true))
		}
	}
	run("nodes=8/lists=5/not-preferred,closest", manager(b, BestEffort, true, 8), fullReplies(8, 5, true))
	run("nodes=8/lists=5/not-preferred,wide", manager(b, BestEffort, false, 8), wideReplies(8, 5, 3))
	run("nodes=8/lists=5/single-numa-node", manager(b, SingleNUMANode, false, 8), fullReplies(8, 5, false))
	run("nodes=12/lists=5/not-preferred", manager(b, BestEffort, false, 12), fullReplies(12, 5, true))
	run("nodes=16/lists=5/not-preferred", manager(b, BestEffort, false, 16), fullReplies(16, 5, true))
}
