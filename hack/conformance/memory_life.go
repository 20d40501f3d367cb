package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/berthd/berth/hack/conformance/vector"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// memorySequences: many operations in a row. No difference is listed. A sequence whose steps are as
// recorded is decided once more in one continuous ledger, where a release removes claims: each
// decision and the amounts of every group must be the same. This ends when a part of a group is
// considered alone, because its free memory depends on the reference's counting of releases.
var memorySequences = func() Suite {
	operation := memoryOperation
	operation.Differs, operation.Unsound = nil, nil
	steps := DefineSequence("memory_sequences", operation)
	return Suite{steps.Name, func(env *Env, raw json.RawMessage) outcome {
		o := steps.run(env, raw)
		if o.verdict != passed {
			return o
		}
		var in memorySequence
		err := json.Unmarshal(raw, &in)
		if err == nil {
			err = in.live()
		}
		if err != nil {
			return outcome{verdict: failed, note: "in a living ledger: " + err.Error()}
		}
		return o
	}}
}()

type (
	memorySequence struct {
		memorySetup
		Pods    map[string]vector.Pod `json:"pods"`
		Initial memoryState           `json:"initial"`
		Steps   []memoryStep          `json:"steps"`
	}
	memoryStep struct {
		Op        string          `json:"op"`
		Pod       string          `json:"pod"`
		Container string          `json:"container"`
		Affinity  vector.Affinity `json:"affinity"`
		Result    memoryResult    `json:"result"`
		State     memoryState     `json:"state"`
	}
)

// live decides the steps in one ledger.
func (in memorySequence) live() error {
	b, err := in.bench(in.Initial, true)
	if err != nil {
		return err
	}
	life := &memoryLife{bench: b, view: b.base, partly: map[string]bool{}}
	before := in.Initial
	for i, step := range in.Steps {
		if step.Op == "allocate" && before.cutsGroup(step.Affinity) || step.State.overlapping() {
			return nil
		}
		if err := life.follow(step, in.Pods[step.Pod].Pod); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
		before = step.State
	}
	return nil
}

// memoryLife is a ledger that is used for a whole sequence.
type memoryLife struct {
	bench *memoryBench
	view  *ledger.View
	// partly are the pods with some init containers removed and others not. Here the rest keeps
	// its reusable memory, while the reference has subtracted the part of the removed ones.
	partly map[string]bool
}

// follow executes one step and compares its result with the recorded one.
func (l *memoryLife) follow(step memoryStep, pod *workload.Pod) error {
	draft := ledger.NewDraft(l.view)
	record, known := l.view.Pod(pod.UID)
	if !known {
		record = &ledger.Pod{Pod: *pod}
		draft.PutPod(record)
	}
	if step.Op == "remove" {
		feeds := func(container string) bool { c := pod.Container(container); return c != nil && c.Role.Feeds() }
		rest := false
		for _, c := range record.Claims {
			if c.Owner.Container == step.Container {
				draft.DropClaims(pod.UID, c)
			} else {
				rest = rest || feeds(c.Owner.Container)
			}
		}
		l.partly[pod.UID] = rest && (l.partly[pod.UID] || feeds(step.Container))
	} else {
		claims, refusal := l.bench.Plan(context.Background(), draft.View(), request(pod, step.Container), step.Affinity.Hint())
		draft.AddClaims(pod.UID, claims...)
		held, _ := draft.View().Pod(pod.UID)
		mine := memoryResult{OK: refusal == nil, Error: memoryError(refusal), Blocks: blocksOf(held, step.Container)}
		if diff := mine.differs(step.Result); diff != "" {
			return fmt.Errorf("%s: %s", diff, render(mine))
		}
	}
	l.view = draft.View()
	if findings := check.View(l.view); len(findings) > 0 {
		return fmt.Errorf("%s", findings[0])
	}
	mine := memoryState{}.with(l.bench.State(l.bench.base), l.bench.State(l.view), record, nil)
	if !slices.Contains(slices.Collect(maps.Values(l.partly)), true) && !maps.Equal(mine.groupSums(), step.State.groupSums()) {
		return fmt.Errorf("groups hold %v instead of %v", mine.groupSums(), step.State.groupSums())
	}
	return nil
}

// overlapping reports whether a node belongs to several groups.
func (s memoryState) overlapping() bool {
	for id, node := range s.Nodes {
		for _, other := range node.Cells {
			if !slices.Contains(node.Cells, id) || !slices.Equal(s.Nodes[other].Cells, node.Cells) {
				return true
			}
		}
	}
	return false
}

// cutsGroup reports whether an affinity names some nodes of a group and not the others.
func (s memoryState) cutsGroup(a vector.Affinity) bool {
	for id := range a.NUMA.All() {
		if !numa.Of(s.Nodes[id].Cells...).IsSubsetOf(a.NUMA.Mask) {
			return true
		}
	}
	return false
}
