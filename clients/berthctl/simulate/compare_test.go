package simulate

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/simulation"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/topology"
)

// TestComparisonShown: each outcome of a pod that differs has its rows. The list of pods has an end, and names are escaped.
func TestComparisonShown(t *testing.T) {
	t.Parallel()
	two := numa.Of(0).With(1)
	found := simulation.Comparison{Rows: []simulation.Compared{
		{Planning: topology.ByContainer, Policy: topology.None},
		{Planning: topology.ByContainer, Policy: topology.Restricted},
		{Planning: topology.ByContainer, Policy: topology.SingleNUMANode, Refused: errors.New("no\x1b[2J")},
		{Planning: topology.ByPod, Policy: topology.None},
		{Planning: topology.ByPod, Policy: topology.Restricted},
		{Planning: topology.ByPod, Policy: topology.SingleNUMANode, Refused: errors.New("no\x1b[2J")},
	}}
	var pods []command.DecidedPod
	for i := range mostShown + 2 {
		name := fmt.Sprintf("p%d\x1b[2J", i)
		pods = append(pods, command.DecidedPod{Pod: &typesv1.Pod{Metadata: &typesv1.PodMetadata{Namespace: "a", Name: name}}})
		found.Fewest = append(found.Fewest, 1)
		for row, o := range []simulation.Outcome{
			{Admitted: true, Nodes: two}, {Reason: "TopologyAffinityError"}, {},
			{Admitted: true, Nodes: two}, {Admitted: true, Nodes: numa.Of(1), Aligned: true},
		} {
			if r := &found.Rows[row]; r.Refused == nil {
				r.Outcomes = append(r.Outcomes, o)
			}
		}
	}
	// This one differs only in its reason.
	pods = append(pods, command.DecidedPod{Pod: &typesv1.Pod{Metadata: &typesv1.PodMetadata{Name: "never"}}, Rejection: "OutOfcpu"})
	found.Fewest = append(found.Fewest, 0)
	for i := range found.Rows {
		if r := &found.Rows[i]; r.Refused == nil {
			r.Outcomes = append(r.Outcomes, simulation.Outcome{Reason: fmt.Sprint("reason ", i)})
		}
	}
	var out, errs bytes.Buffer
	c := &command.Ctl{Env: command.Env{Out: &out, Err: &errs, Getenv: func(string) string { return "" }}, Format: command.FormatTable,
		Color: command.ColorAuto}
	if err := showComparison(c, comparisonOf(pods, &found)); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	for _, want := range []string{
		"kubelet  none (now)        22        1         0/22            2.00       0",
		"kubelet  single-numa-node  -         -         -               -  ",
		"berth    restricted        22        1         22/22           1.00       0",
		"\nnot possible on this machine: kubelet single-numa-node; berth single-numa-node: no\\x1b[2J\n\nthe rows",
		"\nthe rows differ about 22 of 23 pods\n",
		"\na/p0\\x1b[2J\n  not aligned: on 2 NUMA nodes instead of 1: kubelet none; berth none\n" +
			"  rejected (TopologyAffinityError): kubelet restricted\n  aligned on 1 NUMA node: berth restricted\n",
		"a/p19", "\nand 2 more; -o json has them\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "a/p20") || strings.Contains(text, "never") || errs.Len() > 0 {
		t.Errorf("got\n%s%s", text, errs.String())
	}
}
