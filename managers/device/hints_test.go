package device

import (
	"context"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/numa"
)

func TestContainerHints(t *testing.T) {
	t.Parallel()
	// Devices on one node, on another, on both, without topology, with a
	// topology without nodes, and on a node that the machine does not have.
	const mixed = "a@0 b@1 c@0+1 d e@ f@7"
	for _, row := range []struct {
		name, devices, wants, want string
		before                     func(*bench)
	}{
		{name: "one of mixed", devices: mixed, wants: "gpu=1", want: "0* 1* 0-1"},
		{name: "two of mixed", devices: mixed, wants: "gpu=2", want: "0* 1* 0-1"},
		{name: "three of mixed", devices: mixed, wants: "gpu=3", want: "0-1*"},
		{name: "four of mixed: those without nodes never count", devices: mixed, wants: "gpu=4", want: "impossible"},
		{name: "more than there are", devices: "a@0", wants: "gpu=2", want: "impossible"},
		{name: "no topology", devices: "a b", wants: "gpu=1", want: "-"},
		{name: "topologies without nodes", devices: "a@ b@", wants: "gpu=5", want: "-"},
		{name: "only nodes that are not there", devices: "a@7 b@7", wants: "gpu=1", want: "impossible"},
		{name: "one of two nodes has devices", devices: "a@1 b@1", wants: "gpu=1", want: "1*"},
		{name: "unhealthy ones count for the width only", devices: "a@0! b@0 c@1", wants: "gpu=2", want: "0-1"},
		{name: "none wanted", devices: "a@0 b@1", wants: "gpu=0", want: "0* 1* 0-1"},
		{
			name: "used ones count for the width only", devices: "a@0 b@0 c@1", wants: "gpu=2", want: "0-1",
			before: func(b *bench) { b.pod("other", "x"); b.hold("other", "x", gpu, "a") },
		},
		{
			name: "holds as many as it wants", devices: "a@0 b@0 c@1", wants: "gpu=2", want: "0-1",
			before: func(b *bench) { b.hold("pod", "c", gpu, "a", "c") },
		},
		{
			name: "holds another number", devices: "a@0 b@0 c@1", wants: "gpu=2", want: "impossible",
			before: func(b *bench) { b.hold("pod", "c", gpu, "a") },
		},
		{
			name: "takes over", devices: "a@0 b@1 c@1", wants: "gpu=1", want: "0* 0-1",
			before: func(b *bench) { b.hold("pod", "i", gpu, "a") },
		},
		{
			name: "takes over and needs more", devices: "a@0 b@1 c@1", wants: "gpu=2", want: "0-1",
			before: func(b *bench) { b.hold("pod", "i", gpu, "a") },
		},
		{
			name: "takes over one without topology, which does not count", devices: "a b@1 c@1", wants: "gpu=3", want: "impossible",
			before: func(b *bench) { b.hold("pod", "i", gpu, "a") },
		},
		{
			name: "takes over one whose topology has no nodes", devices: "a@ b@1", wants: "gpu=1", want: "impossible",
			before: func(b *bench) { b.hold("pod", "i", gpu, "a") },
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "2n2c")
			b.list(gpu, row.devices, Options{})
			pod := b.pod("pod", "init:i", "c "+row.wants)
			if row.before != nil {
				row.before(b)
			}
			answers, err := b.Hints(context.Background(), b.draft.View(), hint.Request{Pod: pod, Container: 1})
			if err != nil || len(answers) != 1 || answers[0].Resource != gpu {
				t.Fatalf("answers %+v, %v", answers, err)
			}
			if got := text(t, answers[0].Answer); got != row.want {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}

// An allocation whose device is gone counts at the nodes that the claim keeps
// (the kubelet crashes).
func TestHintsOfAVanishedDevice(t *testing.T) {
	t.Parallel()
	b := newBench(t, "2n2c")
	s := b.list(gpu, "a@0 b@1", Options{})
	pod := b.pod("pod", "c gpu=2")
	b.hold("pod", "c", gpu, "a", "b")
	b.inv.Listed(s, parse("x@1 b@1"), epoch)
	answers, err := b.Hints(context.Background(), b.draft.View(), hint.Request{Pod: pod})
	if err != nil || len(answers) != 1 {
		t.Fatal(answers, err)
	}
	if got := text(t, answers[0].Answer); got != "0-1" {
		t.Errorf("got %q", got)
	}
}

func TestPodHints(t *testing.T) {
	t.Parallel()
	b := newBench(t, "2n2c")
	b.list(gpu, "a@0 b@0 c@1 d@1 e@1", Options{})
	b.list(nic, "x y", Options{})
	const silent = "example.com/silent"
	b.inv.Registered(silent, Options{}, epoch)
	pod := b.pod("pod", "init:i gpu=3", "sidecar:s gpu=1", "init:j gpu=1 silent=1", "c gpu=1 nic=1", "d unknown=1")
	ask := func() string {
		answers, err := b.Hints(context.Background(), b.draft.View(), hint.Request{Pod: pod, Container: -1})
		if err != nil {
			t.Fatal(err)
		}
		out := ""
		for _, a := range answers {
			out += fmt.Sprintf("%s: %s; ", a.Resource, text(t, a.Answer))
		}
		return out
	}
	// The first init container requests most: 3. Nothing is preferred of a resource without a list.
	if got, want := ask(), gpu+": 1* 0-1; "+nic+": -; "+silent+": -; "; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	b.hold("pod", "i", gpu, "c", "d", "e")
	b.hold("pod", "s", gpu, "c")
	if got, want := ask(), gpu+": 1* 0-1; "+nic+": -; "+silent+": -; "; got != want {
		t.Errorf("with devices: got %q, want %q", got, want)
	}
	b.hold("pod", "c", gpu, "a")
	if got, want := ask(), gpu+": impossible; "+nic+": -; "+silent+": -; "; got != want {
		t.Errorf("with another number: got %q, want %q", got, want)
	}
}

// A plugin that names nodes which no machine has reports its devices as near to
// something: as with the kubelet, nothing is near enough.
func TestAlienNodes(t *testing.T) {
	t.Parallel()
	b := newBench(t, "2s4c")
	devices := parse("a b@")
	devices[1].Alien = true
	b.inv.Listed(b.list(gpu, "", Options{}), devices, epoch)
	p := b.pod("pod", "c gpu=1")
	answers, err := b.Hints(t.Context(), b.draft.View(), hint.Request{Pod: p})
	if err != nil || len(answers) != 1 || answers[0].Kind != hint.Impossible {
		t.Errorf("hints %+v, %v; want none that is possible", answers, err)
	}
	// Where the decision continued all the same, a device that may be anywhere comes last.
	claims, err := b.Plan(t.Context(), b.draft.View(), hint.Request{Pod: p}, hint.Hint{Nodes: numa.Of(0)})
	if err != nil || len(claims) != 1 || claims[0].Devices.IDs()[0] != "b" {
		t.Errorf("%+v, %v; want the device that names nodes", claims, err)
	}
}

func TestHintsOfResourcesWithoutAPlugin(t *testing.T) {
	t.Parallel()
	b := newBench(t, "2n2c")
	s := b.list(gpu, "a@0", Options{})
	b.pod("other", "x")
	b.hold("other", "x", nic, "n")
	pod := b.pod("pod", "c gpu=1 nic=1 unknown=1")
	b.inv.Gone(s, epoch)
	want := map[State]string{Stopped: "impossible", Expired: ""}
	for range 2 {
		r, _ := b.inv.Snapshot().Resource(gpu)
		got := map[string]string{}
		answers, err := b.Hints(context.Background(), b.draft.View(), hint.Request{Pod: pod})
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range answers {
			got[a.Resource] = text(t, a.Answer)
		}
		// Claims make a resource count although no plugin was ever seen.
		if got[nic] != "-" || got[gpu] != want[r.State] || got["example.com/unknown"] != "" {
			t.Errorf("%s: %v", r.State, got)
		}
		b.inv.Expire(epoch.Add(Grace + 1))
	}
}

// families draws a question over up to n nodes.
func families(rt *rapid.T, n int, several bool) *family {
	device := func(label string) Device {
		d := Device{Topology: rapid.Bool().Draw(rt, label+" topology")}
		if !d.Topology {
			return d
		}
		// Node n is one that the machine does not have.
		d.Nodes = numa.Of(rapid.IntRange(0, n).Draw(rt, label+" node"))
		if several {
			d.Nodes |= numa.Mask(rapid.Uint64Range(0, 1<<(n+1)-1).Draw(rt, label+" nodes"))
		}
		return d
	}
	f := &family{machine: 1<<n - 1, need: rapid.IntRange(0, 5).Draw(rt, "need")}
	for i := range rapid.IntRange(0, 8).Draw(rt, "devices") {
		d := device(fmt.Sprint(i))
		f.all = append(f.all, d)
		switch rapid.IntRange(0, 3).Draw(rt, "state") {
		case 0:
			f.free = append(f.free, d)
		case 1:
			f.reusable = append(f.reusable, d)
		}
	}
	return f
}

// naive answers from the words of the definition, one device at a time.
func (f *family) naive() []hint.Hint {
	universe := numa.Mask(0)
	for _, d := range f.all {
		universe |= d.Nodes & f.machine
	}
	if universe == 0 {
		universe = f.machine
	}
	best := universe.Len()
	var hints []hint.Hint
	for m := range numa.Subsets(universe) {
		touching := func(list []Device) (n int) {
			for _, d := range list {
				if d.Nodes.Overlaps(m) {
					n++
				}
			}
			return n
		}
		if touching(f.all) >= f.need && m.Len() < best {
			best = m.Len()
		}
		missed := false
		for _, d := range f.reusable {
			missed = missed || d.Topology && !d.Nodes.Overlaps(m)
		}
		if !missed && touching(f.free)+touching(f.reusable) >= f.need {
			hints = append(hints, hint.Hint{Nodes: m})
		}
	}
	for i := range hints {
		hints[i].Preferred = hints[i].Nodes.Len() == best
	}
	return hints
}

func TestListsAgreeWithTheDefinition(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		f := families(rt, 5, true)
		got, want := f.list(f.universe()), f.naive()
		if fmt.Sprint(got) != fmt.Sprint(want) {
			rt.Fatalf("%+v: got %v, want %v", f, got, want)
		}
	})
}

func TestRulesAgreeWithLists(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		f := families(rt, 5, false)
		rule, single := f.rule(f.universe())
		if !single {
			rt.Fatalf("%+v is not described by a rule", f)
		}
		got, err := rule.Expand(1 << 10)
		if err != nil {
			rt.Fatal(err)
		}
		if want := f.list(f.universe()); fmt.Sprint(got) != fmt.Sprint(want) && len(got)+len(want) > 0 {
			rt.Fatalf("%+v: rule gives %v, list %v", f, got, want)
		}
	})
}

// Many nodes are answered by a rule where that is possible, and else with a list
// of bounded length.
func TestManyNodes(t *testing.T) {
	t.Parallel()
	f := &family{machine: ^numa.Mask(0), need: 3}
	for n := range numa.MaxNodes {
		f.all = append(f.all, Device{Nodes: numa.Of(n), Topology: true})
	}
	f.free = f.all
	a := f.answer()
	if a.Kind != hint.ByRule || a.Rule.PreferredSize != 3 || !a.Rule.Allows(numa.Of(0, 9, 63)) || a.Rule.Allows(numa.Of(1, 2)) {
		t.Errorf("answer %+v", a)
	}
	if f.need = 65; f.answer().Kind != hint.Impossible {
		t.Error("65 of 64 devices")
	}
	f.need = 2
	f.all = append(f.all, Device{Nodes: numa.Of(0, 1), Topology: true})
	f.free = f.all
	a = f.answer()
	if a.Kind != hint.Options || len(a.Hints) > listedSets || a.Hints[len(a.Hints)-1].Nodes != f.machine {
		t.Errorf("%s, %d hints", a.Kind, len(a.Hints))
	}
	reply := hint.Reply{Provider: Name, Answers: []hint.ResourceAnswer{{Resource: gpu, Answer: a}}}
	if err := hint.CheckReply(reply, f.machine); err != nil {
		t.Error(err)
	}
}

func BenchmarkHints(b *testing.B) {
	for _, nodes := range []int{2, 8, 12, 64} {
		f := &family{machine: ^numa.Mask(0), need: 4}
		for i := range 8 * nodes {
			f.all = append(f.all, Device{Nodes: numa.Of(i % nodes), Topology: true})
		}
		f.free = f.all[len(f.all)/2:]
		b.Run(fmt.Sprintf("%dnodes", nodes), func(b *testing.B) {
			for b.Loop() {
				f.answer()
			}
		})
	}
}

// A ledger of 500 pods with 4 containers of one device each.
func BenchmarkFullLedger(b *testing.B) {
	bench := newBench(b, "8n4c")
	var list []Device
	for i := range 2100 {
		list = append(list, Device{ID: fmt.Sprintf("d%04d", i), Healthy: true, Nodes: numa.Of(i % 8), Topology: true})
	}
	bench.inv.Listed(bench.inv.Registered(gpu, Options{}, epoch), list, epoch)
	for p := range 500 {
		uid := fmt.Sprintf("p%03d", p)
		bench.pod(uid, "a", "b", "c", "d")
		for c := range 4 {
			bench.hold(uid, string(rune('a'+c)), gpu, list[4*p+c].ID)
		}
	}
	pod := bench.pod("pod", "c gpu=2")
	view, req, ctx := bench.draft.View(), hint.Request{Pod: pod}, context.Background()
	b.Run("hints", func(b *testing.B) {
		for b.Loop() {
			if _, err := bench.Hints(ctx, view, req); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("plan", func(b *testing.B) {
		for b.Loop() {
			if _, err := bench.Plan(ctx, view, req, nodes(3)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
