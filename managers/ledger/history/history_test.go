package history_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/workload"
)

func rules() ledger.Rules {
	return ledger.Rules{Machine: machinetest.Build("2s1n4c2t"), ConfigDigest: "one"}
}

// ticking is a clock that goes on by a second with each reading.
type ticking struct{ time time.Time }

func (c *ticking) now() time.Time {
	c.time = c.time.Add(time.Second)
	return c.time
}

func newClock() *ticking { return &ticking{time.Date(2026, 11, 20, 3, 0, 0, 0, time.UTC)} }

// recording opens a ledger with a history.
func recording(t ledgertest.T, j journal.Journal, clock *ticking, limits history.Limits) history.Ledger {
	return ledgertest.OpenRecording(t, journal.Options{Journal: j, Rules: rules(), NewEpochID: func() ledger.EpochID { return 7 }}, limits,
		clock.now)
}

var (
	enough = history.Limits{Entries: 1000}
	// alone has each entry in a block of its own.
	alone = history.Limits{Entries: 16}
)

// entries returns the history of a ledger, the oldest first.
func entries(t ledgertest.T, l history.Ledger) (all []*history.Entry) {
	t.Helper()
	if err := l.Entries(context.Background(), 0, func(e *history.Entry, _ error) bool {
		all = append(all, e)
		return true
	}); err != nil {
		t.Fatalf("read the history: %v", err)
	}
	slices.Reverse(all)
	return all
}

// state is what a view of the past has to have.
func state(t ledgertest.T, v *ledger.View) string {
	t.Helper()
	var out strings.Builder
	put := func(what string, value any) {
		text, err := json.Marshal(value)
		if err != nil {
			t.Fatalf("%v", err)
		}
		fmt.Fprintf(&out, "%s %s\n", what, text)
	}
	for p := range v.Pods() {
		put("pod", p)
		put("claims", p.Claims)
	}
	for b := range v.Bindings() {
		put("binding "+b.ID, b)
	}
	for u := range v.UnknownLivePods() {
		put("unknown "+u.UID, u)
	}
	put("exclusive", v.ExclusiveCPUs())
	put("shared", v.SharedCPUs())
	put("override", v.Override())
	return out.String()
}

// TestRewind makes changes of every kind, and then computes each earlier state, by revision
// and by time, also after a restart.
func TestRewind(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		j, clock := ledgertest.NewJournal(), newClock()
		r := rules()
		r.ReservedCPUs = cpuset.Of(15)
		l := ledgertest.OpenRecording(t, journal.Options{Journal: j, Rules: r}, enough, clock.now)
		type past struct {
			state    string
			revision uint64
			time     time.Time
		}
		var pasts []past
		note := func() { pasts = append(pasts, past{state(t, l.View()), l.View().Revision(), clock.time}) }
		update := func(change func(d *ledger.Draft)) {
			if _, err := l.Update(context.Background(), func(d *ledger.Draft) error { change(d); return nil }); err != nil {
				t.Fatalf("%v", err)
			}
			note()
		}
		update(func(d *ledger.Draft) { d.PutPod(ledgertest.Pod("first", "c")) })
		uids := []string{"a", "b", "c"}
		for range rapid.IntRange(1, 20).Draw(t, "changes") {
			uid := rapid.SampledFrom(uids).Draw(t, "uid")
			_, known := l.View().Pod(uid)
			switch rapid.IntRange(0, 7).Draw(t, "kind") {
			case 0, 1, 2:
				if !known {
					p := ledgertest.DrawPod(numbers(t), l.View(), uid)
					update(func(d *ledger.Draft) { d.PutPod(p) })
				}
			case 3:
				if known {
					update(func(d *ledger.Draft) { d.RemovePod(uid) })
				}
			case 4:
				if known {
					id := rapid.SampledFrom([]string{"x", "y"}).Draw(t, "id") + uid
					update(func(d *ledger.Draft) {
						d.Bind(ledger.Binding{ID: id, Owner: ledger.Owner{Pod: uid, Container: "main"}, Sequence: uint64(len(pasts))})
					})
				}
			case 5:
				update(func(d *ledger.Draft) { d.Unbind("x" + uid) })
			case 6:
				r := l.View().Rules()
				r.StrictReservation = !r.StrictReservation
				if _, err := l.SetOverride(context.Background(), r, &ledger.Override{Settings: json.RawMessage(`{"n":1}`)}); err != nil {
					t.Fatalf("%v", err)
				}
				note()
			case 7:
				j = j.Reopen()
				restarted := l.View()
				l = ledgertest.OpenRecording(t, journal.Options{
					Journal: j, Rules: restarted.Rules(),
					Restore: func(ledger.Override) (ledger.Rules, bool) { return restarted.Rules(), true },
				}, enough, clock.now)
			}
		}
		for i, p := range pasts {
			for _, m := range []history.Moment{{Revision: p.revision}, {Time: p.time}} {
				if m.Revision == 0 && i+1 < len(pasts) && pasts[i+1].time.Equal(p.time) {
					continue
				}
				v, err := l.At(context.Background(), m)
				if err != nil {
					t.Fatalf("%s: %v", m, err)
				}
				if got := state(t, v); got != p.state {
					t.Fatalf("%s:\n got %s\nwant %s", m, got, p.state)
				}
			}
		}
	})
}

// A moment before the oldest entry names the oldest time; a damaged or missing entry ends
// what is known, and concerns nothing else.
func TestRewindEnds(t *testing.T) {
	t.Parallel()
	begin := func(t *testing.T) (*ledgertest.Journal, *ticking, []*history.Entry) {
		j, clock := ledgertest.NewJournal(), newClock()
		l := recording(t, j, clock, alone)
		for _, uid := range []string{"a", "b", "c", "d"} {
			put(t, l, uid)
		}
		return j, clock, entries(t, l)
	}
	const third = "00000000000000000003"
	for name, c := range map[string]struct {
		spoil  func(j *ledgertest.Journal)
		oldest int // of the entries whose state is known
		want   string
	}{
		"whole": {func(*ledgertest.Journal) {}, 0, "the oldest one is of 2026-11-20T03:00:"},
		"damaged": {func(j *ledgertest.Journal) {
			j.Alter(journal.BucketHistory, third, func(v []byte) []byte { v[len(v)/2] ^= 1; return v })
		}, 3, "the entries of the history from 3 on are damaged: checksum is"},
		"missing": {func(j *ledgertest.Journal) {
			j.Alter(journal.BucketHistory, third, func([]byte) []byte { return nil })
		}, 3, "entry 3 of the history is missing"},
		"no number": {func(j *ledgertest.Journal) {
			j.Alter(journal.BucketHistory, "x", func([]byte) []byte { return []byte("y") })
		}, 0, "the oldest one is of"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j, clock, all := begin(t)
			c.spoil(j)
			l := recording(t, j.Reopen(), clock, alone)
			if n := l.View().NumPods(); n != 4 {
				t.Errorf("%d pods, want 4", n)
			}
			put(t, l, "e")
			for i, e := range all[c.oldest:] {
				if v, err := l.At(t.Context(), history.Moment{Time: e.Time}); err != nil || v.NumPods() != i+max(0, c.oldest) {
					t.Errorf("at entry %d: %v", e.Number, err)
				}
			}
			_, err := l.At(t.Context(), history.Moment{Time: all[c.oldest].Time.Add(-1)})
			if errdefs.ClassOf(err) != errdefs.NotFound || !strings.Contains(err.Error(), c.want) ||
				!strings.Contains(err.Error(), all[c.oldest].Time.Format(time.RFC3339Nano)) {
				t.Errorf("before the oldest: %v, want %q and %s", err, c.want, all[c.oldest].Time)
			}
		})
	}
}

func put(t *testing.T, l history.Ledger, uid string) {
	t.Helper()
	if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(ledgertest.Pod(uid, "c")); return nil }); err != nil {
		t.Fatal(err)
	}
}

// The history never exceeds its limits, by number and by size, and keeps the newest.
func TestHistoryLimits(t *testing.T) {
	t.Parallel()
	for _, limits := range []history.Limits{{Entries: 1}, {Entries: 7}, {Entries: 100}, {Entries: 1000, Bytes: 4000},
		{Entries: 1000, Bytes: 1}} {
		j := ledgertest.NewJournal()
		l := recording(t, j, newClock(), limits)
		for i := range 150 {
			put(t, l, fmt.Sprintf("pod-%d", i))
			count, bytes := 0, 0
			if err := j.HistorySizes(t.Context(), func(_ string, n int) { count++; bytes += n }); err != nil {
				t.Fatal(err)
			}
			// An entry is in the file of its commit in any case.
			if count > max(limits.Entries, 2) || limits.Bytes > 0 && bytes > max(limits.Bytes, 2000) {
				t.Fatalf("%+v: %d entries, %d bytes", limits, count, bytes)
			}
			if i == 75 { // what is kept is known after a restart
				j = j.Reopen()
				l = recording(t, j, newClock(), limits)
			}
		}
		all := entries(t, l)
		if last := all[len(all)-1]; last.Pod != "pod-149" {
			t.Errorf("%+v: the last entry is of %s", limits, last.Pod)
		}
		if _, err := l.At(t.Context(), history.Moment{Revision: all[0].Revision - 1}); errdefs.ClassOf(err) != errdefs.NotFound {
			t.Errorf("%+v: before the oldest entry: %v", limits, err)
		}
	}
}

// Refusals wait for a commit and cost none; of a user ten in a second are recorded.
func TestRefusals(t *testing.T) {
	t.Parallel()
	j := ledgertest.NewJournal()
	now := time.Date(2026, 11, 20, 3, 0, 0, 0, time.UTC)
	l := ledgertest.OpenRecording(t, journal.Options{Journal: j, Rules: rules()}, enough, func() time.Time { return now })
	refuse := func(uid uint32, times int) {
		ctx := history.WithCall(t.Context(), &history.Call{Name: "Admit", Time: now,
			Caller: &history.Caller{UID: uid, PID: 4, Name: "agent"}, Request: &history.Request{Pod: &workload.Pod{UID: "r"}}})
		for range times {
			l.Refused(ctx, history.Refusal{Verdict: "rejected", Reason: "TopologyAffinityError", Message: strings.Repeat("m", 3000),
				Pod: ledgertest.Pod("r", "c"), View: l.View(), AdmissionID: "id"})
		}
	}
	refuse(5, 25)
	refuse(6, 1)
	if j.Commits() != 0 {
		t.Errorf("%d commits for refusals", j.Commits())
	}
	if all := entries(t, l); len(all) != 12 { // with the start
		t.Fatalf("%d entries before a commit", len(all))
	}
	now = now.Add(time.Second)
	refuse(5, 1)
	put(t, l, "a")
	all := entries(t, recording(t, j.Reopen(), newClock(), enough))
	if len(all) != 15 || l.Omitted() != 15 {
		t.Fatalf("%d entries, %d omitted", len(all), l.Omitted())
	}
	e := all[12]
	if e.Omitted != 15 || e.Verdict != "rejected" || e.Reason != "TopologyAffinityError" || e.AdmissionID != "id" || e.Caller.UID != 5 ||
		e.Name != "pod-r" || len(e.Message) != 1024 || e.Call != "Admit" || !strings.Contains(string(e.Request), `"uid":"r"`) {
		t.Errorf("entry %+v", e)
	}
	if all[0].Call != "Start" || all[13].Pod != "a" || all[13].Number != 14 {
		t.Errorf("entries %+v, %+v", all[0], all[13])
	}
}

// A refusal has the revision of its decision, which changes have overtaken meanwhile: it is no
// state at that revision.
func TestOvertakenRefusal(t *testing.T) {
	t.Parallel()
	l := recording(t, ledgertest.NewJournal(), newClock(), enough)
	put(t, l, "a")
	old := l.View()
	put(t, l, "b")
	middle := l.View()
	put(t, l, "c")
	l.Refused(t.Context(), history.Refusal{Verdict: "rejected", Pod: ledgertest.Pod("r", "c"), View: old})
	put(t, l, "d")
	for _, v := range []*ledger.View{old, middle} {
		got, err := l.At(t.Context(), history.Moment{Revision: v.Revision()})
		if err != nil {
			t.Fatal(err)
		}
		if state(t, got) != state(t, v) {
			t.Errorf("at revision %d: %s, want %s", v.Revision(), state(t, got), state(t, v))
		}
	}
}

// Entries are in the order of their times also if the clock is set back, while berthd runs or
// before a start, whatever is damaged of the newest ones.
func TestClockSetBack(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 20, 3, 0, 0, 0, time.UTC)
	j := ledgertest.NewJournal()
	start := func() history.Ledger {
		l := ledgertest.OpenRecording(t, journal.Options{Journal: j, Rules: rules()}, alone, func() time.Time { return now })
		return l
	}
	l := start()
	for _, uid := range []string{"a", "b", "c"} {
		put(t, l, uid)
		now = now.Add(-time.Hour)
	}
	j = j.Reopen()
	l = start()
	put(t, l, "d")
	j = j.Reopen()
	if err := j.ReadHistory(t.Context(), "", func(e journal.Entry) bool {
		j.Alter(e.Bucket, e.Key, func([]byte) []byte { return []byte("{}") })
		return false
	}); err != nil {
		t.Fatal(err)
	}
	l = start()
	put(t, l, "e")
	var all []*history.Entry
	for _, e := range entries(t, l) {
		if !e.Time.IsZero() { // it is not damaged
			all = append(all, e)
		}
	}
	if len(all) != 7 || !slices.IsSortedFunc(all, func(a, b *history.Entry) int { return a.Time.Compare(b.Time) }) {
		t.Errorf("%d entries are not in the order of their times: %v", len(all), all)
	}
}

// After one start with a clock in the future, the corrected clock's times name states again, before and after
// another start.
func TestClockAhead(t *testing.T) {
	t.Parallel()
	j, clock := ledgertest.NewJournal(), newClock()
	right := clock.time
	l := recording(t, j, clock, enough)
	put(t, l, "before")
	clock.time = right.AddDate(10, 0, 0)
	put(t, l, "ahead")
	clock.time = right.Add(time.Hour)
	put(t, l, "after")
	clock.time = right.Add(24 * time.Hour)
	put(t, l, "later")
	for range 2 {
		for name, tt := range map[string]struct {
			after time.Duration
			pods  []string
		}{
			"before the correction": {30 * time.Minute, []string{"before"}},
			"after the correction":  {12 * time.Hour, []string{"before", "ahead", "after"}},
			"after the last change": {25 * time.Hour, []string{"before", "ahead", "after", "later"}},
		} {
			past, err := l.At(t.Context(), history.Moment{Time: right.Add(tt.after)})
			if err != nil {
				t.Fatal(err)
			}
			for _, uid := range []string{"before", "ahead", "after", "later"} {
				if _, ok := past.Pod(uid); ok != slices.Contains(tt.pods, uid) {
					t.Errorf("%s: the state has pod %s: %v", name, uid, ok)
				}
			}
		}
		l = recording(t, j.Reopen(), clock, enough)
	}
}

// The refusals of a second are those of the clock, and not of the entries' times, which stand still
// after the clock was set back.
func TestRefusalsAfterClockSetBack(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 20, 3, 0, 0, 0, time.UTC)
	l := ledgertest.OpenRecording(t, journal.Options{Journal: ledgertest.NewJournal(), Rules: rules()}, enough,
		func() time.Time { return now })
	refuse := func() { l.Refused(t.Context(), history.Refusal{Verdict: "rejected", View: l.View()}) }
	refuse()
	now = now.Add(-time.Hour)
	for range 60 {
		now = now.Add(time.Second)
		refuse()
	}
	if n := len(entries(t, l)); n != 62 || l.Omitted() != 0 { // with the start
		t.Errorf("%d entries, %d omitted", n, l.Omitted())
	}
}

// An entry of several pods is about none of them alone, and concerns each.
func TestEntryOfSeveralPods(t *testing.T) {
	t.Parallel()
	l := recording(t, ledgertest.NewJournal(), newClock(), enough)
	put(t, l, "a")
	put(t, l, "b")
	if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.RemovePod("a"); d.RemovePod("b"); return nil }); err != nil {
		t.Fatal(err)
	}
	all := entries(t, l)
	if e := all[len(all)-1]; e.Pod != "" || e.Name != "" || !e.Concerns("a") || !e.Concerns("b") || e.Concerns("c") {
		t.Errorf("entry %+v", e)
	}
}

// Each refusal is recorded or counted, also those that find no room. A user with large requests
// leaves room for others, and loses requests before it loses refusals.
func TestRefusalsAreCounted(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 20, 3, 0, 0, 0, time.UTC)
	l := ledgertest.OpenRecording(t, journal.Options{Journal: ledgertest.NewJournal(), Rules: rules()}, enough,
		func() time.Time { return now })
	refusals := map[uint32]int{}
	refuse := func(uid uint32, size, times int) {
		ctx := history.WithCall(t.Context(), &history.Call{Name: "Resize", Time: now, Caller: &history.Caller{UID: uid},
			Request: &history.Request{Owner: strings.Repeat("x", size)}})
		for range times {
			l.Refused(ctx, history.Refusal{Verdict: "rejected", View: l.View()})
			refusals[uid]++
		}
	}
	for range 40 {
		now = now.Add(time.Second)
		refuse(1, 60<<10, 12)
	}
	refuse(2, 60<<10, 4)
	put(t, l, "a")
	now = now.Add(time.Second)
	refuse(1, 0, 1)
	recorded, requests, omitted := map[uint32]int{}, map[uint32]int{}, 0
	for _, e := range entries(t, l) {
		if e.Verdict == "" {
			continue
		}
		recorded[e.Caller.UID]++
		if refusals[e.Caller.UID] -= 1 + int(e.Omitted); len(e.Request) > 0 {
			requests[e.Caller.UID]++
		} else if e.RequestBytes < 60<<10 {
			t.Errorf("entry %+v", e)
		}
		omitted += int(e.Omitted)
	}
	if refusals[1] != 0 || refusals[2] != 0 || omitted != int(l.Omitted()) {
		t.Errorf("%v are neither recorded nor counted, %d are counted in all, %d in entries", refusals, l.Omitted(), omitted)
	}
	if recorded[1] < 100 || recorded[2] != 4 || requests[1] < 8 || requests[2] != 4 {
		t.Errorf("recorded %v, with requests %v", recorded, requests)
	}
}

// What waits for a commit is bounded in bytes, too.
func TestHeldRefusalsAreBounded(t *testing.T) {
	t.Parallel()
	j := ledgertest.NewJournal()
	now := time.Date(2026, 11, 20, 3, 0, 0, 0, time.UTC)
	l := ledgertest.OpenRecording(t, journal.Options{Journal: j, Rules: rules()}, enough,
		func() time.Time { now = now.Add(time.Second); return now })
	large := &workload.Pod{UID: "r", PriorityClassName: strings.Repeat("p", 60<<10)}
	for range 200 {
		ctx := history.WithCall(t.Context(), &history.Call{Name: "Resize", Time: now, Request: &history.Request{Pod: large}})
		l.Refused(ctx, history.Refusal{Verdict: "rejected", View: l.View()})
	}
	put(t, l, "a")
	var size int
	for _, e := range entries(t, l) {
		size += len(e.Request)
	}
	if size > 1<<20 || l.Omitted() == 0 {
		t.Errorf("%d bytes waited for a commit, %d refusals are omitted", size, l.Omitted())
	}
}

// Nothing secret is in an entry: no annotations but those that berth uses, no answers of
// plugins and providers. A request that is too large is only counted.
func TestHistoryHasNoSecrets(t *testing.T) {
	t.Parallel()
	j := ledgertest.NewJournal()
	l := recording(t, j, newClock(), enough)
	p := ledgertest.With(ledgertest.Pod("a", "c"), ledgertest.Devices("c", "vendor.com/gpu", "g0"))
	p.Claims[0].Devices.Response = []byte("secret")
	opaque := p.Claims[0]
	opaque.Provider, opaque.Resource, opaque.Devices, opaque.Opaque = "nic", "nic", nil, []byte("secret")
	p.Claims = append(p.Claims, opaque)
	p.Pod.Annotations = map[string]string{"token": "secret", workload.MirrorAnnotation: "kept"}
	update := func(change func(d *ledger.Draft)) {
		if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { change(d); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	update(func(d *ledger.Draft) { d.PutPod(p) })
	update(func(d *ledger.Draft) { d.RemovePod("a") })
	kept := false
	if err := j.ReadHistory(t.Context(), "9", func(e journal.Entry) bool {
		if strings.Contains(string(e.Value), "secret") || strings.Contains(string(e.Value), "c2VjcmV0") {
			t.Errorf("%s", e.Value)
		}
		kept = kept || strings.Contains(string(e.Value), workload.MirrorAnnotation)
		return true
	}); err != nil || !kept {
		t.Errorf("%v; the annotation that berth uses is kept: %t", err, kept)
	}
	if c, _ := p.Claim("c", "vendor.com/gpu"); string(c.Devices.Response) != "secret" {
		t.Error("the ledger's own record has changed")
	}
	large := &history.Call{Name: "Admit", Request: &history.Request{Pod: &workload.Pod{Name: strings.Repeat("x", 70<<10)}}}
	if _, err := l.Update(history.WithCall(t.Context(), large),
		func(d *ledger.Draft) error { d.PutPod(ledgertest.Pod("b", "c")); return nil }); err != nil {
		t.Fatal(err)
	}
	all := entries(t, l)
	if e := all[len(all)-1]; e.Request != nil || e.RequestBytes < 70<<10 || e.Verdict != "admitted" {
		t.Errorf("entry %+v", e)
	}
}

// An entry and its change are written together or not at all. After an unknown outcome the
// journal says which; the numbers have no gap.
func TestHistoryIsInTheCommit(t *testing.T) {
	t.Parallel()
	for _, wrote := range []bool{false, true} {
		j := ledgertest.NewJournal()
		l := recording(t, j, newClock(), enough)
		put(t, l, "a")
		if wrote {
			j.LoseNext(1, errors.New("disk"))
		} else {
			j.FailNext(1, errors.New("disk"))
		}
		if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(ledgertest.Pod("b", "c")); return nil }); err == nil {
			t.Fatal("the commit did not fail")
		}
		l = recording(t, j.Reopen(), newClock(), enough)
		put(t, l, "c")
		var pods []string
		for i, e := range entries(t, l) {
			if e.Number != uint64(i+1) || e.Begins && i > 0 {
				t.Errorf("entry %d is %+v", i, e)
			}
			if e.Pod != "" {
				pods = append(pods, e.Pod)
			}
		}
		want := []string{"a", "c"}
		if wrote {
			want = []string{"a", "b", "c"}
		}
		if !slices.Equal(pods, want) {
			t.Errorf("entries of %q, want %q", pods, want)
		}
	}
}

// A change that is too large for one entry has several, from which the state before it is computed,
// also by a bundle. A change that is too large for the history ends it, and says so.
func TestLargeChange(t *testing.T) {
	t.Parallel()
	large := func(uid string, size int, set ...int) *ledger.Pod {
		p := ledgertest.Pod(uid, "c")
		p.Pod.Labels = map[string]string{"l": strings.Repeat("x", size)}
		for _, cpu := range set {
			p.Claims = append(p.Claims, ledger.Claim{
				Owner: ledger.Owner{Pod: uid, Container: "c"}, Provider: "cpu", Resource: "cpu",
				CPUs: &ledger.CPUs{Set: cpuset.Of(cpu), Use: ledger.CPUExclusive},
			})
		}
		return p
	}
	for name, row := range map[string]struct {
		size, bytes int
		wrong       string
	}{
		"several entries":         {100 << 10, 64 << 20, ""},
		"too large for the limit": {100 << 10, 4 << 20, "too large"},
		"a pod is too large":      {2 << 20, 64 << 20, "too large"},
	} {
		clock := newClock()
		l := recording(t, ledgertest.NewJournal(), clock, history.Limits{Entries: 1000, Bytes: row.bytes})
		update := func(change func(d *ledger.Draft)) {
			t.Helper()
			if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { change(d); return nil }); err != nil {
				t.Fatal(err)
			}
		}
		update(func(d *ledger.Draft) {
			d.PutPod(large("changed-1", row.size, 1))
			d.PutPod(large("changed-2", row.size, 2))
			for i := range 25 {
				d.PutPod(large(fmt.Sprint("removed-", i), row.size))
				d.Bind(ledger.Binding{ID: fmt.Sprint("id-", i), Owner: ledger.Owner{Pod: fmt.Sprint("removed-", i), Container: "c"}})
			}
			d.PutUnknownLive(ledger.UnknownLivePod{UID: "unknown", Since: clock.time})
		})
		before, revision := state(t, l.View()), l.View().Revision()
		call := &history.Call{Name: "SyncPods", Time: clock.time, Caller: &history.Caller{UID: 7}}
		if _, err := l.Update(history.WithCall(t.Context(), call), func(d *ledger.Draft) error {
			for i := range 25 {
				d.RemovePod(fmt.Sprint("removed-", i))
			}
			d.PutPod(large("changed-1", row.size, 2)) // they exchange their CPUs
			d.PutPod(large("changed-2", row.size, 1))
			d.PutPod(large("unknown", 1))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		parts := 0
		for _, e := range entries(t, l) {
			if e.Part && e.Call == "SyncPods" && e.Caller.UID == 7 && e.Revision == l.View().Revision() {
				parts++
			}
		}
		if (parts > 2) != (row.wrong == "") {
			t.Errorf("%s: the call has %d parts", name, parts)
		}
		if v, err := l.At(t.Context(), history.Moment{Revision: revision + 1}); err != nil || state(t, v) != state(t, l.View()) {
			t.Errorf("%s: after the call: %v", name, err)
		}
		v, err := l.At(t.Context(), history.Moment{Revision: revision})
		switch {
		case row.wrong != "":
			if errdefs.ClassOf(err) != errdefs.NotFound || !strings.Contains(err.Error(), row.wrong) {
				t.Errorf("%s: %v, want %q", name, err, row.wrong)
			}
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case state(t, v) != before:
			t.Errorf("%s: before the call there was another state", name)
		}
	}
}

// A snapshot has the rules of its start before the entry of the start is written. The state before
// the start has the earlier ones.
func TestRewindOverWaitingStart(t *testing.T) {
	t.Parallel()
	j, clock := ledgertest.NewJournal(), newClock()
	o := journal.Options{Journal: j, Rules: rules()}
	o.Rules.ConfigDigest = "old"
	l := ledgertest.OpenRecording(t, o, enough, clock.now)
	put(t, l, "a")
	put(t, l, "b")
	o.Journal = j.Reopen()
	o.Rules.ConfigDigest, o.Rules.ReservedCPUs = "new", cpuset.Of(0)
	l = ledgertest.OpenRecording(t, o, enough, clock.now)
	for _, written := range []bool{false, true} {
		if written {
			put(t, l, "c")
		}
		all := entries(t, l)
		start := slices.IndexFunc(all, func(e *history.Entry) bool { return e.Call == "Start" && e.Number > 1 })
		v, err := history.SnapshotOf(l.View()).View(o.Rules.Machine)
		if err != nil {
			t.Fatal(err)
		}
		rewinder := history.NewRewinder(v)
		for _, e := range slices.Backward(all[start-1:]) {
			rewinder.Next(e, nil)
		}
		if got := rewinder.View.Rules(); got.ConfigDigest != "old" || !got.ReservedCPUs.IsEmpty() || rewinder.Oldest.Pod != "b" ||
			rewinder.Why != "" {
			t.Errorf("written %v: before the start the rules are %+v, after entry %+v, %s", written, got, rewinder.Oldest, rewinder.Why)
		}
		for at, want := range map[time.Time]string{all[start].Time: "new", all[start].Time.Add(-time.Millisecond): "old"} {
			past, err := l.At(t.Context(), history.Moment{Time: at})
			if err != nil {
				t.Fatal(err)
			}
			if got := past.Rules().ConfigDigest; got != want {
				t.Errorf("written %v: at %s the configuration is %s, want %s", written, at, got, want)
			}
		}
	}
}

// Without entries in the configuration the first commit removes the stored ones. What happened
// meanwhile is not computed from what was kept before.
func TestHistoryInterrupted(t *testing.T) {
	t.Parallel()
	for name, limits := range map[string]history.Limits{"open block": enough, "closed blocks": alone} {
		j, clock := ledgertest.NewJournal(), newClock()
		l := recording(t, j, clock, limits)
		put(t, l, "a")
		put(t, l, "b")
		old := l.View().Revision()
		j = j.Reopen()
		l = recording(t, j, clock, history.Limits{})
		put(t, l, "c")
		put(t, l, "d")
		if _, err := l.At(t.Context(), history.Moment{Revision: old}); errdefs.ClassOf(err) != errdefs.NotFound {
			t.Errorf("%s: without a history: %v", name, err)
		}
		left := 0
		if err := j.ReadHistory(t.Context(), "", func(journal.Entry) bool { left++; return true }); err != nil || left > 0 {
			t.Errorf("%s: %d blocks are left, %v", name, left, err)
		}
		j = j.Reopen()
		l = recording(t, j, clock, limits)
		begin := l.View().Revision()
		put(t, l, "e")
		if _, err := l.At(t.Context(), history.Moment{Revision: old}); errdefs.ClassOf(err) != errdefs.NotFound {
			t.Errorf("%s: after a pause: %v", name, err)
		}
		if v, err := l.At(t.Context(), history.Moment{Revision: begin}); err != nil || v.NumPods() != 4 {
			t.Errorf("%s: after the start: %v", name, err)
		}
		if all := entries(t, l); len(all) != 2 {
			t.Errorf("%s: %d entries", name, len(all))
		}
	}
}

// A start on another machine: the state before it has the machine of that time, with its memory.
func TestRewindToAnotherMachine(t *testing.T) {
	t.Parallel()
	const smallShape = "2s1n4c2t"
	for name, other := range map[string]*machine.Topology{
		"other CPUs":      machinetest.Build("4s2n4c2t"),
		"other memory":    machinetest.Build(smallShape, machinetest.Memory(0, 8<<30)),
		"fewer CPUs":      machinetest.Build(smallShape, machinetest.Offline("3")),
		"the same":        machinetest.Build(smallShape),
		"a little memory": machinetest.Build(smallShape, machinetest.Memory(0, 1<<20)),
	} {
		j, clock := ledgertest.NewJournal(), newClock()
		l := recording(t, j, clock, enough)
		put(t, l, "a")
		old, was := clock.time, l.View().Machine()
		r := rules()
		r.Machine = other
		j = j.Reopen()
		l = ledgertest.OpenRecording(t, journal.Options{Journal: j, Rules: r}, enough, clock.now)
		past := func(when string) {
			t.Helper()
			v, err := l.At(t.Context(), history.Moment{Time: old})
			if err != nil {
				t.Errorf("%s, %s: %v", name, when, err)
			} else if c := machine.Compare(was, v.Machine()); !c.Empty() {
				t.Errorf("%s, %s: the machine of before differs: %s", name, when, c)
			}
		}
		past("before the first commit")
		put(t, l, "b")
		past("after it")
		// The machine of the first start is stored as the difference from that of the second one.
		j = j.Reopen()
		l = ledgertest.OpenRecording(t, journal.Options{Journal: j, Rules: rules()}, enough, clock.now)
		put(t, l, "c")
		past("after another start")
		if v, err := l.At(t.Context(), history.Moment{Revision: 2}); err != nil || v.NumPods() != 2 {
			t.Errorf("%s: revision 2: %v", name, err)
		}
	}
	l := recording(t, ledgertest.NewJournal(), newClock(), enough)
	put(t, l, "a")
	if _, err := l.At(t.Context(), history.Moment{Revision: l.View().Revision() + 1}); errdefs.ClassOf(err) != errdefs.Precondition {
		t.Errorf("a revision of the future: %v", err)
	}
}

// The machine of a migrated ledger is not known. If it was another one, neither is the state before.
func TestRewindToAnUnknownMachine(t *testing.T) {
	t.Parallel()
	j, clock := ledgertest.NewJournal(), newClock()
	l := recording(t, j, clock, enough)
	put(t, l, "a")
	old := clock.time
	j = j.Reopen()
	j.Alter(journal.BucketMeta, "topology", func([]byte) []byte { return nil })
	r := rules()
	r.Machine = machinetest.Build("4s2n4c2t")
	l = ledgertest.OpenRecording(t, journal.Options{Journal: j, Rules: r}, enough, clock.now)
	put(t, l, "b")
	if _, err := l.At(t.Context(), history.Moment{Time: old}); errdefs.ClassOf(err) != errdefs.NotFound ||
		!strings.Contains(err.Error(), "the machine was another one") {
		t.Errorf("%v", err)
	}
}

// Entries are stored in blocks: a commit writes the last one again, and one that is full is moved.
// What an entry has is the same after each.
func TestHistoryBlocks(t *testing.T) {
	t.Parallel()
	j, clock := ledgertest.NewJournal(), newClock()
	l := recording(t, j, clock, enough)
	var written []string
	text := func(e *history.Entry) string {
		t.Helper()
		text, err := history.Text(e)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(e.Number, string(text))
	}
	for i := range 60 {
		call := &history.Call{Name: "Admit", Time: clock.time, Caller: &history.Caller{UID: 1},
			Request: &history.Request{Pod: &workload.Pod{UID: "p"}}}
		call.Step("hints", "vendor.com/a b", 1500*time.Microsecond)
		call.Step("commit", "", time.Millisecond)
		if _, err := l.Update(history.WithCall(t.Context(), call),
			func(d *ledger.Draft) error { d.PutPod(ledgertest.Pod(fmt.Sprint(i), "c")); return nil }); err != nil {
			t.Fatal(err)
		}
		all := entries(t, l)
		written = append(written, text(all[len(all)-1]))
		if i%7 == 3 {
			j = j.Reopen()
			l = recording(t, j, clock, enough)
		}
	}
	var blocks []string
	largest := 0
	if err := j.ReadHistory(t.Context(), "", func(e journal.Entry) bool {
		blocks, largest = append(blocks, e.Bucket), max(largest, len(e.Value))
		return true
	}); err != nil {
		t.Fatal(err)
	}
	if len(blocks) < 3 || len(blocks) > 20 || largest > 12000 || blocks[0] != journal.BucketHistoryOpen ||
		slices.Contains(blocks[1:], journal.BucketHistoryOpen) {
		t.Errorf("blocks %q, the largest has %d bytes", blocks, largest)
	}
	var read []string
	for _, e := range entries(t, l) {
		if e.Call == "Admit" {
			read = append(read, text(e))
			if len(e.Steps) != 2 || e.Steps[0] != (history.Step{Step: "hints", Provider: "vendor.com/a b",
				Took: 1500 * time.Microsecond}) || e.Steps[1] != (history.Step{Step: "commit", Took: time.Millisecond}) {
				t.Errorf("steps %+v", e.Steps)
			}
		}
	}
	if !slices.Equal(read, written) {
		t.Errorf("read %s\nwrote %s", read, written)
	}
}

// unreadable is a journal whose history cannot be read, or only in part.
type unreadable struct {
	*ledgertest.Journal
	sizes, values error
}

func (u unreadable) HistorySizes(ctx context.Context, each func(string, int)) error {
	return errors.Join(u.sizes, u.Journal.HistorySizes(ctx, each))
}

func (u unreadable) ReadHistory(ctx context.Context, below string, each func(journal.Entry) bool) error {
	if u.values != nil {
		return u.values
	}
	return u.Journal.ReadHistory(ctx, below, each)
}

// A ledger opens whatever is wrong with its history; the report says so, and the history begins
// anew.
func TestOpenWithDamagedHistory(t *testing.T) {
	t.Parallel()
	flip := func(v []byte) []byte { v[len(v)/2] ^= 1; return v }
	lastKey := func(j *ledgertest.Journal) (key string) {
		if err := j.ReadHistory(t.Context(), "", func(e journal.Entry) bool { key = e.Key; return false }); err != nil {
			t.Fatal(err)
		}
		return key
	}
	corrupt := errdefs.Corruptf("page 7 is damaged")
	for name, c := range map[string]struct {
		spoil func(j *ledgertest.Journal) journal.Journal
		note  string
	}{
		"last block": {func(j *ledgertest.Journal) journal.Journal {
			j.Alter(journal.BucketHistoryOpen, lastKey(j), flip)
			return j
		}, "are damaged: checksum"},
		"last block is no list": {func(j *ledgertest.Journal) journal.Journal {
			j.Alter(journal.BucketHistoryOpen, lastKey(j), func([]byte) []byte { return []byte("{}") })
			return j
		}, "are damaged"},
		"last block is gone": {func(j *ledgertest.Journal) journal.Journal {
			j.Alter(journal.BucketHistoryOpen, lastKey(j), func([]byte) []byte { return nil })
			return j
		}, ""},
		"the stored machine": {func(j *ledgertest.Journal) journal.Journal {
			j.Alter(journal.BucketMeta, "topology", flip)
			return j
		}, "meta/topology, the machine at the last commit: checksum"},
		"the stored machine is none": {func(j *ledgertest.Journal) journal.Journal {
			j.Alter(journal.BucketMeta, "topology", func([]byte) []byte {
				return journal.SealText(journal.BucketMeta, "topology",
					[]byte("{}")).Value
			})
			return j
		}, "meta/topology, the machine at the last commit"},
		"sizes":  {func(j *ledgertest.Journal) journal.Journal { return unreadable{Journal: j, sizes: corrupt} }, "page 7"},
		"values": {func(j *ledgertest.Journal) journal.Journal { return unreadable{Journal: j, values: corrupt} }, "page 7"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j, clock := ledgertest.NewJournal(), newClock()
			l := recording(t, j, clock, enough)
			for i := range 40 {
				put(t, l, fmt.Sprint("pod-", i))
			}
			old := l.View().Revision()
			spoiled := c.spoil(j.Reopen())
			h := history.New(enough, clock.now)
			opened, report := ledgertest.Open(t, journal.Options{Journal: spoiled, Rules: rules(), History: h})
			l = history.Ledger{Ledger: opened, History: h}
			if l.View().NumPods() != 40 || len(report.Damage) > 0 || !strings.Contains(report.History, c.note) ||
				(c.note == "") != (report.History == "") {
				t.Errorf("%d pods, report %+v", l.View().NumPods(), report)
			}
			put(t, l, "later")
			now := l.View().Revision()
			put(t, l, "last")
			if u, ok := spoiled.(unreadable); ok { // it can be read again
				u.sizes, u.values = nil, nil
				l = recording(t, u.Reopen(), clock, enough)
			}
			if v, err := l.At(t.Context(), history.Moment{Revision: now}); err != nil || v.NumPods() != 41 {
				t.Errorf("after the damage: %v", err)
			}
			if _, err := l.At(t.Context(), history.Moment{Revision: old - 1}); errdefs.ClassOf(err) != errdefs.NotFound {
				t.Errorf("before the damage: %v", err)
			}
		})
	}
}

// The calls of a map name the same moment: it is computed once, and again after a commit.
func TestPastIsComputedOnce(t *testing.T) {
	t.Parallel()
	l := recording(t, ledgertest.NewJournal(), newClock(), enough)
	put(t, l, "a")
	m := history.Moment{Revision: l.View().Revision()}
	put(t, l, "b")
	at := func(m history.Moment) *ledger.View {
		t.Helper()
		v, err := l.At(t.Context(), m)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	first, current := at(m), at(history.Moment{Revision: m.Revision + 1})
	if first != at(m) || first.NumPods() != 1 || current.NumPods() != 2 {
		t.Errorf("computed again, or %d pods, want 1", first.NumPods())
	}
	put(t, l, "c")
	if again := at(m); again == first || again.NumPods() != 1 {
		t.Errorf("after a commit: the same %t, %d pods", again == first, again.NumPods())
	}
}

func TestHistoryStats(t *testing.T) {
	t.Parallel()
	j, clock := ledgertest.NewJournal(), newClock()
	l := recording(t, j, clock, history.Limits{Entries: 50})
	if got, ok := l.Stats(t.Context()); !ok || got != (history.Stats{}) {
		t.Errorf("empty: %+v, %t", got, ok)
	}
	for i := range 100 {
		put(t, l, fmt.Sprint("pod-", i))
		size := 0
		if err := j.ReadHistory(t.Context(), "", func(e journal.Entry) bool { size += len(e.Value); return true }); err != nil {
			t.Fatal(err)
		}
		all := entries(t, l)
		want := history.Stats{Entries: uint64(len(all)), Bytes: size, Oldest: all[0].Time}
		if got, ok := l.Stats(t.Context()); !ok || got != want || got.Entries > 50 {
			t.Fatalf("after %d commits: %+v, %t, want %+v", i+1, got, ok, want)
		}
		if i == 60 {
			j = j.Reopen()
			l = recording(t, j, clock, history.Limits{Entries: 50})
			if got, _ := l.Stats(t.Context()); got != want {
				t.Errorf("after a start: %+v, want %+v", got, want)
			}
		}
	}
	if _, ok := recording(t, j.Reopen(), clock, history.Limits{}).Stats(t.Context()); ok {
		t.Error("there are statistics without a history")
	}
}

// A user whose calls are refused all day has a quarter of the history at most, so that the entries of others stay.
func TestRefusalsLeaveTheHistory(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 20, 3, 0, 0, 0, time.UTC)
	limits := history.Limits{Entries: 1000, Bytes: 64 << 20}
	l := ledgertest.OpenRecording(t, journal.Options{Journal: ledgertest.NewJournal(), Rules: rules()}, limits,
		func() time.Time { return now })
	put(t, l, "first")
	refuse := func(uid uint32) {
		l.Refused(history.WithCall(t.Context(), &history.Call{Name: "Admit", Time: now, Caller: &history.Caller{UID: uid}}),
			history.Refusal{Verdict: "rejected", View: l.View()})
	}
	for second := range 200 {
		now = now.Add(time.Second)
		for range history.RefusalsPerSecond {
			refuse(5)
		}
		put(t, l, fmt.Sprintf("pod-%d", second)) // which stores the refusals
	}
	refuse(6)
	put(t, l, "last")
	of := map[uint32]int{}
	all := entries(t, l)
	for _, e := range all {
		if e.Verdict == "rejected" {
			of[e.Caller.UID]++
		}
	}
	if of[5] < 240 || of[5] > 251 || of[6] != 1 || all[1].Pod != "first" {
		t.Errorf("refusals by user %v, the second of %d entries is about %q", of, len(all), all[1].Pod)
	}
}

// putting is a draft with one more pod.
func putting(l history.Ledger, uid string) *ledger.Draft {
	d := ledger.NewDraft(l.View())
	d.PutPod(ledgertest.Pod(uid, "main"))
	return d
}

// TestChangesLeaveTheHistory: a user that makes changes in a loop, each of which is carried out, does not push out what others did.
// What happened before the changes that are not recorded is listed, and no state of that time is invented.
func TestChangesLeaveTheHistory(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 20, 3, 0, 0, 0, time.UTC)
	const most = 1000
	j, limits, clock := ledgertest.NewJournal(), history.Limits{Entries: most, Bytes: 64 << 20}, func() time.Time { return now }
	l := ledgertest.OpenRecording(t, journal.Options{Journal: j, Rules: rules()}, limits, clock)
	as := func(uid uint32, change func(d *ledger.Draft)) {
		t.Helper()
		ctx := history.WithCall(t.Context(), &history.Call{Name: "Admit", Time: now, Caller: &history.Caller{UID: uid}})
		if _, err := l.Update(ctx, func(d *ledger.Draft) error { change(d); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	admit := func(name string) func(d *ledger.Draft) {
		return func(d *ledger.Draft) { d.PutPod(ledgertest.Pod(name, "main")) }
	}
	put(t, l, "of berthd")
	as(0, admit("of root"))
	as(6, admit("of another"))
	before := l.View().Revision()
	for i := range most {
		now = now.Add(time.Second)
		as(5, admit("loop"))
		as(5, func(d *ledger.Draft) { d.RemovePod("loop") })
		if i == most/2 {
			as(6, admit("between"))
		}
	}
	gone := l.View().Revision()
	check := func(when string) {
		t.Helper()
		of, pods := map[uint32]int{}, map[string]bool{}
		all := entries(t, l)
		for _, e := range all {
			if pods[e.Pod] = true; e.Caller != nil {
				of[e.Caller.UID]++
			}
		}
		if of[5] < 700 || of[5] > 800 || of[6] != 2 || !pods["of berthd"] || !pods["of root"] || !pods["between"] {
			t.Errorf("%s: entries by user %v of %d", when, of, len(all))
		}
		if _, err := l.At(t.Context(), history.Moment{Revision: before}); errdefs.ClassOf(err) != errdefs.NotFound {
			t.Errorf("%s: the state before the loop: %v", when, err)
		}
	}
	check("after the loop")
	put(t, l, "later")
	check("after another change")
	// In a day a part of its changes is recorded again, with the number of the others.
	now = now.Add(time.Hour)
	// A commit that fails takes nothing of that number.
	call := &history.Call{Name: "Admit", Time: now, Caller: &history.Caller{UID: 5}}
	ended, end := context.WithCancel(history.WithCall(t.Context(), call))
	end()
	if _, err := l.Commit(ended, putting(l, "failed")); err == nil {
		t.Fatal("a call that has ended commits")
	}
	as(5, admit("again"))
	all, theirs, omitted := entries(t, l), 0, uint64(0)
	for _, e := range all {
		if omitted += e.Omitted; e.Caller != nil && e.Caller.UID == 5 {
			theirs++
		}
	}
	newest := all[len(all)-1]
	if newest.Pod != "again" || newest.Omitted == 0 || theirs+int(omitted) != 2*most+1 {
		t.Errorf("%d changes of %d are there and %d are counted, the newest entry is %+v", theirs, 2*most+1, omitted, newest)
	}
	if v, err := l.At(t.Context(), history.Moment{Revision: gone + 1}); err != nil || v.NumPods() != 5 {
		t.Errorf("the state after the loop: %v", err)
	}
	for range most {
		as(5, func(d *ledger.Draft) { d.RemovePod("again") })
		as(5, admit("again"))
	}
	l = ledgertest.OpenRecording(t, journal.Options{Journal: j.Reopen(), Rules: rules()}, limits, clock)
	check("after a start")
	if _, err := l.At(t.Context(), history.Moment{Revision: gone + 1}); errdefs.ClassOf(err) != errdefs.NotFound {
		t.Errorf("the state before changes that are not recorded, after a start: %v", err)
	}
	now = now.Add(time.Second)
	as(0, admit("of root later"))
	if v, err := l.At(t.Context(), history.Moment{Revision: l.View().Revision() - 1}); err != nil || v.NumPods() != 6 {
		t.Errorf("the state before the last change: %v", err)
	}
}

// numbers draws for ledgertest.DrawPod.
func numbers(t *rapid.T) func(most int, what string) int {
	return func(most int, what string) int { return rapid.IntRange(0, most).Draw(t, what) }
}

// slow calls during in each commit, as a call that comes while the disk writes.
type slow struct {
	*ledgertest.Journal
	during func()
}

func (j *slow) Commit(ctx context.Context, gen uint64, batch []journal.Entry) error {
	if j.during != nil {
		j.during()
	}
	return j.Journal.Commit(ctx, gen, batch)
}

// TestOmittedDuringACommit: a user is refused while its change is being written, and both entries come after ones that were not
// recorded. One of them has their number, and the next entry has only those that came since.
func TestOmittedDuringACommit(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 20, 3, 0, 0, 0, time.UTC)
	j := &slow{Journal: ledgertest.NewJournal()}
	l := ledgertest.OpenRecording(t, journal.Options{Journal: j, Rules: rules()}, enough, func() time.Time { return now })
	call := func() context.Context {
		return history.WithCall(t.Context(), &history.Call{Name: "Admit", Time: now, Caller: &history.Caller{UID: 5}})
	}
	refuse := func(times int) {
		for range times {
			l.Refused(call(), history.Refusal{Verdict: "rejected", View: l.View()})
		}
	}
	admit := func(uid string) {
		t.Helper()
		if _, err := l.Commit(call(), putting(l, uid)); err != nil {
			t.Fatal(err)
		}
	}
	refuse(history.RefusalsPerSecond + 3)
	put(t, l, "of berthd") // which stores the refusals
	now = now.Add(time.Second)
	j.during = func() { refuse(history.RefusalsPerSecond + 2) }
	admit("during")
	j.during, now = nil, now.Add(time.Second)
	j.FailNext(1, errors.New("no space"))
	if _, err := l.Commit(call(), putting(l, "failed")); err == nil {
		t.Fatal("a commit that fails succeeds")
	}
	admit("after")
	admit("later")
	omitted := map[string]uint64{}
	for _, e := range entries(t, l) {
		if e.Omitted > 0 {
			omitted[e.Pod] += e.Omitted
		}
	}
	if want := (map[string]uint64{"during": 3, "after": 2}); !maps.Equal(omitted, want) || l.Omitted() != 5 {
		t.Errorf("omitted by pod: %v, want %v; in all %d", omitted, want, l.Omitted())
	}
}
