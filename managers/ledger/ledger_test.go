package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
)

func rules() ledger.Rules {
	return ledger.Rules{Machine: machinetest.Build("2s1n4c2t"), ConfigDigest: "one"}
}

func TestCommit(t *testing.T) {
	t.Parallel()
	var told []uint64
	j := ledgertest.NewJournal()
	l, _ := ledgertest.Open(t, journal.Options{Journal: j, Rules: rules()})
	for range 2 {
		l.Follow(func(old, next *ledger.View) { told = append(told, old.Generation(), next.Generation()) })
	}
	first := ledger.NewDraft(l.View())
	first.PutPod(ledgertest.With(ledgertest.Pod("a", "c"), ledgertest.Exclusive("c", "1-2")))
	if l.View().NumPods() != 0 || first.View().NumPods() != 1 {
		t.Fatal("a draft shows in the ledger, or not in its own view")
	}
	v, err := l.Commit(t.Context(), first)
	if err != nil || v.Generation() != 1 || v != l.View() {
		t.Fatalf("commit: generation %d, %v", v.Generation(), err)
	}
	if got := v.SharedCPUs().String(); got != "0,3-15" {
		t.Errorf("shared CPUs %s", got)
	}
	if v, err := l.Commit(t.Context(), first); v != nil || !errors.Is(err, ledger.ErrStale) || errdefs.ClassOf(err) != errdefs.Conflict {
		t.Errorf("second commit of one draft: %v, %v", v, err)
	}
	if v, err := l.Commit(t.Context(), ledger.NewDraft(v)); err != nil || v.Generation() != 1 || j.Commits() != 1 {
		t.Errorf("empty draft: generation %d after %d commits, %v", v.Generation(), j.Commits(), err)
	}
	if !slices.Equal(told, []uint64{0, 1, 0, 1}) {
		t.Errorf("two followers were told %v", told)
	}
}

// A journal that fails leaves the ledger as it was; one that loses a write takes
// no more commits until it is opened again, and then has the old or the new
// state whole.
func TestJournalFails(t *testing.T) {
	t.Parallel()
	j := ledgertest.NewJournal()
	l, _ := ledgertest.Open(t, journal.Options{Journal: j, Rules: rules()})
	disk := errors.New("disk full")
	put := func(uid string) error {
		_, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(ledgertest.Pod(uid, "c")); return nil })
		return err
	}
	j.FailNext(1, disk)
	before := l.View()
	err := put("a")
	if code, _ := errdefs.CodeOf(err, errdefs.Unavailable); errdefs.ClassOf(err) != errdefs.Unavailable || !errors.Is(err, disk) ||
		code != "LEDGER_UNAVAILABLE" {
		t.Errorf("failed commit: %v", err)
	}
	if l.View() != before {
		t.Error("the failed commit shows")
	}
	if err := put("b"); err != nil {
		t.Errorf("commit after a failed one: %v", err)
	}
	j.LoseNext(1, disk)
	for _, uid := range []string{"c", "d"} {
		if err := put(uid); errdefs.ClassOf(err) != errdefs.Unavailable || !errors.Is(err, disk) {
			t.Errorf("commit of %s: %v", uid, err)
		}
	}
	if l.View().NumPods() != 1 {
		t.Errorf("%d pods", l.View().NumPods())
	}
	again, _ := ledgertest.Open(t, journal.Options{Journal: j.Reopen(), Rules: rules()})
	if again.View().Generation() != 2 || again.View().NumPods() != 2 {
		t.Errorf("after the restart: generation %d, %d pods", again.View().Generation(), again.View().NumPods())
	}
}

// A draft that would break an invariant is refused by name.
func TestCommitRefusesStructural(t *testing.T) {
	t.Parallel()
	l := ledgertest.New(t, rules())
	put := func(uid, cpus string) error {
		_, err := l.Update(t.Context(), func(d *ledger.Draft) error {
			d.PutPod(ledgertest.With(ledgertest.Pod(uid, "c"), ledgertest.Exclusive("c", cpus)))
			return nil
		})
		return err
	}
	if err := put("a", "1-2"); err != nil {
		t.Fatal(err)
	}
	err := put("b", "2-3")
	if errdefs.ClassOf(err) != errdefs.Internal || !strings.Contains(fmt.Sprint(err), "CPUs 2 belong to pod a and to pod b") {
		t.Errorf("overlapping commit: %v", err)
	}
	if l.View().Generation() != 1 {
		t.Errorf("generation %d", l.View().Generation())
	}
}

func TestUpdate(t *testing.T) {
	t.Parallel()
	l := ledgertest.New(t, rules())
	own := errors.New("own")
	if _, err := l.Update(t.Context(), func(*ledger.Draft) error { return own }); !errors.Is(err, own) {
		t.Errorf("error of the change: %v", err)
	}
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for j := range 10 {
				if _, err := l.Update(t.Context(), func(d *ledger.Draft) error {
					d.PutPod(ledgertest.Pod(fmt.Sprintf("%d-%d", i, j), "c"))
					return nil
				}); err != nil {
					t.Errorf("update: %v", err)
				}
			}
		})
	}
	group.Wait()
	if v := l.View(); v.Generation() != 80 || v.NumPods() != 80 {
		t.Errorf("generation %d, %d pods", v.Generation(), v.NumPods())
	}
	_, err := l.Update(t.Context(), func(d *ledger.Draft) error {
		d.RemovePod("0-0")
		_, err := l.Update(t.Context(), func(d *ledger.Draft) error {
			d.PutLease(ledger.Lease{ID: fmt.Sprint(l.View().Generation())})
			return nil
		})
		return err
	})
	if errdefs.ClassOf(err) != errdefs.Conflict || !errors.Is(err, ledger.ErrStale) {
		t.Errorf("an update that overtakes itself: %v", err)
	}
}

// Traces: the newest N stay, and those of the pods that are here; so after a
// restart.
func TestTraces(t *testing.T) {
	t.Parallel()
	j := ledgertest.NewJournal()
	o := journal.Options{Journal: j, Rules: rules(), Traces: 3}
	l, _ := ledgertest.Open(t, o)
	update := func(change func(d *ledger.Draft)) {
		t.Helper()
		if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { change(d); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	p := ledgertest.Pod("a", "c")
	p.Trace = &ledger.Trace{AdmissionID: "first", Pod: "a", Admitted: true}
	update(func(d *ledger.Draft) { d.PutPod(p); d.PutTrace(p.Trace) })
	refuse := func(n int) {
		update(func(d *ledger.Draft) {
			d.PutTrace(&ledger.Trace{AdmissionID: fmt.Sprint("refused-", n), Pod: "b", Reason: fmt.Sprint(n)})
		})
	}
	for n := range 5 {
		refuse(n)
	}
	update(func(d *ledger.Draft) {
		d.AddClaims("a", ledgertest.With(ledgertest.Pod("a"), ledgertest.Exclusive("c", "1")).Claims...)
	})
	want := func(l *ledger.Ledger, ids ...string) {
		t.Helper()
		for _, id := range []string{"first", "refused-0", "refused-1", "refused-2", "refused-3", "refused-4", "refused-5"} {
			if got, ok := l.View().Trace(id); ok != slices.Contains(ids, id) || ok && got.AdmissionID != id {
				t.Errorf("trace %s is there: %t", id, ok)
			}
		}
	}
	want(l, "first", "refused-2", "refused-3", "refused-4")
	if got, ok := l.View().TraceOfPod("b"); !ok || got.Reason != "4" {
		t.Errorf("newest trace of b: %+v", got)
	}
	o.Journal = j.Reopen()
	l, _ = ledgertest.Open(t, o)
	want(l, "first", "refused-2", "refused-3", "refused-4")
	if got, ok := l.View().Pod("a"); !ok || got.Trace == nil || got.Trace.AdmissionID != "first" {
		t.Errorf("pod a: %+v", got)
	}
	refuse(5)
	update(func(d *ledger.Draft) { d.RemovePod("a") })
	want(l, "refused-3", "refused-4", "refused-5")
}

// TestTracesAreRemovedTogether: the newest traces stay, and few of the commits that add one remove others.
func TestTracesAreRemovedTogether(t *testing.T) {
	t.Parallel()
	const limit, commits = 32, 200
	l, _ := ledgertest.Open(t, journal.Options{Journal: ledgertest.NewJournal(), Rules: rules(), Traces: limit})
	removed, before := 0, 0
	for n := range commits {
		if _, err := l.Update(t.Context(), func(d *ledger.Draft) error {
			d.PutTrace(&ledger.Trace{AdmissionID: fmt.Sprint(n), Pod: "a"})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		kept := 0
		for range l.View().Traces() {
			kept++
		}
		if kept < min(n+1, limit) || kept > limit+limit/16 {
			t.Fatalf("%d of %d traces are kept, want the newest %d", kept, n+1, limit)
		}
		if kept <= before {
			removed++
		}
		before = kept
	}
	if most := commits / (limit / 16); removed == 0 || removed > most {
		t.Errorf("%d of %d commits removed traces, want at most %d", removed, commits, most)
	}
}

// TestTraceBytes: large traces are dropped earlier than by their number, except the newest
// and those of the pods that are here; also after a restart.
func TestTraceBytes(t *testing.T) {
	t.Parallel()
	j := ledgertest.NewJournal()
	o := journal.Options{Journal: j, Rules: rules(), Traces: 10, TraceBytes: 4000}
	l, _ := ledgertest.Open(t, o)
	explain := func(id string, bytes int) *ledger.Trace {
		return &ledger.Trace{AdmissionID: id, Pod: "of-" + id, Steps: []ledger.Step{{Text: strings.Repeat("x", bytes)}}}
	}
	put := func(change func(d *ledger.Draft)) {
		t.Helper()
		if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { change(d); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	refuse := func(id string, bytes int) { put(func(d *ledger.Draft) { d.PutTrace(explain(id, bytes)) }) }
	want := func(want string) {
		t.Helper()
		var have []string
		for _, id := range strings.Split("a b c d e f g h", " ") {
			if _, ok := l.View().Trace(id); ok {
				have = append(have, id)
			}
		}
		if got := strings.Join(have, " "); got != want {
			t.Errorf("traces %q, want %q", got, want)
		}
	}
	put(func(d *ledger.Draft) {
		p := ledgertest.Pod("of-a", "c")
		p.Trace = explain("a", 1500)
		d.PutPod(p)
	})
	refuse("b", 1500)
	refuse("c", 1500)
	want("a b c") // what a trace weighs is known once it is stored
	refuse("d", 100)
	want("a b c d") // 1500 and 1500 fit, the pod's own stays
	refuse("e", 1500)
	refuse("f", 100)
	want("a c d e f")
	l, _ = ledgertest.Open(t, journal.Options{Journal: j.Reopen(), Rules: o.Rules, Traces: o.Traces, TraceBytes: o.TraceBytes})
	want("a c d e f")
	refuse("g", 9000)
	refuse("h", 100)
	want("a h")
	put(func(d *ledger.Draft) { d.RemovePod("of-a") })
	want("a h") // there is room
	refuse("b", 2500)
	refuse("c", 10)
	want("b c h")
}

// The removal of something unknown is no change.
func TestDraftOfNothing(t *testing.T) {
	t.Parallel()
	l := ledgertest.New(t, rules())
	d := ledger.NewDraft(l.View())
	d.RemovePod("a")
	d.Unbind("a")
	d.ForgetResource("a")
	d.DropLease("a")
	d.DropExternalProvider("a")
	d.AddClaims("a", ledgertest.Exclusive("c", "1"))
	if !d.Empty() || d.View() != l.View() {
		t.Error("forgetting what is not there changes something")
	}
	d.Bind(ledger.Binding{ID: "x"})
	d.Unbind("x")
	if !d.Empty() {
		t.Error("a binding that came and went changes something")
	}
}

// A draft on a draft's view sees both, and the first one's view stays.
func TestDraftOnDraft(t *testing.T) {
	t.Parallel()
	l := ledgertest.New(t, rules())
	if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(ledgertest.Pod("z")); return nil }); err != nil {
		t.Fatal(err)
	}
	first := ledger.NewDraft(l.View())
	first.PutPod(ledgertest.With(ledgertest.Pod("a", "c"), ledgertest.Exclusive("c", "1")))
	first.PutPod(ledgertest.With(ledgertest.Pod("b", "c"), ledgertest.Exclusive("c", "2")))
	view := first.View()
	second := ledger.NewDraft(view)
	second.RemovePod("a")
	second.RemovePod("z")
	second.PutPod(ledgertest.With(ledgertest.Pod("b", "c"), ledgertest.Exclusive("c", "2")))
	second.PutPod(ledgertest.With(ledgertest.Pod("c", "c"), ledgertest.Exclusive("c", "3")))
	if got := second.View().ExclusiveCPUs().String(); got != "2-3" || second.View().NumPods() != 2 {
		t.Errorf("exclusive %s, %d pods", got, second.View().NumPods())
	}
	first.RemovePod("b")
	if got := view.ExclusiveCPUs().String(); got != "1-2" || view.NumPods() != 3 {
		t.Errorf("the first view became: exclusive %s, %d pods", got, view.NumPods())
	}
	if _, err := l.Commit(t.Context(), second); !errors.Is(err, ledger.ErrStale) {
		t.Errorf("commit of a draft on a draft: %v", err)
	}
}

// recorder notes what is written.
type recorder struct {
	*ledgertest.Journal
	keys []string
}

func (r *recorder) Commit(ctx context.Context, gen uint64, batch []journal.Entry) error {
	r.keys = nil
	for _, e := range batch {
		sign := "+"
		if e.Value == nil {
			sign = "-"
		}
		r.keys = append(r.keys, sign+e.Bucket+"/"+e.Key)
	}
	return r.Journal.Commit(ctx, gen, batch)
}

// A commit writes what it changes and nothing else.
func TestBatch(t *testing.T) {
	t.Parallel()
	r := &recorder{Journal: ledgertest.NewJournal()}
	l, _ := ledgertest.Open(t, journal.Options{Journal: r, Rules: rules(), Traces: 1})
	for _, c := range []struct {
		change func(d *ledger.Draft)
		want   []string
	}{
		{func(d *ledger.Draft) {
			p := ledgertest.With(ledgertest.Pod("a", "c"), ledgertest.Exclusive("c", "1"), ledgertest.Devices("c", "vendor.com/gpu", "1"))
			p.Trace = &ledger.Trace{AdmissionID: "1", Pod: "a"}
			d.PutPod(p)
		}, []string{"+meta/schema", "+meta/machine", "+meta/topology", "+meta/config", "+meta/reservation", "+meta/generation", "+pods/a",
			"+claims/a/c/cpu", "+claims/a/c/vendor.com/gpu", "+traces/00000000000000000000"}},
		{func(d *ledger.Draft) {
			p := ledgertest.With(ledgertest.Pod("a"), ledgertest.Exclusive("c", "1-2"), ledgertest.Devices("c", "vendor.com/gpu", "1"))
			d.AddClaims("a", p.Claims...)
		}, []string{"+meta/generation", "+pods/a", "+claims/a/c/cpu"}},
		{func(d *ledger.Draft) {
			d.Bind(ledger.Binding{ID: "x", Owner: ledger.Owner{Pod: "a", Container: "c"}})
			d.PutResource(ledger.SeenResource{Name: "vendor.com/gpu"})
			d.PutLease(ledger.Lease{ID: "l"})
			d.PutExternalProvider(ledger.ExternalProvider{Name: "nic"})
		}, []string{"+meta/generation", "+containers/x", "+resources/vendor.com/gpu", "+leases/l", "+external-providers/nic"}},
		{func(d *ledger.Draft) { d.PutTrace(&ledger.Trace{AdmissionID: "2", Pod: "b"}) },
			[]string{"+meta/generation", "+traces/00000000000000000001"}},
		{func(d *ledger.Draft) {
			d.RemovePod("a")
			d.ForgetResource("vendor.com/gpu")
			d.DropLease("l")
			d.DropExternalProvider("nic")
		},
			[]string{"+meta/generation", "-pods/a", "-claims/a/c/cpu", "-claims/a/c/vendor.com/gpu", "-containers/x",
				"-resources/vendor.com/gpu", "-leases/l", "-external-providers/nic", "-traces/00000000000000000000"}},
	} {
		d := ledger.NewDraft(l.View())
		c.change(d)
		if _, err := l.Commit(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(r.keys, c.want) {
			t.Errorf("wrote %q, want %q", r.keys, c.want)
		}
	}
}

// idling is a journal as slow as a disk, so that all other commits wait for it.
type idling struct{ *ledgertest.Journal }

func (j idling) Commit(ctx context.Context, gen uint64, batch []journal.Entry) error {
	for begin := time.Now(); time.Since(begin) < 2*time.Millisecond; {
		runtime.Gosched()
	}
	return j.Journal.Commit(ctx, gen, batch)
}

// TestManyUpdatesAtOnce: however many come at once, as when a node starts all of
// its containers, none fails.
func TestManyUpdatesAtOnce(t *testing.T) {
	t.Parallel()
	l, _ := ledgertest.Open(t, journal.Options{Journal: idling{ledgertest.NewJournal()}, Rules: rules()})
	const many = 250
	var group sync.WaitGroup
	for i := range many {
		group.Go(func() {
			if _, err := l.Update(t.Context(), func(d *ledger.Draft) error {
				d.PutResource(ledger.SeenResource{Name: fmt.Sprint(i)})
				return nil
			}); err != nil {
				t.Errorf("update: %v", err)
			}
		})
	}
	group.Wait()
	if got := l.View().Generation(); got != many {
		t.Errorf("generation %d", got)
	}
}

// TestSameFacts: views differ in what decisions rest on if pods, rules or certainty do.
func TestSameFacts(t *testing.T) {
	t.Parallel()
	other := rules()
	other.ConfigDigest = "two"
	for name, c := range map[string]struct {
		meanwhile func(l *ledger.Ledger) error
		other     bool
	}{
		"a container": {func(l *ledger.Ledger) error {
			_, err := l.Update(t.Context(), func(d *ledger.Draft) error {
				d.Bind(ledger.Binding{ID: "1", Owner: ledger.Owner{Pod: "old", Container: "c"}})
				d.PutResource(ledger.SeenResource{Name: "example.com/r"})
				d.PutTrace(&ledger.Trace{AdmissionID: "refused"})
				return nil
			})
			return err
		}, false},
		"a pod": {func(l *ledger.Ledger) error {
			_, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(ledgertest.Pod("b", "c")); return nil })
			return err
		}, true},
		"a removal": {func(l *ledger.Ledger) error {
			_, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.RemovePod("old"); return nil })
			return err
		}, true},
		"uncertain": {func(l *ledger.Ledger) error {
			_, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.SetUncertain("lost"); return nil })
			return err
		}, true},
		"rules": {func(l *ledger.Ledger) error { _, err := l.SetRules(t.Context(), other); return err }, true},
	} {
		l := ledgertest.New(t, rules())
		if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(ledgertest.Pod("old", "c")); return nil }); err != nil {
			t.Fatal(err)
		}
		before := l.View()
		if err := c.meanwhile(l); err != nil {
			t.Fatal(err)
		}
		if same := l.View().SameFacts(before); same == c.other || !before.SameFacts(before) {
			t.Errorf("%s: the same facts: %v", name, same)
		}
	}
}

// slowJournal writes when the test releases it.
type slowJournal struct {
	journal.Journal
	begun, write chan struct{}
}

func (j slowJournal) Commit(ctx context.Context, generation uint64, batch []journal.Entry) error {
	close(j.begun)
	<-j.write
	return j.Journal.Commit(ctx, generation, batch)
}

// TestAwaitCommits: it waits for a commit under way, and gives the view after it.
func TestAwaitCommits(t *testing.T) {
	t.Parallel()
	j := slowJournal{ledgertest.NewJournal(), make(chan struct{}), make(chan struct{})}
	l, _ := ledgertest.Open(t, journal.Options{Journal: j, Rules: rules()})
	before := l.AwaitCommits()
	if before != l.View() {
		t.Error("at rest it is not the current view")
	}
	ended := make(chan error, 1)
	go func() {
		_, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(ledgertest.Pod("a", "c")); return nil })
		ended <- err
	}()
	<-j.begun
	awaited := make(chan *ledger.View, 1)
	go func() { awaited <- l.AwaitCommits() }()
	runtime.Gosched()
	select {
	case <-awaited:
		t.Error("it did not wait for the commit")
		awaited <- l.View()
	default:
	}
	close(j.write)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if v := <-awaited; v == before || v != l.View() {
		t.Error("it is not the view after the commit")
	}
}
