package cpu

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// render prints hints as "0P 1P 0-1": nodes, and P where preferred.
func render(a hint.Answer) string {
	if a.Kind == hint.Impossible {
		return "impossible"
	}
	hints, err := a.Expand(1 << 12)
	if err != nil {
		return err.Error()
	}
	var out []string
	for _, h := range hints {
		text := strings.ReplaceAll(h.Nodes.String(), ",", "+")
		if h.Preferred {
			text += "P"
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

func TestGenerate(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		machine, options    string
		available, reusable string
		n                   int
		want                string
	}{
		{"B", "", "1-7,9-15", "", 2, "0P 1P 0-1"},
		{"B", "", "1-7,9-15", "", 7, "1P 0-1"},
		{"B", "", "1-7,9-15", "", 9, "0-1P"},
		{"B", "", "1-7,9-15", "", 15, "impossible"},
		{"B", "", "1,4", "", 2, "0-1"},
		{"B", "", "1-7,9-15", "1,9", 2, "0P 0-1"},
		{"B", "", "1-3,9-11", "4,12", 2, "1P 0-1"},
		{"B", "", "2-3", "1,4", 2, "0-1"},
		{"C", "", "0-15", "", 4, "0P 1P 2P 3P 0-1 0+2 0+3 1-2 1+3 2-3 0-2 0-1+3 0+2-3 1-3 0-3"},
		{"C", "", "0-15", "", 5, "0-1P 0+2P 0+3P 1-2P 1+3P 2-3P 0-2 0-1+3 0+2-3 1-3 0-3"},
		{"C", AlignBySocket, "0-15", "", 4, "0P 1P 2P 3P 0-1P 0+2 0+3 1-2 1+3 2-3P 0-2 0-1+3 0+2-3 1-3 0-3"},
		{"C", AlignBySocket, "0-15", "", 5, "0-1P 0+2P 0+3P 1-2P 1+3P 2-3P 0-2 0-1+3 0+2-3 1-3 0-3"},
		{"C", AlignBySocket, "0-15", "", 9, "0-2P 0-1+3P 0+2-3P 1-3P 0-3P"},
	} {
		n := newNode(t, machines[row.machine], "", row.options)
		available := set(row.available)
		if got := render(n.generate(available, set(row.reusable), row.n)); got != row.want {
			t.Errorf("%s %q, %d of %s and %q: got %s, want %s", row.machine, row.options, row.n, row.available, row.reusable, got, row.want)
		}
	}
}

// TestSocketsOfUnequalNodes: a set on fewer sockets than its nodes need on average is not preferred, as in the kubelet.
// Four nodes need two sockets of three; one socket has five nodes here.
func TestSocketsOfUnequalNodes(t *testing.T) {
	t.Parallel()
	n := newNode(t, machinetest.Build("1s6n1c1t", machinetest.Socket("5", 1)), "", AlignBySocket)
	answer := n.generate(set("0-5"), set(""), 4)
	if len(answer.Hints) != 15+6+1 {
		t.Fatalf("got %s", render(answer))
	}
	for _, h := range answer.Hints {
		if oneSocket := h.Nodes == numa.Of(0, 1, 2, 3, 4); h.Preferred == oneSocket {
			t.Errorf("nodes %s: preferred %v", h.Nodes, h.Preferred)
		}
	}
}

func TestHints(t *testing.T) {
	t.Parallel()
	noClass := pod("p", "a=2")
	noClass.QoS = workload.Burstable
	starved := whole(pod("p", "a=2", "s=0"), "2")
	starved.Containers[1].Requests, starved.Containers[1].Limits = nil, nil
	for _, row := range []struct {
		name      string
		pod       *workload.Pod
		held      []ledger.Claim
		container int
		want      string // "none" for no answer
	}{
		{"container", pod("p", "a=2", "b=9"), nil, 0, "0P 1P 0-1"},
		{"other container", pod("p", "a=2", "b=9"), nil, 1, "0-1P"},
		{"fraction", pod("p", "a=2500m"), nil, 0, "none"},
		{"burstable", noClass, nil, 0, "none"},
		{"holds its CPUs", pod("p", "a=2"), []ledger.Claim{ledgertest.Exclusive("a", "4,12")}, 0, "1P 0-1"},
		{"holds another number", pod("p", "a=2"), []ledger.Claim{ledgertest.Exclusive("a", "4")}, 0, "impossible"},
		{"reuses", pod("p", "init:i=2", "a=2"), []ledger.Claim{ledgertest.Exclusive("i", "4,12")}, 1, "1P 0-1"},
		{"pod", pod("p", "a=2", "b=6"), nil, -1, "1P 0-1"},
		{"pod without whole numbers", pod("p", "a=500m"), nil, -1, "none"},
		{"pod holds all", pod("p", "a=2", "b=2"), []ledger.Claim{ledgertest.Exclusive("a", "1,9"), ledgertest.Exclusive("b", "2,10")}, -1,
			"0P 0-1"},
		{"pod holds some", pod("p", "a=2", "b=2"), []ledger.Claim{ledgertest.Exclusive("a", "4,12")}, -1, "1P 0-1"},
		{"pod holds another number", pod("p", "a=2", "b=2"), []ledger.Claim{ledgertest.Exclusive("a", "4")}, -1, "impossible"},
		{"pod as a whole", whole(pod("p", "a=2"), "10"), nil, -1, "0-1P"},
		{"pod that leaves nothing to share", starved, nil, -1, "impossible"},
	} {
		n := newNode(t, machines["B"], "0,8", "")
		draft := ledger.NewDraft(n.View())
		draft.PutPod(ledgertest.With(&ledger.Pod{Pod: *row.pod}, row.held...))
		answers, err := n.Hints(context.Background(), draft.View(), hint.Request{Pod: row.pod, Container: row.container})
		got := "none"
		if len(answers) == 1 && answers[0].Resource == Resource {
			got = render(answers[0].Answer)
		}
		if err != nil || len(answers) > 1 || got != row.want {
			t.Errorf("%s: got %s, %v; want %s", row.name, got, err, row.want)
		}
	}
}

// TestAlignedHintsAreListed: on more nodes than are listed otherwise, align-by-socket still prefers the sets
// that touch as few sockets as the request needs.
func TestAlignedHintsAreListed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		options string
		kind    hint.Kind
	}{{"", hint.ByRule}, {AlignBySocket, hint.Options}} {
		n := newNode(t, machinetest.Build("3s4n2c"), "0", tt.options)
		answer := n.generate(n.Allocatable(), set(""), 2)
		if answer.Kind != tt.kind {
			t.Errorf("%q: answered by %v", tt.options, answer.Kind)
		}
		for _, h := range answer.Hints {
			sockets := map[int]bool{}
			for id := range h.Nodes.All() {
				sockets[id/4] = true
			}
			if h.Preferred != (len(sockets) == 1) {
				t.Errorf("nodes %s of %d sockets: preferred %t", h.Nodes, len(sockets), h.Preferred)
			}
		}
		if n := len(answer.Hints); tt.kind == hint.Options && n != 1<<12-1-1 { // all but node 0 by itself
			t.Errorf("%d sets", n)
		}
	}
}

// TestHintsAsRule: where too many nodes would have to be listed, a rule stands for
// them under align-by-socket too.
func TestHintsAsRule(t *testing.T) {
	t.Parallel()
	n := newNode(t, machinetest.Build("64n2c2t"), "0", AlignBySocket)
	answer := n.generate(n.Allocatable(), set("4-5"), 7)
	if answer.Kind != hint.ByRule {
		t.Fatalf("got %v", answer)
	}
	rule := answer.Rule
	got := fmt.Sprint(rule.Universe.Len(), rule.Must, rule.Need, rule.PreferredSize, rule.Weights[0], rule.Weights[63])
	if got != "64 2 5 2 3 4" {
		t.Errorf("got %s", got)
	}
}
