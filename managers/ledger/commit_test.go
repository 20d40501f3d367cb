package ledger_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/fault"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/workload"
)

// forgetful is a journal that takes everything and keeps nothing.
type forgetful struct{}

func (forgetful) Load(context.Context) ([]ledger.Entry, error)         { return nil, nil }
func (forgetful) Commit(context.Context, uint64, []ledger.Entry) error { return nil }
func (forgetful) Close() error                                         { return nil }

// A commit looks at what a draft has changed, and finds it broken exactly where a
// look at everything does.
func TestCommitFindsFlaws(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l, _ := ledgertest.Open(t, ledger.Options{Journal: forgetful{}, Rules: checkRules(), Traces: 1})
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
			broken := slices.ContainsFunc(ledger.Check(d.View()), func(f ledger.Finding) bool { return f.Kind == ledger.Structural })
			_, err := l.Commit(context.Background(), d)
			if (err != nil) != broken || err != nil && fault.ClassOf(err) != fault.Internal {
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
				rapid.SampledFrom([]ledger.CPUUse{ledger.CPUExclusive, ledger.CPUPod, ledger.CPUPodExclusive, ledger.CPUPodShared}).Draw(t, "use")))
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
	for name, base := range map[string]*ledger.View{"alone": ledger.Empty(large(b).Rules()), "beside 500": large(b)} {
		b.Run(name, func(b *testing.B) {
			changes := 0
			l, _, err := ledger.Open(b.Context(), ledger.Options{
				Journal: forgetful{}, Rules: base.Rules(),
				OnCommit: func(old, new *ledger.View) { changes += len(ledger.Changes(old, new)) },
			})
			if err != nil {
				b.Fatal(err)
			}
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
