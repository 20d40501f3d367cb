package main

import (
	"maps"
	"slices"
	"testing"

	"github.com/berthd/berth/managers/cpuset"
)

// TestPodStepsAfterADifference changes every correctly recorded step after the first defect of a
// recording. The runner detects another verdict, and for an admitted pod also other CPUs, devices
// and groups of memory. Recordings without a defect are judged step by step, too.
func TestPodStepsAfterADifference(t *testing.T) {
	t.Parallel()
	until, exact, all := 0, 0, 0
	eachCase(t, "pod_admit", func(env *Env, in podAdmitIn, want podAdmitWant) {
		env = env.with(true)
		defects := in.defects(env, want)
		if _, err := in.stepByStep(env, want, defects, 0); err != nil {
			t.Error(err)
		}
		wrong := firstDefect(defects)
		if wrong < 0 {
			return
		}
		judge := func() (int, error) { return in.stepByStep(env, want, defects, wrong) }
		n, err := judge()
		if err != nil {
			t.Error(err)
			return
		}
		until, exact, all = until+wrong, exact+n, all+len(in.Steps)
		for i := max(wrong, 1); i < len(in.Steps); i++ {
			if defects[i].entry != "" {
				continue
			}
			w := &want.Steps[i]
			for name, change := range podChanges {
				recorded := *w
				changed := change(w, in.Pods[in.Steps[i].Pod].UID)
				if _, err := judge(); changed && err == nil {
					t.Errorf("step %d on %s: %s not noticed", i, in.Topology, name)
				}
				*w = recorded
			}
		}
	})
	t.Logf("%d steps, %d of them until the first difference and %d behind it are judged by the recording", all, until, exact)
	if until+exact < all*85/100 {
		t.Error("these are too few")
	}
}

// podChanges make another step of a recorded one, where they can.
var podChanges = map[string]func(w *podStepWant, uid string) bool{
	"another verdict": func(w *podStepWant, _ string) bool {
		if w.Result == nil {
			return false
		}
		w.Result = &podResult{Admit: !w.Result.Admit, Reason: w.Result.Reason, Message: w.Result.Message}
		return true
	},
	"a CPU less in the shared pool": func(w *podStepWant, _ string) bool {
		pool := w.CPU.disjoint().Default
		w.CPU.Default = pool.Minus(pool.Lowest(1))
		return !pool.IsEmpty() && (w.Result == nil || w.Result.Admit)
	},
	"other CPUs": func(w *podStepWant, uid string) bool {
		w.CPU.Assignments = maps.Clone(w.CPU.Assignments)
		w.CPU.Assignments[uid] = maps.Clone(w.CPU.Assignments[uid])
		for name := range w.CPU.Assignments[uid] {
			w.CPU.Assignments[uid][name] = cpuset.Range(0, 1023)
		}
		return w.Result != nil && w.Result.Admit && len(w.CPU.Assignments[uid]) > 0
	},
	"other devices": func(w *podStepWant, _ string) bool {
		w.Devices = map[string]map[string][]string{"c": {"other": {"one"}}}
		return w.Result != nil && w.Result.Admit
	},
	"another group": func(w *podStepWant, _ string) bool {
		w.Memory.Nodes = maps.Clone(w.Memory.Nodes)
		for id, node := range w.Memory.Nodes {
			node.Assignments++
			w.Memory.Nodes[id] = node
		}
		return len(w.Memory.Nodes) > 0 && (w.Result == nil || w.Result.Admit)
	},
}

// TestSpread is the worked example of the reference's issue (kubernetes#141237): 8
// nodes of 32 CPUs, all free but two CPUs of nodes 3 and 7.
func TestSpread(t *testing.T) {
	t.Parallel()
	topo := shaped(t, "2s4n16c2t")
	full := []int{32, 32, 32, 32, 32, 32, 32, 32}
	less := []int{32, 32, 32, 30, 32, 32, 32, 30}
	for _, row := range []struct {
		n    int
		free []int
		rule spreadRule
		want []int
	}{
		{128, full, spreadRule{}, []int{32, 32, 32, 32, 0, 0, 0, 0}},
		{128, full, spreadRule{defect: true}, []int{32, 32, 32, 0, 0, 0, 0, 32}},
		{100, full, spreadRule{defect: true}, []int{25, 25, 25, 0, 0, 0, 0, 25}},
		{192, full, spreadRule{defect: true}, []int{32, 32, 32, 32, 32, 0, 0, 32}},
		{120, less, spreadRule{}, []int{30, 30, 30, 0, 30, 0, 0, 0}},
		{120, less, spreadRule{defect: true}, []int{30, 30, 30, 0, 0, 0, 30, 0}},
		{136, less, spreadRule{}, []int{28, 27, 27, 0, 27, 27, 0, 0}},
		{96, []int{32, 32, 8, 30, 32, 32, 32, 30}, spreadRule{}, []int{32, 32, 0, 0, 32, 0, 0, 0}},
		{96, []int{32, 32, 8, 30, 32, 32, 32, 30}, spreadRule{bySocket: true}, []int{0, 0, 0, 0, 32, 32, 32, 0}},
	} {
		s := spread{spreadRule: row.rule, topo: topo, group: 1, free: row.free}
		if got, ok := s.take(row.n); !ok || !slices.Equal(got, row.want) {
			t.Errorf("%d, %+v: %v, %t; want %v", row.n, row.rule, got, ok, row.want)
		}
	}
}
