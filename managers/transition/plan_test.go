package transition_test

import (
	"strings"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/transition"
	"github.com/berthd/berth/managers/workload"
)

// world is the view of a machine with two NUMA nodes of 4 CPUs and 100 bytes each. CPU 0 is reserved.
func world(t *testing.T, pods ...*ledger.Pod) *ledger.View {
	t.Helper()
	rules := ledger.Rules{Machine: machinetest.Build("1s2n4c1t"), ReservedCPUs: ledgertest.Exclusive("", "0").CPUs.Set}
	for node := range 2 {
		rules.Memory = append(rules.Memory, ledger.NodeMemory{Node: node, Resource: "memory", Total: 100, Allocatable: 100})
	}
	d := ledger.NewDraft(ledgertest.New(t, rules).View())
	for _, p := range pods {
		d.PutPod(p)
	}
	return d.View()
}

// wish is the wanted state of a pod.
type wish struct {
	pod    string
	claims []ledger.Claim
}

func to(pod string, claims ...ledger.Claim) wish {
	return wish{pod, ledgertest.With(ledgertest.Pod(pod), claims...).Claims}
}

// planned makes the plan for some wishes.
func planned(view *ledger.View, wishes ...wish) (*transition.Plan, error) {
	var changes []transition.Change
	for _, w := range wishes {
		c, err := transition.To(view, w.pod, w.claims)
		if err != nil {
			return nil, err
		}
		changes = append(changes, c)
	}
	return transition.New(view, changes)
}

func TestPlans(t *testing.T) {
	t.Parallel()
	cpus, mem := ledgertest.Exclusive,
		func(c, nodes string, bytes uint64) ledger.Claim { return ledgertest.Memory(c, "memory", nodes, bytes) }
	pod := func(uid string, claims ...ledger.Claim) *ledger.Pod {
		return ledgertest.With(ledgertest.Pod(uid, "c"), claims...)
	}
	whole := ledgertest.With(ledgertest.Pod("w", "c", "d"), ledgertest.CPUs("", "4-7", ledger.CPUPod),
		ledgertest.CPUs("c", "4-5", ledger.CPUPodExclusive), ledgertest.CPUs("d", "6-7", ledger.CPUPodShared))
	for name, row := range map[string]struct {
		pods    []*ledger.Pod
		changes []wish
		want    string // the steps, or the error
		cost    transition.Cost
	}{
		"to the other node": {
			[]*ledger.Pod{pod("a", cpus("c", "1-2"), mem("c", "0", 60))},
			[]wish{to("a", cpus("c", "4-5"), mem("c", "1", 60))},
			`widen a/c: CPUs 1-2 to 1-2,4-5 memory of NUMA nodes 0 to 0-1
migrate a/c: at most 60 bytes to NUMA nodes 1
narrow a/c: CPUs 1-2,4-5 to 4-5 memory of NUMA nodes 0-1 to 1`,
			transition.Cost{Containers: 1, CPUs: 2, Bytes: 60},
		},
		"nothing to do": {
			[]*ledger.Pod{pod("a", cpus("c", "1-2"))}, []wish{to("a", cpus("c", "1-2"))}, "", transition.Cost{},
		},
		"one after the other": {
			[]*ledger.Pod{pod("a", cpus("c", "1-2")), pod("b", cpus("c", "4-5"))},
			[]wish{to("a", cpus("c", "4-5")), to("b", cpus("c", "6-7"))},
			`widen b/c: CPUs 4-5 to 4-7
narrow b/c: CPUs 4-7 to 6-7
widen a/c: CPUs 1-2 to 1-2,4-5
narrow a/c: CPUs 1-2,4-5 to 4-5`,
			transition.Cost{Containers: 2, CPUs: 4},
		},
		"an exchange through a free CPU": {
			[]*ledger.Pod{pod("a", cpus("c", "1-3")), pod("b", cpus("c", "4-6"))},
			[]wish{to("a", cpus("c", "4-6")), to("b", cpus("c", "1-3"))},
			`widen a/c: CPUs 1-3 to 1-3,7
hand over a/c: CPUs 1-3,7 to 2-3,7
widen b/c: CPUs 4-6 to 1,4-6
hand over b/c: CPUs 1,4-6 to 1,5-6
widen a/c: CPUs 2-3,7 to 2-4,7
hand over a/c: CPUs 2-4,7 to 3-4,7
widen b/c: CPUs 1,5-6 to 1-2,5-6
hand over b/c: CPUs 1-2,5-6 to 1-2,6
widen a/c: CPUs 3-4,7 to 3-5,7
hand over a/c: CPUs 3-5,7 to 4-5,7
widen b/c: CPUs 1-2,6 to 1-3,6
narrow b/c: CPUs 1-3,6 to 1-3
widen a/c: CPUs 4-5,7 to 4-7
narrow a/c: CPUs 4-7 to 4-6`,
			transition.Cost{Containers: 2, CPUs: 6},
		},
		"an exchange without a free CPU": {
			[]*ledger.Pod{pod("a", cpus("c", "1-3")), pod("b", cpus("c", "4-7"))},
			[]wish{to("a", cpus("c", "4-6")), to("b", cpus("c", "1-3,7"))},
			"a/c waits for CPUs 4-6, and no CPU is free to exchange them", transition.Cost{},
		},
		"no memory for both sides": {
			[]*ledger.Pod{pod("a", mem("c", "0", 60)), pod("b", mem("c", "1", 60))},
			[]wish{to("a", mem("c", "1", 60)), to("b", mem("c", "0", 60))},
			"a/c needs room for its memory on both sides while it moves: 60 bytes of memory on NUMA node 1, where 40 are free",
			transition.Cost{},
		},
		"wider memory counts each node once": {
			[]*ledger.Pod{pod("a", mem("c", "0", 80))},
			[]wish{to("a", ledger.Claim{Owner: ledger.Owner{Container: "c"}, Provider: "memory", Resource: "memory",
				Memory: []ledger.Block{{Nodes: 3, Bytes: 120, Parts: []ledger.Part{{Node: 0, Bytes: 90}, {Node: 1, Bytes: 30}}}}})},
			`widen a/c: memory of NUMA nodes 0 to 0-1
narrow a/c:`,
			transition.Cost{Containers: 1},
		},
		"a pod as a whole": {
			[]*ledger.Pod{whole},
			[]wish{to("w", ledgertest.CPUs("", "1-4", ledger.CPUPod), ledgertest.CPUs("c", "1-2", ledger.CPUPodExclusive),
				ledgertest.CPUs("d", "3-4", ledger.CPUPodShared))},
			`widen w: CPUs 4-7 to 1-7
widen w/c: CPUs 4-5 to 1-2,4-5
narrow w/c: CPUs 1-2,4-5 to 1-2
widen w/d: CPUs 6-7 to 3-4,6-7
narrow w/d: CPUs 3-4,6-7 to 3-4
narrow w: CPUs 1-7 to 1-4`,
			transition.Cost{Containers: 2, CPUs: 3},
		},
		"the shared CPUs would be used up": {
			[]*ledger.Pod{pod("a", cpus("c", "1-3")), pod("s")},
			[]wish{to("a", cpus("c", "4-7"))},
			`widen a/c: CPUs 1-3 to 1-7
narrow a/c: CPUs 1-7 to 4-7`, transition.Cost{Containers: 1, CPUs: 4}, // CPU 0 is shared
		},
		"no such pod":          {nil, []wish{to("a", cpus("c", "1"))}, "pod a is not admitted", transition.Cost{}},
		"no such claim":        {[]*ledger.Pod{pod("a")}, []wish{to("a", cpus("c", "1"))}, "no claim of a/c on cpu", transition.Cost{}},
		"another kind of CPUs": {[]*ledger.Pod{whole}, []wish{to("w", cpus("c", "1"))}, `cannot become "exclusive"`, transition.Cost{}},
		"devices": {
			[]*ledger.Pod{pod("a", ledgertest.Devices("c", "x/y", "d1"))}, []wish{to("a", ledgertest.Devices("c", "x/y", "d2"))},
			"only CPUs and memory can", transition.Cost{},
		},
		"a reserved CPU": {
			[]*ledger.Pod{pod("a", cpus("c", "1"))}, []wish{to("a", cpus("c", "0"))}, "waits for CPUs 0", transition.Cost{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plan, err := planned(world(t, row.pods...), row.changes...)
			if err != nil {
				if !strings.Contains(err.Error(), row.want) || row.want == "" {
					t.Errorf("%v, want %s", err, row.want)
				}
				return
			}
			if got := steps(plan.Steps); got != row.want {
				t.Errorf("got\n%s\nwant\n%s", got, row.want)
			}
			if plan.Cost != row.cost {
				t.Errorf("cost %+v, want %+v", plan.Cost, row.cost)
			}
		})
	}
}

func steps(all []transition.Step) string {
	var lines []string
	for i := range all {
		lines = append(lines, all[i].String())
	}
	return strings.Join(lines, "\n")
}

// A shared pool that the change uses up, with a container in it.
func TestSharedCPUsStay(t *testing.T) {
	t.Parallel()
	rules := ledger.Rules{Machine: machinetest.Build("1s1n4c1t")}
	d := ledger.NewDraft(ledgertest.New(t, rules).View())
	d.PutPod(ledgertest.With(ledgertest.Pod("a", "c"), ledgertest.Exclusive("c", "0-1")))
	d.PutPod(ledgertest.Pod("s", "c"))
	_, err := planned(d.View(), to("a", ledgertest.Exclusive("c", "2-3")))
	if reason, _ := errdefs.ReasonOf(err); reason != errdefs.ResizeDeferred || !strings.Contains(err.Error(), "shared CPUs") {
		t.Errorf("got %v", err)
	}
	d.RemovePod("s")
	if plan, err := planned(d.View(), to("a", ledgertest.Exclusive("c", "2-3"))); err != nil || len(plan.Steps) != 2 {
		t.Errorf("without a sharing container: %v, %v", plan, err)
	}
}

// The containers of a moving pod exchange their CPUs, and the CPU that the pod holds for it is gone: another one that is
// free does it, too.
func TestExchangeThroughAnotherCPU(t *testing.T) {
	t.Parallel()
	from := ledgertest.With(ledgertest.Pod("a", "c", "d"), ledgertest.Exclusive("c", "1-3"), ledgertest.Exclusive("d", "4-6"))
	into := ledgertest.With(ledgertest.Pod("a", "c", "d"), ledgertest.Exclusive("c", "4-6"), ledgertest.Exclusive("d", "1-3"))
	from.Move = &ledger.Move{From: from.Claims, To: into.Claims, Held: []ledger.Claim{from.Claims[0], from.Claims[1]}}
	view := world(t, from)
	plan, err := transition.New(view, []transition.Change{{Pod: "a", From: from.Claims, To: into.Claims}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range plan.Steps {
		d := ledger.NewDraft(view)
		plan.Steps[i].Apply(d)
		if view = d.View(); len(check.View(view)) > 0 || !transition.Placed(plan.Steps[i].After).CPUs.IsSubsetOf(view.ExclusiveCPUs()) {
			t.Fatalf("%s: %v, exclusive are %s", plan.Steps[i].String(), check.View(view), view.ExclusiveCPUs())
		}
	}
}

// TestMoveOntoOfflineCPUs: a pod moves, and a CPU that one of its containers is to get from the other is offline meanwhile. The
// move ends, forwards and backwards; another pod does not get such a CPU.
func TestMoveOntoOfflineCPUs(t *testing.T) {
	t.Parallel()
	from := ledgertest.With(ledgertest.Pod("a", "c", "d"), ledgertest.Exclusive("c", "1-2"), ledgertest.Exclusive("d", "3-4"))
	into := ledgertest.With(ledgertest.Pod("a", "c", "d"), ledgertest.Exclusive("c", "2-3"), ledgertest.Exclusive("d", "4-5"))
	held := ledgertest.With(ledgertest.Pod("a", "c", "d"), ledgertest.Exclusive("c", "1-3"), ledgertest.Exclusive("d", "3-5")).Claims
	for name, row := range map[string]struct {
		offline string
		now     []ledger.Claim
		reverse bool
	}{
		"forwards":           {"3", from.Claims, false},
		"forwards, and both": {"3-5", from.Claims, false},
		"on the way":         {"3", []ledger.Claim{from.Claims[0], into.Claims[1]}, false},
		"backwards":          {"3", into.Claims, true},
	} {
		for _, moves := range []bool{true, false} {
			pod := &ledger.Pod{Pod: from.Pod, Claims: row.now}
			if moves {
				pod.Move = &ledger.Move{From: from.Claims, To: into.Claims, Held: held}
			}
			change := transition.Change{Pod: "a", From: from.Claims, To: into.Claims}
			if row.reverse {
				change.From, change.To = change.To, change.From
			}
			view := world(t, pod)
			rules := view.Rules()
			rules.Machine = machinetest.Build("1s2n4c1t", machinetest.Offline(row.offline))
			view = view.Under(rules)
			plan, err := transition.New(view, []transition.Change{change})
			if moves != (err == nil) {
				t.Errorf("%s: a pod that moves (%v): %v", name, moves, err)
				continue
			}
			for i := range plan.Steps {
				d := ledger.NewDraft(view)
				plan.Steps[i].Apply(d)
				view = d.View()
			}
			if p, _ := view.Pod("a"); moves && (p.Claims[0].CPUs.Set != change.To[0].CPUs.Set ||
				p.Claims[1].CPUs.Set != change.To[1].CPUs.Set) {
				t.Errorf("%s: it has %s and %s", name, p.Claims[0].CPUs.Set, p.Claims[1].CPUs.Set)
			}
		}
	}
}

// TestMoveOntoLessMemory: a pod moves, and a NUMA node has become smaller. The pod gets what it holds there, forwards and
// backwards; another pod does not.
func TestMoveOntoLessMemory(t *testing.T) {
	t.Parallel()
	mem := func(c, nodes string, bytes uint64) ledger.Claim { return ledgertest.Memory(c, "memory", nodes, bytes) }
	from := ledgertest.With(ledgertest.Pod("a", "c", "d"), mem("c", "0", 60), mem("d", "1", 60))
	into := ledgertest.With(ledgertest.Pod("a", "c", "d"), mem("c", "1", 60), mem("d", "0", 60))
	held := []ledger.Claim{mem("c", "0", 60), mem("d", "1", 60)}
	for i := range held {
		held[i].Owner.Pod = "a"
		held[i].Memory = append(held[i].Memory, into.Claims[i].Memory...)
	}
	for name, moves := range map[string]bool{"moves": true, "does not move yet": false} {
		if moves {
			from.Move = &ledger.Move{From: from.Claims, To: into.Claims, Held: held}
		} else {
			from.Move = nil
		}
		for _, turn := range []bool{false, true} {
			change := transition.Change{Pod: "a", From: from.Claims, To: into.Claims}
			view := world(t, from)
			if turn { // d has both sides, and the move is reversed
				d := ledger.NewDraft(view)
				d.AddClaims("a", held[1])
				view = d.View()
				change.From, change.To = change.To, change.From
			}
			plan, err := transition.New(view, []transition.Change{change})
			if moves != (err == nil) && !turn {
				t.Errorf("%s: %v", name, err)
			}
			for i := range plan.Steps {
				d := ledger.NewDraft(view)
				plan.Steps[i].Apply(d)
				view = d.View()
			}
			if want := change.To[0].Content(); err == nil {
				if got, _ := view.Claim(ledger.Owner{Pod: "a", Container: "c"}, "memory"); got.Content() != want {
					t.Errorf("%s: it has %s, want %s", name, got.Content(), want)
				}
			}
		}
	}
}

// An app container uses the memory that an init container passes on, so both move back to a node that has room for one of them.
func TestInitContainersPassMemoryOn(t *testing.T) {
	t.Parallel()
	mem := func(c, nodes string) ledger.Claim { return ledgertest.Memory(c, "memory", nodes, 80) }
	on := func(nodes string) *ledger.Pod {
		p := ledgertest.With(ledgertest.Pod("a", "i", "c"), mem("i", nodes), mem("c", nodes))
		p.Pod.Containers[0].Role = workload.Init
		return p
	}
	view := world(t, on("1"))
	plan, err := planned(view, to("a", on("0").Claims...))
	if err != nil {
		t.Fatal(err)
	}
	for i := range plan.Steps {
		d := ledger.NewDraft(view)
		plan.Steps[i].Apply(d)
		view = d.View()
		if held := view.MemoryUse().Held("memory"); held[0] > 100 || held[1] > 100 {
			t.Errorf("%s: %v", plan.Steps[i].String(), held[:2])
		}
	}
}

// A change is refused without its other half, and skips claims that the pod has given back.
func TestChangesOfAnotherTime(t *testing.T) {
	t.Parallel()
	view := world(t, ledgertest.With(ledgertest.Pod("a", "c"), ledgertest.Exclusive("c", "1-2"), ledgertest.Memory("c", "memory", "0", 1)))
	c, err := transition.To(view, "a", to("a", ledgertest.Exclusive("c", "4-5"), ledgertest.Memory("c", "memory", "1", 1)).claims)
	if err != nil {
		t.Fatal(err)
	}
	d := ledger.NewDraft(view)
	d.DropClaims("a", c.From[1])
	plan, err := transition.New(d.View(), []transition.Change{c})
	if err != nil || len(plan.Steps) != 2 || plan.Cost.Bytes != 0 {
		t.Errorf("%+v, %v", plan, err)
	}
	c.From = c.From[:1]
	if _, err := transition.New(view, []transition.Change{c}); errdefs.ClassOf(err) != errdefs.Invalid {
		t.Errorf("half a change: %v", err)
	}
	if _, err := transition.New(view, []transition.Change{{Pod: "none"}}); errdefs.ClassOf(err) != errdefs.NotFound {
		t.Errorf("an unknown pod: %v", err)
	}
}
