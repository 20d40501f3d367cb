package ledger_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/workload"
)

// forgetful is a journal that takes everything and keeps nothing.
type forgetful struct{}

func (forgetful) Load(context.Context) ([]journal.Entry, error)         { return nil, nil }
func (forgetful) Commit(context.Context, uint64, []journal.Entry) error { return nil }
func (forgetful) Close() error                                          { return nil }

// TestCommitFindsFlaws has, for each check of a commit, a draft that only a
// reader can distinguish from a sound one.
func TestCommitFindsFlaws(t *testing.T) {
	t.Parallel()
	pod, with, bound := ledgertest.Pod, ledgertest.With, func(container string) ledger.Binding {
		return ledger.Binding{ID: "1", Owner: ledger.Owner{Pod: "a", Container: container}}
	}
	device := ledgertest.Devices("main", "vendor.com/gpu", "x")
	for name, row := range map[string]struct {
		pods     []*ledger.Pod
		bindings []ledger.Binding
		change   func(d *ledger.Draft)
		want     check.Rule // none: the draft is sound
	}{
		"a uid that is no key": {
			change: func(d *ledger.Draft) { d.PutPod(pod("a/b", "main")) }, want: check.RuleRecord,
		},
		"a claim of no container": {
			change: func(d *ledger.Draft) { d.PutPod(with(pod("a", "main"), ledgertest.Exclusive("c", "1"))) }, want: check.RuleOwner,
		},
		"a claim that came to a pod that is here": {
			pods:   []*ledger.Pod{pod("a", "main")},
			change: func(d *ledger.Draft) { c := device; c.Owner = ledger.Owner{Pod: "b"}; d.AddClaims("a", c) }, want: check.RuleOwner,
		},
		"memory on no node": {
			change: func(d *ledger.Draft) { d.PutPod(with(pod("a", "main"), ledgertest.Memory("main", "memory", "", 1))) },
			want:   check.RulePayload,
		},
		"CPUs of a pod that is here": {
			pods:   []*ledger.Pod{with(pod("a", "main"), ledgertest.Exclusive("main", "1-3"))},
			change: func(d *ledger.Draft) { d.PutPod(with(pod("b", "main"), ledgertest.Exclusive("main", "3-4"))) },
			want:   check.RuleCPUOverlap,
		},
		"a device of a pod that is here": {
			pods:   []*ledger.Pod{with(pod("a", "main"), device)},
			change: func(d *ledger.Draft) { d.PutPod(with(pod("b", "main"), device)) }, want: check.RuleDeviceOverlap,
		},
		"a device of a pod that goes": {
			pods:   []*ledger.Pod{with(pod("a", "main"), device)},
			change: func(d *ledger.Draft) { d.RemovePod("a"); d.PutPod(with(pod("b", "main"), device)) },
		},
		"a device of two that come": {
			change: func(d *ledger.Draft) {
				d.PutPod(with(pod("a", "main"), device))
				d.PutPod(with(pod("b", "main"), device))
			},
			want: check.RuleDeviceOverlap,
		},
		"an id of nobody": {
			change: func(d *ledger.Draft) { d.Bind(bound("main")) }, want: check.RuleOwner,
		},
		"an id of no container": {
			pods:   []*ledger.Pod{pod("a", "main")},
			change: func(d *ledger.Draft) { d.Bind(bound("c")) }, want: check.RuleOwner,
		},
		"a pod replaced, without its container that runs": {
			pods: []*ledger.Pod{pod("a", "main", "c")}, bindings: []ledger.Binding{bound("c")},
			change: func(d *ledger.Draft) { d.PutPod(pod("a", "main")) }, want: check.RuleOwner,
		},
		"a pod replaced, with its container that runs": {
			pods: []*ledger.Pod{pod("a", "main", "c")}, bindings: []ledger.Binding{bound("c")},
			change: func(d *ledger.Draft) { d.PutPod(pod("a", "c")) },
		},
		"a pod removed, and an id of it": {
			pods: []*ledger.Pod{pod("a", "main")}, bindings: []ledger.Binding{bound("main")},
			change: func(d *ledger.Draft) { d.RemovePod("a") },
		},
		"an unknown uid that is no key": {
			change: func(d *ledger.Draft) { d.PutUnknownLive(ledger.UnknownLivePod{UID: "b/c"}) }, want: check.RuleUnknownLive,
		},
		"an unknown pod without a uid": {
			change: func(d *ledger.Draft) { d.PutUnknownLive(ledger.UnknownLivePod{}) }, want: check.RuleUnknownLive,
		},
		"what only the rules of today forbid": {
			change: func(d *ledger.Draft) { d.PutPod(with(pod("a", "main"), ledgertest.Exclusive("main", "7-8"))) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, _ := ledgertest.Open(t, journal.Options{Journal: forgetful{}, Rules: ledgertest.TwoNodes()})
			update := func(change func(d *ledger.Draft)) {
				t.Helper()
				if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { change(d); return nil }); err != nil {
					t.Fatal(err)
				}
			}
			update(func(d *ledger.Draft) {
				for _, p := range row.pods {
					d.PutPod(p)
				}
				for _, b := range row.bindings {
					d.Bind(b)
				}
			})
			d := ledger.NewDraft(l.View())
			row.change(d)
			before := l.View()
			_, err := l.Commit(t.Context(), d)
			switch {
			case row.want == "" && err != nil:
				t.Error(err)
			case row.want != "" && (err == nil || errdefs.ClassOf(err) != errdefs.Internal ||
				!strings.Contains(err.Error(), "structural "+string(row.want)+": ")):
				t.Errorf("got %v, want %s", err, row.want)
			case row.want != "" && l.View() != before:
				t.Error("the ledger has changed")
			}
			update(func(d *ledger.Draft) { d.RemovePod("a") }) // the end of a test minds today's rules too
		})
	}
}

// A commit checks what a draft has changed, and finds it broken exactly where a
// look at everything does.
func TestCommitFindsAsMuchAsCheck(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l, _ := ledgertest.Open(t, journal.Options{Journal: forgetful{}, Rules: ledgertest.TwoNodes(), Traces: 1})
		for range rapid.IntRange(2, 12).Draw(t, "commits") {
			d := ledger.NewDraft(l.View())
			for _, uid := range rapid.SliceOfN(rapid.SampledFrom(wildPods), 0, 2).Draw(t, "removed") {
				d.RemovePod(uid)
			}
			for _, p := range rapid.SliceOfN(rapid.Custom(wildPod), 0, 3).Draw(t, "pods") {
				d.PutPod(p)
			}
			for _, b := range rapid.SliceOfN(rapid.Custom(wildBinding), 0, 1).Draw(t, "bindings") {
				d.Bind(b)
			}
			broken := slices.ContainsFunc(check.View(d.View()), func(f check.Finding) bool { return f.Kind == check.Structural })
			_, err := l.Commit(context.Background(), d)
			if (err != nil) != broken || err != nil && errdefs.ClassOf(err) != errdefs.Internal {
				t.Fatalf("a look at everything finds broken %t, the commit says %v", broken, err)
			}
		}
	})
}

var wildPods = []string{"a", "b", "c", "d"}

// wildPod draws a pod that no planner makes, or nearly one: few names, so that it
// is another pod's, holds what others hold, or lacks the container that a claim or
// a binding names.
func wildPod(t *rapid.T) *ledger.Pod {
	p := ledgertest.Pod(rapid.SampledFrom(wildPods).Draw(t, "pod"), "init:i", "main")
	names := []string{"main", "main", "i", ""}
	if rapid.Bool().Draw(t, "second") {
		p = ledgertest.Pod(p.UID(), "main", "c")
		names = []string{"main", "c", ""}
	}
	for range rapid.IntRange(0, 2).Draw(t, "claims") {
		name := rapid.SampledFrom(names).Draw(t, "container")
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
			ledgertest.With(p, ledgertest.CPUs(name, rapid.SampledFrom([]string{"1", "1-2", "3-5"}).Draw(t, "cpus"),
				rapid.SampledFrom([]ledger.CPUUse{ledger.CPUExclusive, ledger.CPUPod, ledger.CPUPodExclusive,
					ledger.CPUPodShared}).Draw(t, "use")))
		case 1:
			ledgertest.With(p, ledgertest.Memory(name, "memory", rapid.SampledFrom([]string{"", "0", "0-1"}).Draw(t, "nodes"), 1<<20))
		default:
			ledgertest.With(p, ledgertest.Devices(name, "vendor.com/gpu", rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "device")))
		}
	}
	return p
}

// wildBinding draws the binding of a container that may not be there.
func wildBinding(t *rapid.T) ledger.Binding {
	return ledger.Binding{
		ID: fmt.Sprint(rapid.IntRange(0, 6).Draw(t, "id")),
		Owner: ledger.Owner{
			Pod:       rapid.SampledFrom(wildPods).Draw(t, "pod"),
			Container: rapid.SampledFrom([]string{"main", "main", "c"}).Draw(t, "container"),
		},
	}
}

// BenchmarkCommit is what a pod that comes costs beside the journal's write, on an
// empty node and beside 500 pods, with the list of what has changed.
func BenchmarkCommit(b *testing.B) {
	for name, base := range map[string]*ledger.View{"alone": ledger.Empty(ledgertest.Large(b).Rules()), "beside 500": ledgertest.Large(b)} {
		b.Run(name, func(b *testing.B) {
			changes := 0
			l, _, err := journal.Open(b.Context(), journal.Options{
				Journal: forgetful{}, Rules: base.Rules(),
			})
			if err != nil {
				b.Fatal(err)
			}
			l.Follow(func(old, new *ledger.View) { changes += len(ledger.Changes(old, new)) })
			put := func(pods ...*ledger.Pod) {
				_, err := l.Update(b.Context(), func(d *ledger.Draft) error {
					for _, p := range pods {
						d.PutPod(p)
					}
					return nil
				})
				if err != nil {
					b.Fatal(err)
				}
			}
			var pods []*ledger.Pod
			for p := range base.Pods() {
				pods = append(pods, p)
			}
			if len(pods) > 0 {
				put(pods...)
			}
			quantities := workload.Quantities{workload.CPU: 8000, workload.Memory: 4 << 30}
			b.ReportAllocs()
			for b.Loop() {
				p := ledgertest.With(ledgertest.Pod("new", "main"), ledgertest.Exclusive("main", "504-511"))
				p.AdmittedAt = time.Unix(1, 0)
				p.Pod.Containers[0].Requests, p.Pod.Containers[0].Limits = quantities, quantities
				p.Trace = &ledger.Trace{Pod: "new"}
				put(p)
				_, err := l.Update(b.Context(), func(d *ledger.Draft) error { d.RemovePod("new"); return nil })
				if err != nil {
					b.Fatal(err)
				}
			}
			if changes < 2*b.N {
				b.Fatalf("%d changes of %d commits", changes, 2*b.N)
			}
		})
	}
}

// TestDroppedClaimsAreNotAcknowledged: what a pod has given back does not come back with
// what was acknowledged last; it may be another's by then.
func TestDroppedClaimsAreNotAcknowledged(t *testing.T) {
	t.Parallel()
	x, y := ledgertest.Devices("main", "vendor.com/gpu", "x"), ledgertest.Devices("main", "vendor.com/nic", "y")
	p := ledgertest.With(ledgertest.Pod("a"), x, y)
	p.Acknowledged = slices.Clone(p.Claims)
	d := ledger.NewDraft(ledger.Empty(ledger.Rules{}))
	d.PutPod(p)
	d.DropClaims("a", p.Claims[0])
	left, _ := d.View().Pod("a")
	if !ledger.SameClaims(left.Claims, p.Claims[1:]) || !ledger.SameClaims(left.Acknowledged, p.Claims[1:]) {
		t.Errorf("claims %+v, acknowledged %+v", left.Claims, left.Acknowledged)
	}
}

// TestNothingAcknowledgedLasts: that a pod had no claims before a change is as good a fact
// as any other, also after a start.
func TestNothingAcknowledgedLasts(t *testing.T) {
	t.Parallel()
	j := ledgertest.NewJournal()
	l, _ := ledgertest.Open(t, journal.Options{Journal: j, Rules: rules()})
	p := ledgertest.With(ledgertest.Pod("a", "main"), ledgertest.Exclusive("main", "1"))
	p.Acknowledged = []ledger.Claim{}
	if _, err := l.Update(t.Context(), func(d *ledger.Draft) error {
		d.PutPod(p)
		d.PutPod(ledgertest.Pod("b", "main"))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	l, _ = ledgertest.Open(t, journal.Options{Journal: j.Reopen(), Rules: rules()})
	a, _ := l.View().Pod("a")
	b, _ := l.View().Pod("b")
	if a.Acknowledged == nil || len(a.Acknowledged) > 0 || b.Acknowledged != nil {
		t.Errorf("acknowledged %#v and %#v", a.Acknowledged, b.Acknowledged)
	}
}
