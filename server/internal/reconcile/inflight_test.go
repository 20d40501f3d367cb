package reconcile

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/workload"
)

// TestPassBeforeTheCommit: between the making of a pod's cgroup and the pod's commit, a
// pass leaves the tiers what the pod needs. If the admission is given up, the next pass
// takes it back, and makes nothing again.
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
		if len(b.wanted.uncommitted) != 0 {
			t.Errorf("%s: %v are still in flight", row.name, b.wanted.uncommitted)
		}
	}
}

// TestWritesBeforeTheCommitOfAResize: what is written between a resize in the kernel and its
// commit, or between the commit and the end of the reservation, gives nothing its old value,
// whether the pod grows or shrinks. If the resize is given up, the old values come back.
func TestWritesBeforeTheCommitOfAResize(t *testing.T) {
	t.Parallel()
	sizes := func(digest string, milliCPU, milliLimit, bytes int64) func() *ledger.Pod {
		return func() *ledger.Pod {
			p := record(milliCPU, milliLimit, bytes)
			p.Digest = digest
			return p
		}
	}
	small, large := sizes("small", 500, 1000, 4<<20), sizes("large", 1000, 3000, 16<<20)
	for direction, pods := range map[string][2]func() *ledger.Pod{"up": {small, large}, "down": {large, small}} {
		for way, write := range map[string]func(b *bench) error{
			"a pass":                         func(b *bench) error { return b.Pass(b.t.Context()) },
			"a commit":                       func(b *bench) error { return b.Follow(b.t.Context()) },
			"an update of the tiers by hand": func(b *bench) error { _, err := b.UpdateTiers(b.t.Context()); return err },
			"another pod's cgroup": func(b *bench) error {
				_, _, err := b.EnsurePod(b.t.Context(), b.ledger.View(), "other")
				return err
			},
		} {
			for _, facts := range []cgroup.Facts{memtree.V1(), memtree.V2()} {
				from, to := pods[0], pods[1]
				b, view := resized(t, facts, from(), to())
				b.admit("other", workload.Burstable, cpus(200))
				b.pass()
				old := b.values()
				b.InFlight = func() *ledger.View { // the reservation has the larger amounts
					d := ledger.NewDraft(b.ledger.View())
					d.PutPod(large())
					return d.View()
				}
				b.must(b.Resize(t.Context(), view, "a"))
				want := b.values()
				if want == old {
					t.Fatal("the resize has written nothing")
				}
				expect := func(when, want string) {
					t.Helper()
					b.must(write(b))
					if got := b.values(); got != want {
						t.Errorf("%s, %s %s:\n%swant\n%s", direction, way, when, got, want)
					}
				}
				expect("before the commit", want)
				if report, err := b.Report(t.Context()); err != nil || len(report.pending()) != 0 {
					t.Errorf("%s, before the commit: %v is pending, %v", direction, report.pending(), err)
				}
				b.update(func(d *ledger.Draft) { d.PutPod(to()) })
				expect("after the commit", want)
				b.pass()
				if len(b.last.Ops) != 0 || len(b.last.Drifts) != 0 || b.values() != want || len(b.wanted.uncommitted) != 0 {
					t.Errorf("%s, %s: after the commit a pass does %v, finds %v", direction, way, b.last.Ops, b.last.Drifts)
				}

				b, view = resized(t, facts, from(), to())
				b.admit("other", workload.Burstable, cpus(200))
				b.InFlight = b.ledger.View
				b.pass()
				b.must(b.Resize(t.Context(), view, "a"))
				b.must(b.Resize(t.Context(), b.ledger.View(), "a"))
				expect("after it was given up", old)
			}
		}
	}
}

// values are those of all cgroups, as text.
func (b *bench) values() string {
	b.t.Helper()
	seen, err := b.tree.Observe(b.t.Context(), name("/kubepods"), -1)
	b.must(err)
	var out strings.Builder
	for _, o := range seen.Nodes {
		values, err := json.Marshal(o.Values)
		b.must(err)
		fmt.Fprintf(&out, "%s %s\n", o.Name, values)
	}
	return out.String()
}

func (r Report) pending() (ops []cgroup.Op) {
	for _, e := range r.Entries {
		ops = append(ops, e.Pending...)
	}
	return ops
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
