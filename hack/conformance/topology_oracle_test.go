package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// TestMergeByDefinition holds the definition against the recordings that carry no
// mark: it is what judges berth where the reference is wrong.
func TestMergeByDefinition(t *testing.T) {
	t.Parallel()
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root, "..", "shared", "conformance", "topology_merge.jsonl.gz")
	if _, err := os.Stat(path); os.IsNotExist(err) {
		t.Skipf("no recordings: %v", err)
	}
	seen := 0
	err = eachLine(path, func(line []byte) error {
		var h header
		var in mergeCase
		var want mergeAnswer
		for _, v := range []any{&h, &in, &want} {
			if err := json.Unmarshal(line, v); err != nil {
				return err
			}
		}
		if len(h.Quirks) > 0 || want.Result == nil || in.Policy == "none" {
			return nil
		}
		got, err := in.byDefinition()
		if err != nil {
			return err
		}
		if render(got) != render(want.Result) {
			t.Errorf("%s: got %s, want %s", h.ID, render(got), render(want.Result))
		}
		seen++
		return nil
	})
	if err != nil || seen < 1000 {
		t.Errorf("%d cases, %v", seen, err)
	}
}
