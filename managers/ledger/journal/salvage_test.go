package journal_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
)

// factKeys are the keys of meta that compare the last commit with the present.
var factKeys = []string{"boot-id", "machine", "topology", "config", "settings", "memory", "reservation"}

// many is a ledger with pods of each sort: a to d hold something, e nothing.
func many(t *testing.T) *ledger.Ledger {
	t.Helper()
	l, _ := ledgertest.Open(t, journal.Options{Journal: ledgertest.NewJournal(), Rules: rules(), Epoch: 7, EpochID: someEpoch,
		BootID: someBoot})
	for i, uid := range []string{"a", "b", "c", "d", "e"} {
		if _, err := l.Update(t.Context(), func(d *ledger.Draft) error {
			p := ledgertest.Pod(uid, "main", "side")
			if uid != "e" {
				ledgertest.With(p, ledgertest.Exclusive("main", fmt.Sprint(2+i)), ledgertest.Devices("side", "vendor.com/gpu", "gpu-"+uid))
			}
			p.Trace = &ledger.Trace{AdmissionID: p.AdmissionID, Pod: uid, Admitted: true, Generation: uint64(i) + 1}
			d.PutPod(p)
			d.Bind(ledger.Binding{ID: "cri://" + uid, Owner: ledger.Owner{Pod: uid, Container: "main"}})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Update(t.Context(), func(d *ledger.Draft) error {
		d.PutResource(ledger.SeenResource{Name: "vendor.com/gpu"})
		d.PutLease(ledger.Lease{ID: "lease", Provider: "outside"})
		d.PutExternalProvider(ledger.ExternalProvider{Name: "outside", Endpoint: "/run/x.sock"})
		d.PutUnknownLive(ledger.UnknownLivePod{UID: "s", Since: time.Date(2026, 11, 20, 8, 30, 0, 0, time.UTC)})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return l
}

// salvaged is what a salvage left, opened.
type salvaged struct {
	journal.Saved
	view *ledger.View
}

const nextEpoch = ledger.EpochID(0xfeed)

// salvage saves what can be found, and opens it: it must be sound.
func salvage(t *testing.T, f journal.Found) salvaged {
	t.Helper()
	o := journal.Options{
		Rules: rules(), Epoch: 9, EpochID: nextEpoch,
		Restore: func(ledger.Override) (ledger.Rules, bool) { return rules(), true },
	}
	saved, err := journal.Salvage(o, f)
	if err != nil {
		t.Fatal(err)
	}
	j := ledgertest.NewJournal()
	if err := j.Commit(t.Context(), saved.Generation, saved.Entries); err != nil {
		t.Fatal(err)
	}
	o.Journal = j.Reopen()
	l, report := ledgertest.Open(t, o)
	if len(report.Damage) > 0 || l.View().EpochID() != nextEpoch || l.View().Generation() != saved.Generation {
		t.Errorf("after a salvage: %+v, epoch %s, generation %d", report, l.View().EpochID(), l.View().Generation())
	}
	if text, err := json.Marshal(saved.Report); err != nil || len(text) == 0 {
		t.Errorf("the report: %v", err)
	}
	return salvaged{saved, l.View()}
}

// lost returns the uids of those that are lost.
func (s salvaged) lost() (uids []string) {
	for _, l := range s.Report.Lost {
		uids = append(uids, l.UID)
	}
	return uids
}

// kept fails the test unless every pod but those named is what it was.
func (s salvaged) kept(t *testing.T, was *ledger.View, but ...string) {
	t.Helper()
	for p := range was.Pods() {
		is, ok := s.view.Pod(p.UID())
		if slices.Contains(but, p.UID()) {
			if ok {
				t.Errorf("pod %s is kept", p.UID())
			}
			continue
		}
		if !ok {
			t.Errorf("pod %s is not kept", p.UID())
			continue
		}
		x, y := *p, *is
		x.Trace, y.Trace = nil, nil
		if !reflect.DeepEqual(x, y) {
			t.Errorf("pod %s is %+v, was %+v", p.UID(), y, x)
		}
	}
	if got, want := s.view.NumPods(), was.NumPods()-len(but); got != want {
		t.Errorf("%d pods, want %d", got, want)
	}
}

func dump(t *testing.T, v *ledger.View) []journal.Entry {
	t.Helper()
	entries, err := journal.Dump(v)
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

// owner returns the pod whose record or claim an entry is.
func owner(e journal.Entry) string {
	if e.Bucket != journal.BucketPods && e.Bucket != journal.BucketClaims {
		return ""
	}
	uid, _, _ := strings.Cut(e.Key, "/")
	return uid
}

// TestDamageHitsWhatItHits: whichever value or key is damaged, or missing, the pod
// that it is part of is lost and no other, its remaining claims are reported,
// and revisions continue.
func TestDamageHitsWhatItHits(t *testing.T) {
	t.Parallel()
	was := many(t).View()
	entries := dump(t, was)
	for i, e := range entries {
		for name, change := range map[string]func([]journal.Entry) []journal.Entry{
			"value": func(all []journal.Entry) []journal.Entry {
				all[i].Value = bytes.Clone(e.Value)
				all[i].Value[len(e.Value)/2] ^= 1
				return all
			},
			"key": func(all []journal.Entry) []journal.Entry {
				all[i].Key = string(e.Key[0]^2) + e.Key[1:]
				return all
			},
			"bucket":  func(all []journal.Entry) []journal.Entry { all[i].Bucket = "pots"; return all },
			"missing": func(all []journal.Entry) []journal.Entry { return slices.Delete(all, i, i+1) },
			"twice":   func(all []journal.Entry) []journal.Entry { return append(all, e) },
		} {
			t.Run(name+" "+e.Bucket+" "+e.Key, func(t *testing.T) {
				damaged := change(slices.Clone(entries))
				s := salvage(t, journal.Found{Entries: damaged})
				uid := owner(e)
				if name == "bucket" || name == "twice" {
					uid = "" // the value is whole
				}
				var but []string
				if uid != "" {
					but = []string{uid}
				}
				s.kept(t, was, but...)
				if s.view.Revision() <= was.Revision() {
					t.Errorf("revision %d after %d", s.view.Revision(), was.Revision())
				}
				for _, l := range s.Report.Lost {
					for _, c := range l.Claims {
						if have, ok := was.Claim(c.Owner, c.Resource); !ok || !reflect.DeepEqual(have, c) {
							t.Errorf("claim %+v was not one", c)
						}
					}
				}
				if uid != "" && !slices.Contains(s.lost(), uid) && (uid != "e" || s.Report.Uncertain == "") {
					t.Errorf("lost are %v, want %s", s.lost(), uid)
				}
				optional := e.Bucket == journal.BucketMeta && e.Key != "generation" && e.Key != "config" && e.Key != "machine" &&
					e.Key != "schema"
				fact := name == "value" && slices.Contains(factKeys, e.Key) && e.Bucket == journal.BucketMeta
				history := fact && e.Key != "boot-id" && e.Key != "machine" && e.Key != "settings"
				if history != (s.Report.History != "") || fact != (len(s.Report.Renewed) == 1) {
					t.Errorf("of the history: %q, renewed %q", s.Report.History, s.Report.Renewed)
				}
				if len(s.Report.Damage) == 0 && !(name == "missing" && optional) && !fact {
					t.Error("nothing is reported")
				}
				if want := len(s.Report.Lost) > 0 || s.Report.Uncertain != ""; (s.view.Uncertain() != "") != want {
					t.Errorf("uncertain %q; lost %v, %q", s.view.Uncertain(), s.lost(), s.Report.Uncertain)
				}
			})
		}
	}
}

// TestUncertain: the state is uncertain where a pod may be missing that nothing
// names, and only there.
func TestUncertainAfterDamage(t *testing.T) {
	t.Parallel()
	entries := dump(t, many(t).View())
	with := func(bucket, key string, change func(*journal.Entry)) []journal.Entry {
		all := slices.Clone(entries)
		at := slices.IndexFunc(all, func(e journal.Entry) bool { return e.Bucket == bucket && e.Key == key })
		if change == nil {
			return slices.Delete(all, at, at+1)
		}
		all[at].Value = bytes.Clone(all[at].Value)
		change(&all[at])
		return all
	}
	flip := func(e *journal.Entry) { e.Value[len(e.Value)/2] ^= 1 }
	for name, c := range map[string]struct {
		entries []journal.Entry
		want    string // of the report
		lost    []string
	}{
		"trace flipped":       {with("traces", "00000000000000000001", flip), "", nil},
		"trace missing":       {with("traces", "00000000000000000001", nil), "", nil},
		"binding missing":     {with("containers", "cri://a", nil), "", nil},
		"lease missing":       {with("leases", "lease", nil), "", nil},
		"claim flipped":       {with("claims", "a/main/cpu", flip), "", []string{"a"}},
		"claim missing":       {with("claims", "a/main/cpu", nil), "", []string{"a"}},
		"record flipped":      {with("pods", "a", flip), "", []string{"a"}},
		"record missing":      {with("pods", "a", nil), "", []string{"a"}},
		"lone record flipped": {with("pods", "e", flip), "the damaged record of pod e may be one of another pod", []string{"e"}},
		"lone record missing": {with("pods", "e", nil), "there were 5 pods at the last commit, the records of 4 are there", nil},
		"unknown missing":     {with("unknown-live-pods", "s", nil), "1 pods lived here unknown at the last commit", nil},
		"unknown flipped":     {with("unknown-live-pods", "s", flip), "the note on the living pod s is damaged", nil},
		"generation":          {with("meta", "generation", flip), "it is not known how many pods there were", nil},
		"nothing":             {nil, "nothing could be read", nil},
	} {
		s := salvage(t, journal.Found{Entries: c.entries})
		if got := s.Report.Uncertain; got != c.want && (c.want == "" || !strings.Contains(got, c.want)) || !slices.Equal(s.lost(), c.lost) {
			t.Errorf("%s: uncertain %q, lost %v", name, got, s.lost())
		}
	}
}

// TestDamagedMeta: damaged facts about the whole ledger get the least harmful value.
func TestDamagedMeta(t *testing.T) {
	t.Parallel()
	l := many(t)
	if _, err := l.SetOverride(t.Context(), rules(), &ledger.Override{Settings: []byte(`{}`), Over: "one"}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.SetUncertain("an older reason"); return nil }); err != nil {
		t.Fatal(err)
	}
	was := l.View()
	for key, check := range map[string]func(s salvaged) bool{
		"generation": func(s salvaged) bool { return s.view.Generation() == 6 && s.view.Revision() > was.Revision() },
		"epoch":      func(s salvaged) bool { return s.view.RevisionOf(0) == 9<<10 },
		"epoch-id": func(s salvaged) bool {
			return s.view.Generation() == was.Generation()+1 && s.view.RevisionOf(0) == 7<<10
		},
		"schema":    func(s salvaged) bool { return s.view.NumPods() == 5 },
		"override":  func(s salvaged) bool { return s.view.Override() == nil },
		"uncertain": func(s salvaged) bool { return strings.Contains(s.view.Uncertain(), "the reason is damaged") },
	} {
		entries := dump(t, was)
		at := slices.IndexFunc(entries, func(e journal.Entry) bool { return e.Bucket == journal.BucketMeta && e.Key == key })
		entries[at].Value[len(entries[at].Value)-2] ^= 1
		s := salvage(t, journal.Found{Entries: entries})
		s.kept(t, was)
		if !check(s) || len(s.Report.Damage) == 0 {
			t.Errorf("%s: %+v, generation %d, revisions from %d, uncertain %q", key, s.Report, s.view.Generation(), s.view.RevisionOf(0),
				s.view.Uncertain())
		}
		if key != "override" && s.view.Override() != nil && !strings.Contains(s.view.Uncertain(), "an older reason") && key != "uncertain" {
			t.Errorf("%s: the state is certain: %q", key, s.view.Uncertain())
		}
	}
}

// TestContradiction: of two pods that hold one thing the one that came later stays.
func TestContradiction(t *testing.T) {
	t.Parallel()
	older := ledgertest.New(t, rules())
	put := func(l *ledger.Ledger, uid, cpus string) {
		if _, err := l.Update(t.Context(), func(d *ledger.Draft) error {
			d.PutPod(ledgertest.With(ledgertest.Pod(uid, "main"), ledgertest.Exclusive("main", cpus)))
			d.Bind(ledger.Binding{ID: "cri://" + uid, Owner: ledger.Owner{Pod: uid, Container: "main"}})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	put(older, "z", "2-3")
	newer := ledgertest.New(t, rules())
	put(newer, "x", "8")
	put(newer, "a", "3-4")
	put(newer, "b", "5")
	entries := dump(t, newer.View())
	for _, e := range dump(t, older.View()) {
		if e.Bucket != journal.BucketMeta {
			entries = append(entries, e)
		}
	}
	s := salvage(t, journal.Found{Entries: entries})
	s.kept(t, newer.View())
	if len(s.Report.Lost) != 1 {
		t.Fatalf("lost are %v", s.lost())
	}
	l := s.Report.Lost[0]
	if l.UID != "z" || len(l.Claims) != 1 || l.Pod == nil || len(l.Bindings) != 1 || !strings.Contains(l.Why, "CPUs 3 belong to") {
		t.Errorf("lost is %+v", l)
	}
}

// TestStale: what is perhaps stale makes no pod, but for claims that the sum of a
// sound record proves to be its own.
func TestStale(t *testing.T) {
	t.Parallel()
	l := many(t)
	before := dump(t, l.View())
	if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.RemovePod("a"); return nil }); err != nil {
		t.Fatal(err)
	}
	was := l.View()
	now := dump(t, was)
	of := func(entries []journal.Entry, buckets ...string) []journal.Entry {
		return slices.DeleteFunc(slices.Clone(entries), func(e journal.Entry) bool { return !slices.Contains(buckets, e.Bucket) })
	}
	without := func(entries []journal.Entry, keys ...string) []journal.Entry {
		return slices.DeleteFunc(slices.Clone(entries), func(e journal.Entry) bool { return slices.Contains(keys, e.Bucket+"/"+e.Key) })
	}
	claims := without(now, slices.Collect(func(yield func(string) bool) {
		for _, e := range of(now, "claims") {
			if !yield("claims/" + e.Key) {
				return
			}
		}
	})...)
	for name, c := range map[string]struct {
		found journal.Found
		lost  []string // and not kept
		told  []string // lost, and were not there
	}{
		"nothing is missing":              {journal.Found{Entries: now, Stale: before}, nil, nil},
		"a trace is missing":              {journal.Found{Entries: without(now, "traces/00000000000000000002"), Stale: before}, nil, nil},
		"claims are stale":                {journal.Found{Entries: claims, Stale: before}, nil, nil},
		"claims are loose":                {journal.Found{Entries: claims, Loose: of(now, "claims")}, nil, nil},
		"claims are loose, with old ones": {journal.Found{Entries: claims, Loose: of(before, "claims")}, nil, []string{}},
		"a claim is nowhere": {journal.Found{Entries: without(now, "claims/b/main/cpu"),
			Stale: without(before, "claims/b/main/cpu")}, []string{"b"}, nil},
		"a record is stale": {journal.Found{Entries: without(now, "pods/b"), Stale: before}, []string{"b"}, []string{"a"}},
		"a record is loose": {journal.Found{Entries: without(now, "pods/b"), Loose: of(now, "pods"), Stale: before}, nil,
			nil},
		"records are loose, with old ones": {journal.Found{Entries: without(now, "pods/b"), Loose: before}, []string{"b"}, []string{"a"}},
		"all is stale":                     {journal.Found{Stale: before}, []string{"b", "c", "d", "e"}, []string{"a"}},
	} {
		s := salvage(t, c.found)
		s.kept(t, was, c.lost...)
		want := slices.Sorted(slices.Values(slices.Concat(c.lost, c.told)))
		if !slices.Equal(s.lost(), want) {
			t.Errorf("%s: lost are %v, want %v", name, s.lost(), want)
		}
		for _, l := range s.Report.Lost {
			if (l.Pod != nil) && slices.Contains(c.told, l.UID) && !l.PerhapsStale {
				t.Errorf("%s: pod %s is not told as stale", name, l.UID)
			}
		}
	}
}

// TestSalvageRefuses: a state of a newer berth is not changed.
func TestSalvageRefuses(t *testing.T) {
	t.Parallel()
	newer := []journal.Entry{journal.SealText("meta", "schema", []byte("2000000"))}
	_, err := journal.Salvage(journal.Options{Rules: rules()}, journal.Found{Entries: newer})
	if errdefs.ClassOf(err) != errdefs.Unsupported {
		t.Errorf("a newer schema: %v", err)
	}
	if _, err := journal.Salvage(journal.Options{}, journal.Found{}); errdefs.ClassOf(err) != errdefs.Invalid {
		t.Errorf("no machine: %v", err)
	}
}

// TestBucketOf: the checksum of a value shows where it belongs.
func TestBucketOf(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, e := range dump(t, many(t).View()) {
		if got, ok := journal.BucketOf(e.Key, e.Value); !ok || got != e.Bucket {
			t.Errorf("%s/%s is of bucket %q", e.Bucket, e.Key, got)
		}
		seen[e.Bucket] = true
		if _, ok := journal.BucketOf(e.Key+"x", e.Value); ok {
			t.Errorf("%s/%sx belongs somewhere", e.Bucket, e.Key)
		}
	}
	if len(seen) != 9 {
		t.Errorf("buckets seen: %v", slices.Sorted(maps.Keys(seen)))
	}
}

// TestUnknownContradict: living pods that are not known and contradict each other keep
// their notes, and nothing else is lost for that.
func TestUnknownContradict(t *testing.T) {
	t.Parallel()
	was := many(t).View()
	entries := dump(t, was)
	for _, uid := range []string{"x", "y"} {
		note := fmt.Sprintf(`{"since":"2026-11-20T08:30:00Z","claims":[{"owner":{"pod":%q,"container":"c"},"provider":"cpu","resource":"cpu","cpus":{"set":"12","use":"exclusive"}}]}`, uid)
		entries = append(entries, journal.SealText(journal.BucketUnknownLive, uid, []byte(note)))
	}
	s := salvage(t, journal.Found{Entries: entries})
	s.kept(t, was)
	for _, uid := range []string{"x", "y"} {
		if u, ok := s.view.UnknownLivePod(uid); !ok || len(u.Claims) > 0 || !u.DevicesUnknown {
			t.Errorf("%s: %+v, %t", uid, u, ok)
		}
	}
	if s.view.Uncertain() == "" {
		t.Error("the state is certain")
	}
}

// TestKeyBefore: the key before a value is found by the value's checksum, whatever stands
// before the key, and no other value has one.
func TestKeyBefore(t *testing.T) {
	t.Parallel()
	entries, err := journal.Dump(small(t, ledgertest.NewJournal()).View())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		for _, before := range []string{"", "x", "pods\x00", e.Key} {
			bucket, key, ok := journal.KeyBefore([]byte(before+e.Key), e.Value)
			if !ok || bucket != e.Bucket || key != e.Key {
				t.Errorf("%s/%s behind %q: %s/%s %t", e.Bucket, e.Key, before, bucket, key, ok)
			}
		}
		if bucket, key, ok := journal.KeyBefore([]byte(e.Key+"x"), e.Value); ok {
			t.Errorf("%s/%s before a gap: %s/%s", e.Bucket, e.Key, bucket, key)
		}
	}
	for _, value := range []string{"", `{"crc":"0000`, `{"crc":"zzzzzzzz","value":1}`, `{"crc":"00000000","value":1`} {
		if _, _, ok := journal.KeyBefore([]byte("key"), []byte(value)); ok {
			t.Errorf("%q has a key", value)
		}
	}
}
