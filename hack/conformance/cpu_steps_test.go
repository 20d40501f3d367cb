package main

import (
	"encoding/json"
	"os"
	"path/filepath"
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
