package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
)

// twins are two ledgers that get the same changes, to show that equal input
// makes equal bytes, on journals that fail and crash.
type twins struct {
	rules    ledger.Rules
	journals [2]*ledgertest.Journal
	ledgers  [2]*ledger.Ledger
}

func (w *twins) open(t *rapid.T) {
	for i := range w.ledgers {
		w.ledgers[i], _ = ledgertest.Open(t, journal.Options{Journal: w.journals[i], Rules: w.rules, Traces: 4})
	}
}

func (w *twins) view() *ledger.View { return w.ledgers[0].View() }

// commit makes one change to both and returns the error, which must be of the
// same class.
func (w *twins) commit(t *rapid.T, change func(d *ledger.Draft)) error {
	var errs [2]error
	for i, l := range w.ledgers {
		before := l.View()
		d := ledger.NewDraft(before)
		change(d)
		after, err := l.Commit(context.Background(), d)
		switch {
		case err != nil && (l.View() != before || after != nil):
			t.Fatalf("commit failed with %v and changed the view", err)
		case err == nil && d.Empty() && after != before:
			t.Fatalf("an empty draft made generation %d", after.Generation())
		case err == nil && !d.Empty() && after.Generation() != before.Generation()+1:
			t.Fatalf("generation %d after %d", after.Generation(), before.Generation())
		}
		errs[i] = err
	}
	if (errs[0] == nil) != (errs[1] == nil) || errs[0] != nil && errdefs.ClassOf(errs[0]) != errdefs.ClassOf(errs[1]) {
		t.Fatalf("twins differ: %v, %v", errs[0], errs[1])
	}
	return errs[0]
}

// After any sequence of admissions, failures, releases, bindings, changed rules
// and crashes the ledger holds what it should, twice alike.
func TestRandomHistories(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := &twins{rules: ledgertest.TwoNodes()}
		w.journals = [2]*ledgertest.Journal{ledgertest.NewJournal(), ledgertest.NewJournal()}
		w.open(t)
		n := 0
		uid := rapid.Custom(func(t *rapid.T) string { return fmt.Sprint("pod-", rapid.IntRange(0, 9).Draw(t, "n")) })
		disk := errors.New("disk full")
		t.Repeat(map[string]func(*rapid.T){
			"admit": func(t *rapid.T) {
				uid := uid.Draw(t, "uid")
				if _, ok := w.view().Pod(uid); ok {
					t.Skip("is there")
				}
				p := ledgertest.DrawPod(numbers(t), w.view(), uid)
				if err := w.commit(t, func(d *ledger.Draft) { q := *p; d.PutPod(&q) }); err != nil {
					t.Fatalf("admit: %v", err)
				}
			},
			"admit what is taken": func(t *rapid.T) {
				if w.view().ExclusiveCPUs().IsEmpty() {
					t.Skip("nothing is taken")
				}
				err := w.commit(t, func(d *ledger.Draft) {
					d.PutPod(ledgertest.With(ledgertest.Pod("thief", "c"), ledgertest.Exclusive("c", w.view().ExclusiveCPUs().String())))
				})
				if err == nil || errdefs.ClassOf(err) != errdefs.Internal {
					t.Fatalf("CPUs given twice: %v", err)
				}
			},
			"refuse": func(t *rapid.T) {
				n++
				if err := w.commit(t, func(d *ledger.Draft) {
					d.PutTrace(&ledger.Trace{AdmissionID: fmt.Sprint(n), Pod: "refused"})
				}); err != nil {
					t.Fatalf("refuse: %v", err)
				}
			},
			"drop a draft": func(t *rapid.T) {
				before := w.view()
				d := ledger.NewDraft(before)
				d.PutPod(ledgertest.DrawPod(numbers(t), before, "dropped"))
				d.RemovePod(uid.Draw(t, "uid"))
				d.View()
				if w.view() != before {
					t.Fatal("a draft that was dropped changed the ledger")
				}
			},
			"fail": func(t *rapid.T) {
				for _, j := range w.journals {
					j.FailNext(1, disk)
				}
				n++
				if err := w.commit(t, func(d *ledger.Draft) { d.PutLease(ledger.Lease{ID: fmt.Sprint(n)}) }); !errors.Is(err, disk) ||
					errdefs.ClassOf(err) != errdefs.Unavailable {
					t.Fatalf("commit to a full disk: %v", err)
				}
			},
			"crash": func(t *rapid.T) {
				before := w.view()
				lost := rapid.Bool().Draw(t, "in a commit")
				if lost {
					for _, j := range w.journals {
						j.LoseNext(1, disk)
					}
					n++
					if err := w.commit(t, func(d *ledger.Draft) { d.PutLease(ledger.Lease{ID: fmt.Sprint(n)}) }); !errors.Is(err, disk) {
						t.Fatalf("commit that is lost: %v", err)
					}
				}
				for i, j := range w.journals {
					w.journals[i] = j.Reopen()
				}
				w.open(t)
				if lost {
					if w.view().Generation() != before.Generation()+1 {
						t.Fatalf("generation %d after %d", w.view().Generation(), before.Generation())
					}
				} else {
					ledgertest.SameView(t, w.view(), before)
				}
			},
			"release": func(t *rapid.T) {
				uid := uid.Draw(t, "uid")
				if err := w.commit(t, func(d *ledger.Draft) { d.RemovePod(uid) }); err != nil {
					t.Fatalf("release: %v", err)
				}
				for b := range w.view().Bindings() {
					if b.Owner.Pod == uid {
						t.Fatalf("binding %+v outlives its pod", b)
					}
				}
			},
			"bind": func(t *rapid.T) {
				uid := uid.Draw(t, "uid")
				if _, ok := w.view().Pod(uid); !ok {
					t.Skip("is not there")
				}
				n++
				if err := w.commit(t, func(d *ledger.Draft) {
					d.Bind(ledger.Binding{ID: fmt.Sprint(n % 7), Owner: ledger.Owner{Pod: uid, Container: "main"}, Sequence: uint64(n)})
				}); err != nil {
					t.Fatalf("bind: %v", err)
				}
			},
			"more claims": func(t *rapid.T) {
				uid := uid.Draw(t, "uid")
				if err := w.commit(t, func(d *ledger.Draft) {
					c := ledgertest.Devices("main", "vendor.com/nic", uid)
					c.Owner.Pod = uid
					c.Devices.Response = []byte(fmt.Sprint(n))
					d.AddClaims(uid, c)
				}); err != nil {
					t.Fatalf("more claims: %v", err)
				}
			},
			"spare": func(t *rapid.T) {
				var pods []ledger.UnknownLivePod
				for _, uid := range rapid.SliceOfN(uid, 0, 4).Draw(t, "living") {
					pods = append(pods, ledger.UnknownLivePod{UID: uid})
				}
				before := w.view()
				if err := w.commit(t, func(d *ledger.Draft) {
					for u := range before.UnknownLivePods() {
						d.ForgetUnknownLive(u.UID)
					}
					d.PutUnknownLive(pods...)
				}); err != nil {
					t.Fatalf("spare: %v", err)
				}
				for s := range w.view().UnknownLivePods() {
					if _, known := before.Pod(s.UID); known || !slices.ContainsFunc(pods,
						func(p ledger.UnknownLivePod) bool { return p.UID == s.UID }) {
						t.Fatalf("pod %s counts as living of %v", s.UID, pods)
					}
				}
				for _, p := range pods {
					if _, known := before.Pod(p.UID); !known && !w.view().UnknownLive(p.UID) {
						t.Fatalf("pod %s does not count as living", p.UID)
					}
				}
			},
			"rules": func(t *rapid.T) {
				w.rules.ConfigDigest = fmt.Sprint(rapid.IntRange(0, 2).Draw(t, "digest"))
				for _, l := range w.ledgers {
					if _, err := l.SetRules(context.Background(), w.rules); err != nil {
						t.Fatalf("set rules: %v", err)
					}
				}
			},
			"": func(t *rapid.T) {
				ledgertest.Check(t, w.ledgers[0])
				v := w.view()
				if !v.SharedCPUs().Intersect(v.ExclusiveCPUs()).IsEmpty() || v.SharedCPUs().Union(v.ExclusiveCPUs()) != v.Machine().CPUs() {
					t.Fatalf("shared %s and exclusive %s are not all CPUs", v.SharedCPUs(), v.ExclusiveCPUs())
				}
				var exclusive cpuset.Set
				for c := range v.Claims() {
					if c.CPUs != nil {
						exclusive = exclusive.Union(c.CPUs.Set)
					}
				}
				if exclusive != v.ExclusiveCPUs() {
					t.Fatalf("claims hold %s, the view says %s", exclusive, v.ExclusiveCPUs())
				}
				ledgertest.SameView(t, w.ledgers[1].View(), v)
			},
		})
		a, err := w.journals[0].Load(context.Background())
		if err != nil {
			t.Fatalf("%v", err)
		}
		b, err := w.journals[1].Load(context.Background())
		if err != nil {
			t.Fatalf("%v", err)
		}
		if fmt.Sprintf("%q", a) != fmt.Sprintf("%q", b) {
			t.Fatalf("equal input made\n%q\n%q", a, b)
		}
	})
}

// numbers draws for ledgertest.DrawPod.
func numbers(t *rapid.T) func(most int, what string) int {
	return func(most int, what string) int { return rapid.IntRange(0, most).Draw(t, what) }
}
