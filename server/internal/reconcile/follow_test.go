package reconcile

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/workload"
)

// Whatever happens to pods, following the ledger leaves a pass over the whole tree
// nothing to do.
func TestFollowIsAsGoodAsAPass(t *testing.T) {
	t.Parallel()
	for name, facts := range map[string]cgroup.Facts{"v1": memtree.V1(), "v2": memtree.V2()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(r *rapid.T) {
				b := newBench(t, facts, nil)
				b.pass()
				for step := range rapid.IntRange(1, 12).Draw(r, "steps") {
					if b.happen(r, fmt.Sprint(step)); rapid.IntRange(0, 3).Draw(r, "refused") == 0 {
						b.hinder(r)
					}
					if err := b.Follow(t.Context()); err != nil {
						r.Fatal(err)
					}
					ops, err := b.Plan(t.Context())
					if err != nil || len(ops) > 0 {
						r.Fatalf("step %d: %v, left to do %v", step, err, ops)
					}
				}
			})
		})
	}
}

// hinder has the kernel refuse something for a moment: what a follower or a pass writes,
// or the removal of a pod. What could not be done is not forgotten.
func (b *bench) hinder(r *rapid.T) {
	uid := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(r, "hindered")
	for _, path := range []string{"/kubepods/pod" + uid, "/kubepods/burstable/pod" + uid, "/kubepods/burstable/pod" + uid + "/c"} {
		b.refuse[path] = errRefused
	}
	remove := func() {
		view := b.ledger.View()
		if _, here := view.Pod(uid); here {
			_ = b.RemovePod(b.t.Context(), view, uid)
		}
	}
	do := []func(){
		func() { _ = b.Follow(b.t.Context()) },
		func() { _ = b.Pass(b.t.Context()) },
		remove,
		func() { // while it is being removed
			b.removing = func() error {
				b.removing = nil
				return errors.Join(b.Pass(b.t.Context()), errRefused)
			}
			remove()
			b.removing = nil
		},
	}
	for range rapid.IntRange(1, 3).Draw(r, "times") {
		rapid.SampledFrom(do).Draw(r, "do")()
	}
	clear(b.refuse)
}

// TestFollowTakesTheChange: of many pods a commit has only those looked at that it
// changes, and those that run where others may be now.
func TestFollowTakesTheChange(t *testing.T) {
	t.Parallel()
	b := newBench(t, memtree.V1(), nil)
	b.update(func(d *ledger.Draft) {
		for i := range 200 {
			uid := fmt.Sprint("old", i)
			d.PutPod(ledgertest.Pod(uid, "c"))
			if i < 2 {
				d.Bind(ledger.Binding{ID: uid, Owner: ledger.Owner{Pod: uid, Container: "c"}, CgroupPath: "/kubepods/pod" + uid + "/c",
					Own: true})
			}
		}
	})
	b.pass()
	tiers := len(b.wanted.tiers(b.ledger.View()))
	for _, row := range []struct {
		name   string
		change func(d *ledger.Draft)
		want   int
	}{
		{"a pod comes", func(d *ledger.Draft) { d.PutPod(ledgertest.Pod("new", "c")) }, 1},
		{"a container starts", func(d *ledger.Draft) {
			d.Bind(ledger.Binding{ID: "x", Owner: ledger.Owner{Pod: "new", Container: "c"}, CgroupPath: "/kubepods/podnew/c", Own: true})
		}, 2},
		{"something else", func(d *ledger.Draft) { d.PutResource(ledger.SeenResource{Name: "gpu"}) }, 0},
		{"CPUs are shared no more", func(d *ledger.Draft) {
			d.PutPod(ledgertest.With(ledgertest.Pod("own", "c"), ledgertest.Exclusive("c", "2-3")))
		}, 1 + 3*2},
		{"pods go", func(d *ledger.Draft) { d.RemovePod("new"); d.RemovePod("old7") }, 0},
	} {
		b.update(row.change)
		view := b.ledger.View()
		got, err := b.wanted.desired(view, view, b.wanted.tiers(view), &plan{subjects: b.touched(view, nil)})
		if err != nil || len(got) != tiers+row.want {
			t.Errorf("%s: %d cgroups are looked at beside the tiers, %v, want %d", row.name, len(got)-tiers, err, row.want)
		}
		b.must(b.Follow(t.Context()))
	}
}

// happen lets something happen to a random pod.
func (b *bench) happen(r *rapid.T, id string) {
	uid := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(r, "pod")
	owner := ledger.Owner{Pod: uid, Container: "c"}
	view := b.ledger.View()
	_, here := view.Pod(uid)
	switch what := rapid.SampledFrom([]string{"start", "stop", "remove", "resize"}).Draw(r, "what"); {
	case !here:
		p := ledgertest.Pod(uid, "c")
		p.QoS, p.Pod.QoS = workload.Burstable, workload.Burstable
		p.Pod.Containers[0].Requests = cpus(rapid.Int64Range(1, 900).Draw(r, "cpu"))
		if uid == "a" {
			p = ledgertest.With(p, ledgertest.Exclusive("c", "2-3"))
		}
		d := ledger.NewDraft(view)
		d.PutPod(p)
		if rapid.Bool().Draw(r, "placed") {
			if _, _, err := b.EnsurePod(b.t.Context(), d.View(), uid); err != nil {
				r.Fatal(err)
			}
		}
		b.update(func(d *ledger.Draft) { d.PutPod(p) })
	case what == "start":
		path, err := b.EnsureContainer(b.t.Context(), view, admission.Start{Binding: ledger.Binding{ID: id, Owner: owner}})
		if err != nil {
			r.Fatal(err)
		}
		b.update(func(d *ledger.Draft) { d.Bind(ledger.Binding{ID: id, Owner: owner, CgroupPath: path, Own: true}) })
	case what == "stop":
		for bound := range view.Bindings() {
			if bound.Owner == owner {
				if err := b.RemoveContainer(b.t.Context(), bound); err != nil {
					r.Fatal(err)
				}
				b.update(func(d *ledger.Draft) { d.Unbind(bound.ID) })
			}
		}
	case what == "remove":
		if err := b.RemovePod(b.t.Context(), view, uid); err != nil {
			r.Fatal(err)
		}
		b.update(func(d *ledger.Draft) { d.RemovePod(uid) })
	default:
		have, _ := view.Pod(uid)
		p := *have
		p.Pod.Containers = []workload.Container{have.Pod.Containers[0]}
		n := rapid.Int64Range(1, 900).Draw(r, "cpu")
		p.Pod.Containers[0].Requests = cpus(n)
		p.Pod.Containers[0].Limits = workload.Quantities{workload.CPU: 2 * n, workload.Memory: n << 20}
		b.update(func(d *ledger.Draft) { d.PutPod(&p) })
	}
}

func TestFollowLooksAtNothingElse(t *testing.T) {
	t.Parallel()
	b := newBench(t, memtree.V1(), nil)
	b.admit("a", workload.Burstable, cpus(500))
	if err := b.Follow(t.Context()); err != nil || b.shares("/kubepods/burstable/poda") != 512 {
		t.Errorf("the first time it is a pass: %v, %d shares", err, b.shares("/kubepods/burstable/poda"))
	}
	b.set("/kubepods/burstable/poda", cgroup.Values{CPUShares: ptr(uint64(7))})
	b.admit("b", workload.Burstable, cpus(100))
	if err := b.Follow(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b.shares("/kubepods/burstable/poda") != 7 || b.shares("/kubepods/burstable/podb") != 102 || len(b.last.Drifts) != 0 {
		t.Errorf("shares %d and %d, drifts %v", b.shares("/kubepods/burstable/poda"), b.shares("/kubepods/burstable/podb"), b.last.Drifts)
	}
	b.pass()
	if b.shares("/kubepods/burstable/poda") != 512 || len(b.last.Drifts) != 1 {
		t.Errorf("the pass: %d shares, drifts %v", b.shares("/kubepods/burstable/poda"), b.last.Drifts)
	}
	// What the kernel refused is tried again.
	b.refuse["/kubepods/podc"] = errRefused
	b.admit("c", workload.Guaranteed, cpus(100))
	if err := b.Follow(t.Context()); err == nil {
		t.Error("a refusal is not told")
	}
	delete(b.refuse, "/kubepods/podc")
	if err := b.Follow(t.Context()); err != nil || b.shares("/kubepods/podc") != 102 {
		t.Errorf("again: %v, %d shares", err, b.shares("/kubepods/podc"))
	}
	// Other limits are a reason to look at everything.
	limits := b.Limits
	limits.Pods.CPUShares = ptr(uint64(4096))
	b.SetLimits(limits)
	if err := b.Follow(t.Context()); err != nil || b.shares("/kubepods") != 4096 {
		t.Errorf("other limits: %v, %d shares", err, b.shares("/kubepods"))
	}
}

// What is written is a list of its own: leaving out a container that has just gone does
// not touch the desired cgroups.
func TestFollowKeepsWhatIsWanted(t *testing.T) {
	t.Parallel()
	b, d := newFakeRuntime(t, memtree.V1())
	for _, id := range []string{"a1", "a2", "a3"} {
		d.create(id, "a", "0-3")
		b.must(b.prestart(id, "a"))
		d.start(t, id)
	}
	b.must(b.Follow(t.Context()))
	b.own()
	view := b.ledger.View()
	g, err := b.lister.containersOf(t.Context(), view, nil)
	b.must(err)
	desired, err := b.wanted.desired(view, view, b.wanted.tiers(view), &plan{})
	b.must(err)
	desired = append(desired, g.nodes()...)
	want := slices.Clone(desired)
	nodes := b.Loop.names.withChildren(desired, b.drift.changed(desired))
	b.must(b.tree.Remove(t.Context(), cgroup.ParseCgroupfs("/kubepods/poda/a2")))
	seen, err := b.kernel.observe(t.Context(), nodes)
	b.must(err)
	if left := g.present(nodes, seen); len(left) != len(nodes)-1 || !reflect.DeepEqual(desired, want) {
		t.Errorf("of %d nodes %d are left; wanted %v, before %v", len(nodes), len(left), desired, want)
	}
	// The same from outside.
	b.must(b.Follow(t.Context()))
	b.on("a", "a1", "0-1")
	b.on("a", "a3", "0-1")
	if ops, err := b.Plan(t.Context()); err != nil || len(ops) > 0 {
		t.Errorf("left to do: %v, %v", ops, err)
	}
}

// What a pass could not list, because the runtime was away, the next turn lists, even if a resize
// has found the containers meanwhile: nothing waits for the next pass.
func TestFollowAfterAnOutage(t *testing.T) {
	t.Parallel()
	b, d := newFakeRuntime(t, memtree.V2())
	b.own()
	b.open("b")
	d.create("a1", "a", "0-3") // without a call
	d.start(t, "a1")
	b.bind("a1", "a")
	b.Loop = New(b.Config)
	d.set(func() { d.fail = errdefs.Unavailablef("nobody there") })
	if err := b.Pass(t.Context()); !errors.Is(err, errAway) {
		t.Errorf("without the runtime: %v", err)
	}
	d.set(func() { d.fail = nil })
	b.must(b.Resize(t.Context(), b.ledger.View(), "b"))
	b.must(b.Follow(t.Context()))
	b.runsOn("/kubepods/poda/a1", "0-1")
}
