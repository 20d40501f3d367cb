package ledger

import (
	"cmp"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/workload"
)

// TestPodsAreInOrder: whatever a draft adds, replaces and removes, and however many
// drafts lie on top of each other, views yield the pods that they know by uid.
func TestPodsAreInOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		uid := rapid.Custom(func(t *rapid.T) string { return strconv.Itoa(rapid.IntRange(0, 12).Draw(t, "uid")) })
		var r records
		for range rapid.IntRange(0, 8).Draw(t, "steps") {
			changes := map[string]*Pod{}
			for _, u := range rapid.SliceOfN(uid, 0, 4).Draw(t, "changed") {
				changes[u] = &Pod{Pod: workload.Pod{UID: u}}
				if rapid.Bool().Draw(t, "removed") {
					changes[u] = nil
				}
			}
			if r = r.with(changes); rapid.Bool().Draw(t, "flat") {
				r = r.flat()
			}
			want := slices.SortedFunc(r.all(), func(a, b *Pod) int { return cmp.Compare(a.UID(), b.UID()) })
			if got := slices.Collect(r.sorted()); !slices.Equal(got, want) || len(got) != r.len() {
				t.Fatalf("%d pods in another order, want %d", len(got), len(want))
			}
			for first := range r.sorted() {
				if first != want[0] {
					t.Fatal("the first is another one")
				}
				break
			}
		}
	})
}
