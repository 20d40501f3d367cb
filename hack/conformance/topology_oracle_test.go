package main

import "testing"

// TestMergeByDefinition compares the definition, which judges berth where the reference is wrong,
// with the recordings that have no mark.
func TestMergeByDefinition(t *testing.T) {
	t.Parallel()
	seen := 0
	type marked struct {
		header
		mergeAnswer
	}
	eachCase(t, "topology_merge", func(_ *Env, in mergeCase, want marked) {
		if len(want.Quirks) > 0 || want.Result == nil || in.Policy == "none" {
			return
		}
		seen++
		if got := in.byDefinition(); got != *want.Result {
			t.Errorf("%s: got %s, want %s", want.ID, render(got), render(want.Result))
		}
	})
	if seen < 1000 {
		t.Errorf("%d cases", seen)
	}
}
