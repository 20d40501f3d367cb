package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestStepsAfterADifference: behind the step at which a recording goes wrong, every
// step that was recorded rightly counts. Each of them is changed in turn, and every
// change is found.
func TestStepsAfterADifference(t *testing.T) {
	t.Parallel()
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "..", "shared", "conformance")
	path := filepath.Join(dir, "cpu_sequences.jsonl.gz")
	if _, err := os.Stat(path); os.IsNotExist(err) {
		t.Skipf("no recordings: %v", err)
	}
	env, err := loadEnv(root, dir)
	if err != nil {
		t.Fatal(err)
	}
	exact := 0
	err = eachLine(path, func(line []byte) error {
		var in cpuSequencesIn
		var want cpuSequencesWant
		for _, v := range []any{&in, &want} {
			if err := json.Unmarshal(line, v); err != nil {
				return err
			}
		}
		wrong, _ := in.unsoundAt(env, want)
		if wrong < 0 {
			return nil
		}
		got, err := decideCPUSequences(env, in)
		if err != nil {
			return err
		}
		topo, err := env.Machines.Get(in.Topology)
		if err != nil {
			return err
		}
		for i := max(wrong, 1); i < len(in.Steps); i++ {
			step, w := in.Steps[i], &want.Steps[i]
			if step.Op != "allocate" || !w.Result.OK || !w.Result.Allocated {
				continue
			}
			before, after := in.mended(want.Steps[i-1].State, step.Pod), in.mended(w.State, step.Pod)
			if in.unsoundStep(topo, before, in.Pods[step.Pod], step.Container, step.Affinity, *w.Result, after) != "" {
				continue
			}
			exact++
			recorded := *w.Result
			w.Result.OK = false
			if _, err := cpuSequencesDiffer(env, in, want, got); err == nil {
				t.Errorf("step %d of %s: another verdict is not noticed", i, in.Topology)
			}
			*w.Result = recorded
		}
		return nil
	})
	if err != nil || exact < 50 {
		t.Errorf("%d steps, %v", exact, err)
	}
	t.Logf("%d allocations behind a difference are judged exactly", exact)
}

// TestSpread is the worked example of the reference's issue (kubernetes#141237): 8
// nodes of 32 CPUs, all free but two CPUs of nodes 3 and 7.
func TestSpread(t *testing.T) {
	t.Parallel()
	topo := shaped(t, "2s4n16c2t")
	full := []int{32, 32, 32, 32, 32, 32, 32, 32}
	less := []int{32, 32, 32, 30, 32, 32, 32, 30}
	for _, row := range []struct {
		n      int
		free   []int
		defect bool
		want   []int
	}{
		{128, full, false, []int{32, 32, 32, 32, 0, 0, 0, 0}},
		{128, full, true, []int{32, 32, 32, 0, 0, 0, 0, 32}},
		{100, full, true, []int{25, 25, 25, 0, 0, 0, 0, 25}},
		{192, full, true, []int{32, 32, 32, 32, 32, 0, 0, 32}},
		{120, less, false, []int{30, 30, 30, 0, 30, 0, 0, 0}},
		{120, less, true, []int{30, 30, 30, 0, 0, 0, 30, 0}},
	} {
		s := spread{topo: topo, group: 1, defect: row.defect, free: row.free}
		if got, ok := s.take(row.n); !ok || !slices.Equal(got, row.want) {
			t.Errorf("%d, defect %t: %v, %t; want %v", row.n, row.defect, got, ok, row.want)
		}
	}
}
