package memory

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// TestHintsAroundAGroup is the worked table of four nodes of which two are a
// group whose huge pages are used up.
func TestHintsAroundAGroup(t *testing.T) {
	t.Parallel()
	var options []machinetest.Option
	for node := range 4 {
		options = append(options, machinetest.Memory(node, 2560*mi), machinetest.HugePages(node, gi/ki, 1))
	}
	n := newNode(t, machinetest.Build("1s4n1c", options...))
	n.must(n.admit(pod("group", "c=2Gi 1Gi=2Gi"), on(0, 1)))
	wantText(t, "usage", n.usage("memory"), "1536Mi[0-1] 512Mi[0-1] 0[2] 0[3]")
	wantText(t, "hints", n.hintsFor(pod("a", "c=1Gi 1Gi=1Gi"), 0),
		"hugepages-1Gi: 2p 3p 2-3, memory: 2p 3p 2-3")
}

// TestPreferredByCapacity: a node set is preferred by what it has, not by what is
// free, so a pod that would fit one idle node gets no preferred hint for two.
func TestPreferredByCapacity(t *testing.T) {
	t.Parallel()
	n := newNode(t, nodesOf(9*gi, 9*gi))
	n.must(n.admit(pod("group", "c=17Gi"), anywhere))
	wantText(t, "hints", n.hintsFor(pod("a", "c=1Gi"), 0), "memory: 0-1")
	wantText(t, "hints", n.hintsFor(pod("a", "c=2Gi"), 0), "")
}

func TestHintsOfRequests(t *testing.T) {
	t.Parallel()
	n := newNode(t, machinetest.Build("1s2n1c", machinetest.Memory(0, 9*gi), machinetest.Memory(1, 9*gi),
		machinetest.HugePages(1, 2*mi/ki, 512)))
	burstable := pod("b", "c=1Gi")
	burstable.QoS = workload.Burstable
	for _, row := range []struct {
		name      string
		pod       *workload.Pod
		container int
		want      string
	}{
		{"one node", pod("a", "c=1Gi"), 0, "memory: 0p 1p 0-1"},
		{"two nodes", pod("a", "c=12Gi"), 0, "memory: 0-1p"},
		{"too much", pod("a", "c=20Gi"), 0, ""},
		{"page size on one node", pod("a", "c=1Gi 2Mi=4Mi"), 0, "hugepages-2Mi: 1p 0-1, memory: 1p 0-1"},
		{"too many pages", pod("a", "c=1Gi 2Mi=2Gi"), 0, ""},
		{"no such page size", pod("a", "c=1Gi 512Mi=1Gi"), 0, "hugepages-512Mi: impossible"},
		{"none of no such page size", pod("a", "c=1Gi 512Mi=0"), 0, "hugepages-512Mi: 0p 1p 0-1, memory: 0p 1p 0-1"},
		{"zero bytes", pod("a", "c=0"), 0, "memory: 0p 1p 0-1"},
		{"not Guaranteed", burstable, 0, ""},
		{"pod: init 4, 3, then 2 and 1", pod("a", "init:i=4Gi", "init:j=3Gi", "a=2Gi", "b=1Gi"), -1, "memory: 0p 1p 0-1"},
		{"pod: init 1, sidecar 2, init 3, then 8", pod("a", "init:i=1Gi", "sidecar:s=2Gi", "init:j=3Gi", "a=8Gi"), -1, "memory: 0-1p"},
		{"pod: sidecar 3, init 7, then 1", pod("a", "sidecar:s=3Gi", "init:i=7Gi", "a=1Gi"), -1, "memory: 0-1p"},
		{"pod: pages of an init container only", pod("a", "init:i=1Gi 2Mi=4Mi", "a=1Gi"), -1, "hugepages-2Mi: 1p 0-1, memory: 1p 0-1"},
		{"pod as a whole", whole(pod("a", "a=1Gi", "b=1Gi"), "12Gi"), -1, "memory: 0-1p"},
		{"pod as a whole, container on its own", whole(pod("a", "a=1Gi", "b=1Gi"), "12Gi", "b"), 0, "memory: 0p 1p 0-1"},
		{"pod as a whole, container that shares", whole(pod("a", "a=1Gi", "b=1Gi"), "12Gi", "b"), 1, ""},
		{"pod as a whole, nothing to share", whole(pod("a", "a=1Gi", "b=1Gi"), "1Gi", "b"), -1, "memory: impossible"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			wantText(t, "hints", n.hintsFor(row.pod, row.container), row.want)
		})
	}
}

func TestPodLevelWithoutTheGate(t *testing.T) {
	t.Parallel()
	n := newNode(t, nodesOf(9*gi, 9*gi), func(c *Config) { c.Features.PodLevelResourceManagers = false })
	p := whole(pod("a", "c=1Gi"), "2Gi")
	wantText(t, "hints of the container", n.hintsFor(p, 0), "")
	wantText(t, "hints of the pod", n.hintsFor(p, -1), "")
	n.must(n.admitWhole(p, on(0)))
	wantText(t, "nodes", n.placed("a", "c"), "nowhere")
}

// TestHintsOfHolders: an owner that holds what it requests is answered from that,
// preferred whatever it was before; one that requests something else has no
// preference.
func TestHintsOfHolders(t *testing.T) {
	t.Parallel()
	n := newNode(t, nodesOf(9*gi, 9*gi))
	n.must(n.admit(pod("a", "c=1Gi"), on(0, 1)))
	wantText(t, "same", n.hintsFor(pod("a", "c=1Gi"), 0), "memory: 0-1p")
	wantText(t, "more", n.hintsFor(pod("a", "c=2Gi"), 0), "")
	wantText(t, "pages too", n.hintsFor(pod("a", "c=1Gi 2Mi=0"), 0), "")
	wantText(t, "pod, same", n.hintsFor(pod("a", "c=1Gi"), -1), "memory: 0-1p")
	wantText(t, "pod of two", n.hintsFor(pod("a", "c=1Gi", "d=1Gi"), -1), "")
}

// TestHandedOnCountsOnTheSameNodes: what an init container leaves makes exactly
// its node set fit.
func TestHandedOnCountsOnTheSameNodes(t *testing.T) {
	t.Parallel()
	n := newNode(t, nodesOf(9*gi, 9*gi))
	p := pod("a", "init:i=8Gi", "c=8Gi")
	draft, err := n.draft(p, on(0), 0)
	n.must(err)
	answers, err := n.Hints(context.Background(), draft.View(), hint.Request{Pod: p, Container: 1})
	if err != nil || len(answers) != 1 {
		t.Fatalf("%v, %v", answers, err)
	}
	listed, err := answers[0].Expand(1 << 2)
	if err != nil {
		t.Fatal(err)
	}
	wantText(t, "hints", shown(listed), "0p 1p")
}

// TestManyNodes: on a machine of 64 nodes unused nodes are described by a rule, and
// what is used is listed beside it.
func TestManyNodes(t *testing.T) {
	t.Parallel()
	n := newNode(t, machinetest.Build("1s64n1c,mem=8Gi,huge=1Gi:2"))
	ask := func(request string) []hint.ResourceAnswer {
		t.Helper()
		answers, err := n.Hints(context.Background(), n.View(), hint.Request{Pod: pod("asked", request), Container: 0})
		if err == nil {
			err = hint.CheckReply(hint.Reply{Provider: Name, Answers: answers}, n.nodes)
		}
		if err != nil {
			t.Fatal(err)
		}
		return answers
	}
	answers := ask("c=20Gi")
	if r := answers[0].Rule; len(answers) != 1 || r == nil || r.PreferredSize != 4 || r.Universe != n.nodes || !r.Allows(15) ||
		r.Allows(7) {
		t.Errorf("idle: %+v", answers)
	}
	n.must(n.admit(pod("a", "c=20Gi"), anywhere))
	wantText(t, "nodes", n.placed("a", "c"), "0-3")
	n.must(n.admit(pod("b", "c=1Gi 1Gi=2Gi"), on(63)))
	n.must(n.admit(pod("c", "c=11Gi"), anywhere))
	wantText(t, "nodes", n.placed("c", "c"), "4-5")

	// Of memory and huge pages two nodes are needed for each, but not the same
	// two: the rule has both.
	answers = ask("c=4Gi 1Gi=3Gi")
	if len(answers) != 2 {
		t.Fatalf("%+v", answers)
	}
	for _, a := range answers {
		r := a.Rule
		if a.Kind != hint.ByRule || r.PreferredSize != 2 || r.Universe.String() != "6-62" || !r.Allows(numa.Of(6, 62)) ||
			r.Allows(numa.Of(6)) {
			t.Errorf("%s: %+v", a.Resource, r)
		}
		// Groups 0-3 and 4-5 have 4 GiB and 1 GiB of memory left.
		wantText(t, "beside the rule for "+a.Resource, shown(a.Hints), "0-3")
	}
	answers = ask("c=5Gi")
	wantText(t, "beside the rule", shown(answers[0].Hints), "63p")
	if r := answers[0].Rule; r.PreferredSize != 1 || len(r.Also) != 0 {
		t.Errorf("%+v", r)
	}
	// More than all unused nodes have: there is no rule, and no group has it.
	if answers = ask("c=400Gi"); len(answers) != 0 {
		t.Errorf("%+v", answers)
	}
	if err := n.admit(pod("e", "c=400Gi"), anywhere); err == nil || !strings.Contains(err.Error(), string(NoDefault)) {
		t.Errorf("a pod of nearly the whole machine: %v", err)
	}
}

// TestNothingUnused: where every node is used, only what is used alike is left,
// and that is a list.
func TestNothingUnused(t *testing.T) {
	t.Parallel()
	n := newNode(t, machinetest.Build("1s9n1c,mem=8Gi"))
	n.must(n.admit(pod("a", "c=30Gi"), on(0, 1, 2, 3)))
	for node := 4; node < 9; node++ {
		n.must(n.admit(pod(fmt.Sprint("b", node), fmt.Sprintf("c=%dGi", node-3)), on(node)))
	}
	wantText(t, "hints", n.hintsFor(pod("x", "c=5Gi"), 0), "memory: 4p 5p 6p")
	wantText(t, "hints of less", n.hintsFor(pod("x", "c=2Gi"), 0), "memory: 4p 5p 6p 7p 8p 0-3")
}

// TestBestAgreesWithAllSets: what is described is the family, and what the search
// finds is the narrowest of its sets that has some nodes.
func TestBestAgreesWithAllSets(t *testing.T) {
	t.Parallel()
	n := newNode(t, nodesOf(3*gi, 5*gi, 4*gi, 0, 6*gi))
	n.must(n.admit(pod("a", "c=1Gi"), on(1)))
	for size := int64(0); size < 20*gi; size += gi / 2 {
		f := n.table(n.View()).family([]want{{"memory", size}}, nil)
		var all []hint.Hint
		least := 0
		for nodes := range numa.Subsets(n.nodes) {
			if least == 0 && f.capable(nodes) {
				least = nodes.Len()
			}
			if f.allows(nodes) {
				all = append(all, hint.Hint{Nodes: nodes, Preferred: nodes.Len() == least})
			}
		}
		for base := range n.nodes + 1 {
			var best hint.Hint
			for _, h := range all {
				if base.IsSubsetOf(h.Nodes) && (best.Nodes == 0 || h.Nodes.NarrowerThan(best.Nodes)) {
					best = h
				}
			}
			got, ok := f.best(base)
			if ok != (best.Nodes != 0) || ok && got != best {
				t.Fatalf("%d bytes with %s: searched %v, %t; want %v", size, base, got, ok, best)
			}
		}
		answers := f.described()
		if len(answers) == 0 {
			answers = make([]hint.ResourceAnswer, 1)
		}
		described, err := answers[0].Expand(1 << 5)
		if got, want := shown(described), shown(all); got != want || err != nil {
			t.Fatalf("%d bytes: described %q, want %q; %v", size, got, want, err)
		}
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	n := newNode(t, nodesOf(9*gi, 9*gi), func(c *Config) {
		c.Reserved, c.SystemReserved = []Reservation{reserve(1, "memory", gi)}, memoryOnly(gi)
	})
	n.must(n.admit(pod("a", "c=5Gi"), on(0)))
	n.must(n.admit(pod("b", "c=6Gi"), on(1)))
	req := hint.Request{Pod: pod("c", "c=5Gi"), Container: 0}
	node0 := ledger.Shortage{Resource: "memory", Nodes: "0", Need: 5 * gi, Free: 4 * gi, Held: 5 * gi,
		Holders: []ledger.Owner{{Pod: "a", Container: "c"}}}
	node1 := ledger.Shortage{
		Resource: "memory", Nodes: "1", Need: 5 * gi, Free: 2 * gi, Held: 6 * gi, Withheld: gi, Why: "reserved or huge pages",
		Holders: []ledger.Owner{{Pod: "b", Container: "c"}},
	}
	wantShortages(t, n.Explain(n.View(), req, 1), node0)
	wantShortages(t, n.Explain(n.View(), req, 2), node1)
	var place *PlacementError
	if err := n.admit(pod("c", "c=5Gi"), on(1)); !errors.As(err, &place) {
		t.Fatalf("got %v", err)
	}
	wantShortages(t, place.Missing(), node1, node0, node1)
	wantShortages(t, n.Explain(n.View(), hint.Request{Pod: pod("c", "c=4Gi"), Container: 0}, 1))
	wantShortages(t, n.Explain(n.View(), hint.Request{Pod: pod("c", "c=2Gi", "d=3Gi"), Container: -1}, 1), node0)
}

// TestExplainGroups: nodes that have enough may be used alone, or together with
// others.
func TestExplainGroups(t *testing.T) {
	t.Parallel()
	n := newNode(t, nodesOf(9*gi, 9*gi))
	n.must(n.admit(pod("a", "c=1Gi"), on(0)))
	var place *PlacementError
	if err := n.admit(pod("c", "c=9Gi"), on(0, 1)); !errors.As(err, &place) {
		t.Fatalf("got %v", err)
	}
	wantShortages(t, place.Shortages, ledger.Shortage{
		Resource: "memory", Nodes: "0", Need: 9 * gi, Held: gi, Withheld: 8 * gi, Why: "of nodes that are used alone or in another group",
		Holders: []ledger.Owner{{Pod: "a", Container: "c"}},
	})
}

func wantShortages(t *testing.T, got []ledger.Shortage, want ...ledger.Shortage) {
	t.Helper()
	if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
