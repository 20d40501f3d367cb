package main

import (
	"testing"

	"github.com/berthd/berth/hack/kubeletbench/cases"
)

// TestResults keeps the comparison honest: every case can be run, and has a preferred result where it says so.
func TestResults(t *testing.T) {
	t.Parallel()
	for _, c := range cases.All() {
		op, err := build(c)
		if err == nil {
			err = op.Do()
		}
		if err != nil {
			t.Errorf("%s: %v", c.Name(), err)
			continue
		}
		if r := op.Result(); r.Preferred != c.Preferred || r.Admit != (c.Preferred || c.Policy == cases.BestEffort) {
			t.Errorf("%s: %+v", c.Name(), r)
		}
	}
}
