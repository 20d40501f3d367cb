package reconcile

import (
	"testing"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/workload"
)

// TestPassBeforeTheCommit: between the making of a pod's cgroup and the pod's commit, a
// pass leaves the tiers what the pod needs. If the admission is given up, the next pass
// takes it back, and makes nothing anew.
func TestPassBeforeTheCommit(t *testing.T) {
	t.Parallel()
	const tier, pod = "/kubepods/burstable", "/kubepods/burstable/podnew"
	b := newBench(t, memtree.V1(), nil)
	inFlight := b.ledger.View
	b.InFlight = func() *ledger.View { return inFlight() }
	b.admit("old", workload.Burstable, cpus(1000))
	b.pass()
	without := b.shares(tier)
	for _, row := range []struct {
		name   string
		commit bool
	}{{"given up", false}, {"committed", true}} {
		p := ledgertest.Pod("new", "c")
		p.QoS, p.Pod.QoS = workload.Burstable, workload.Burstable
		p.Pod.Containers[0].Requests = cpus(2000)
		draft := ledger.NewDraft(b.ledger.View())
		draft.PutPod(p)
		inFlight = func() *ledger.View { return draft.View() }
		if _, created, err := b.EnsurePod(t.Context(), draft.View(), "new"); err != nil || !created {
			t.Fatalf("%s: created %t, %v", row.name, created, err)
		}
		with := b.shares(tier)
		if with <= without {
			t.Fatalf("%s: the tier's shares are %d with the pod, %d without", row.name, with, without)
		}
		b.admit("other", workload.BestEffort, nil) // a commit in between is followed
		for name, write := range map[string]func() error{
			"a pass": func() error { return b.Pass(t.Context()) },
			"a pass for a commit": func() error {
				b.update(func(d *ledger.Draft) { d.RemovePod("other") })
				return b.Follow(t.Context())
			},
			"an update of the tiers by hand": func() error { _, err := b.UpdateTiers(t.Context()); return err },
			"a repair of another pod's cgroup by hand": func() error {
				_, _, err := b.EnsurePod(t.Context(), b.ledger.View(), "old")
				return err
			},
			"a resize of another pod": func() error { return b.Resize(t.Context(), b.ledger.View(), "old") },
		} {
			if err := write(); err != nil {
				t.Fatal(err)
			}
			if got := b.shares(tier); got != with {
				t.Errorf("%s: after %s the tier's shares are %d, with the pod they have to be %d", row.name, name, got, with)
			}
		}
		want := without
		if row.commit {
			b.update(func(d *ledger.Draft) { own := *p; d.PutPod(&own) })
			want = with
		} else if err := b.ForgetPod(t.Context(), draft.View(), "new"); err != nil {
			t.Fatal(err)
		}
		b.pass() // the reservation ends a moment after the commit, or the removal
		inFlight = b.ledger.View
		b.pass()
		if got := b.shares(tier); got != want {
			t.Errorf("%s: in the end the tier's shares are %d, want %d", row.name, got, want)
		}
		if state := b.seen(pod).State; (state == cgroup.Valid) != row.commit {
			t.Errorf("%s: the pod's cgroup is %s", row.name, state)
		}
		if len(b.uncommitted) != 0 {
			t.Errorf("%s: %v are still in flight", row.name, b.uncommitted)
		}
	}
}

// TestPassBeforeTheCommitOfAResize: a pass between a resize in the kernel and its commit
// takes nothing back.
func TestPassBeforeTheCommitOfAResize(t *testing.T) {
	t.Parallel()
	const tier, pod = "/kubepods/burstable", "/kubepods/burstable/podp"
	b := newBench(t, memtree.V1(), nil)
	b.admit("p", workload.Burstable, cpus(1000))
	b.pass()
	old, _ := b.ledger.View().Pod("p")
	p := *old
	p.Pod.Containers = append([]workload.Container{}, old.Pod.Containers...)
	p.Pod.Containers[0].Requests, p.Pod.Containers[0].Limits = cpus(3000), cpus(3000)
	draft := ledger.NewDraft(b.ledger.View())
	draft.PutPod(&p)
	b.InFlight = draft.View
	if err := b.Resize(t.Context(), draft.View(), "p"); err != nil {
		t.Fatal(err)
	}
	wantTier, wantPod := b.shares(tier), b.shares(pod)
	b.pass()
	if gotTier, gotPod := b.shares(tier), b.shares(pod); gotTier != wantTier || gotPod != wantPod {
		t.Errorf("shares of the tier %d and the pod %d, want %d and %d", gotTier, gotPod, wantTier, wantPod)
	}
	b.InFlight = b.ledger.View // it was given up
	b.pass()
	if got := b.shares(tier); got >= wantTier {
		t.Errorf("in the end the tier's shares are %d", got)
	}
}

// TestOlderViewsDoNotShrinkTiers: an operation that was planned before another pod was
// committed leaves the tier what that pod needs.
func TestOlderViewsDoNotShrinkTiers(t *testing.T) {
	t.Parallel()
	const tier = "/kubepods/burstable"
	for name, write := range map[string]func(b *bench, older *ledger.View) error{
		"making a cgroup": func(b *bench, older *ledger.View) error {
			_, _, err := b.EnsurePod(b.t.Context(), older, "old")
			return err
		},
		"a resize": func(b *bench, older *ledger.View) error { return b.Resize(b.t.Context(), older, "old") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, memtree.V1(), nil)
			b.InFlight = b.ledger.View
			b.admit("old", workload.Burstable, cpus(1000))
			older := b.ledger.View()
			b.admit("new", workload.Burstable, cpus(2000))
			b.pass()
			want := b.shares(tier)
			b.must(write(b, older))
			if got := b.shares(tier); got != want {
				t.Errorf("the tier's shares are %d, want %d", got, want)
			}
		})
	}
}
