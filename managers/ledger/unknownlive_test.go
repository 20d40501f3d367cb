package ledger_test

import (
	"slices"
	"testing"
	"time"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
)

// TestUnknownLive: who lives and is unknown outlives restarts, until the next list or until the pod
// is known again.
func TestUnknownLive(t *testing.T) {
	t.Parallel()
	j := ledgertest.NewJournal()
	open := func() *ledger.Ledger {
		j = j.Reopen()
		l, _ := ledgertest.Open(t, journal.Options{Journal: j, Rules: rules()})
		return l
	}
	early, late := time.Unix(100, 0).UTC(), time.Unix(200, 0).UTC()
	change := func(do func(d *ledger.Draft)) {
		t.Helper()
		if _, err := open().Update(t.Context(), func(d *ledger.Draft) error { do(d); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	want := func(want ...ledger.UnknownLivePod) {
		t.Helper()
		view := open().View()
		if got := slices.Collect(view.UnknownLivePods()); !slices.EqualFunc(got, want,
			func(a, b ledger.UnknownLivePod) bool { return a.UID == b.UID && a.Since.Equal(b.Since) }) {
			t.Errorf("living are %v, want %v", got, want)
		}
		for _, s := range want {
			if !view.UnknownLive(s.UID) {
				t.Errorf("pod %s does not count as living", s.UID)
			}
		}
	}
	change(func(d *ledger.Draft) { d.PutPod(ledgertest.Pod("known", "c")) })
	change(func(d *ledger.Draft) {
		d.PutUnknownLive(ledger.UnknownLivePod{UID: "b", Since: early}, ledger.UnknownLivePod{UID: "known", Since: early},
			ledger.UnknownLivePod{UID: "a", Since: early})
	})
	want(ledger.UnknownLivePod{UID: "a", Since: early}, ledger.UnknownLivePod{UID: "b", Since: early})
	change(func(d *ledger.Draft) {
		d.ForgetUnknownLive("a")
		d.PutUnknownLive(ledger.UnknownLivePod{UID: "b", Since: late}, ledger.UnknownLivePod{UID: "c", Since: late})
	})
	want(ledger.UnknownLivePod{UID: "b", Since: late}, ledger.UnknownLivePod{UID: "c", Since: late})
	change(func(d *ledger.Draft) { d.PutPod(ledgertest.Pod("b", "c")) })
	want(ledger.UnknownLivePod{UID: "c", Since: late})
	change(func(d *ledger.Draft) { d.ForgetUnknownLive("c") })
	want()

	// In one draft the last word counts.
	change(func(d *ledger.Draft) {
		d.PutUnknownLive(ledger.UnknownLivePod{UID: "x"}, ledger.UnknownLivePod{UID: "y"})
		d.PutPod(ledgertest.Pod("x", "c"))
	})
	want(ledger.UnknownLivePod{UID: "y"})
}

// TestUnknownLiveMakesStale: who planned before a living pod was noted plans again.
func TestUnknownLiveMakesStale(t *testing.T) {
	t.Parallel()
	l := ledgertest.New(t, rules())
	before := l.View()
	if _, err := l.Update(t.Context(),
		func(d *ledger.Draft) error { d.PutUnknownLive(ledger.UnknownLivePod{UID: "b"}); return nil }); err != nil {
		t.Fatal(err)
	}
	if l.View().SameFacts(before) {
		t.Error("a plan from before rests on the same facts")
	}
}

// TestUnknownLiveAndKnown: damage that no checksum shows.
func TestUnknownLiveAndKnown(t *testing.T) {
	t.Parallel()
	v := ledger.Empty(rules())
	d := ledger.NewDraft(v)
	d.PutPod(ledgertest.Pod("a", "c"))
	d.PutUnknownLive(ledger.UnknownLivePod{UID: "b/c"}, ledger.UnknownLivePod{UID: "a"})
	found := check.View(d.View())
	if len(found) != 1 || found[0].Rule != check.RuleUnknownLive || found[0].Kind != check.Structural || found[0].Owner.Pod != "b/c" {
		t.Errorf("findings %v", found)
	}
}

// TestAdmittedGeneration: a record has the commit that admitted its pod, whatever
// is changed about it later.
func TestAdmittedGeneration(t *testing.T) {
	t.Parallel()
	j := ledgertest.NewJournal()
	l, _ := ledgertest.Open(t, journal.Options{Journal: j, Rules: rules()})
	put := func(uids ...string) {
		t.Helper()
		if _, err := l.Update(t.Context(), func(d *ledger.Draft) error {
			for _, uid := range uids {
				d.PutPod(ledgertest.Pod(uid, "c"))
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	put("a")
	put("a", "b")
	put("b")
	if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.RemovePod("a"); return nil }); err != nil {
		t.Fatal(err)
	}
	put("a")
	l, _ = ledgertest.Open(t, journal.Options{Journal: j.Reopen(), Rules: rules()})
	for uid, want := range map[string]uint64{"a": 5, "b": 2} {
		if p, ok := l.View().Pod(uid); !ok || p.AdmittedGeneration != want {
			t.Errorf("pod %s came with generation %d, want %d", uid, p.AdmittedGeneration, want)
		}
	}
}

// TestUnknownLiveHolds: what is known of an unknown living pod is held by it, also after
// a restart, until the pod is in the ledger or forgotten.
func TestUnknownLiveHolds(t *testing.T) {
	t.Parallel()
	j := ledgertest.NewJournal()
	open := func() *ledger.Ledger {
		j = j.Reopen()
		l, _ := ledgertest.Open(t, journal.Options{Journal: j, Rules: rules()})
		return l
	}
	l := open()
	lives := ledgertest.With(ledgertest.Pod("u", "c"), ledgertest.Exclusive("c", "4-5"),
		ledgertest.Memory("c", "memory", "0", 1<<20), ledgertest.Devices("c", "vendor.com/gpu", "gpu-1"))
	commit := func(do func(d *ledger.Draft)) error {
		_, err := l.Update(t.Context(), func(d *ledger.Draft) error { do(d); return nil })
		return err
	}
	holds := func(cpus string, devices int, bytes uint64) {
		t.Helper()
		for _, when := range []string{"before", "after"} {
			v := l.View()
			held := v.MemoryUse().Held("memory")
			if got := v.ExclusiveCPUs().String(); got != cpus || len(slices.Collect(v.DeviceHolders())) != devices ||
				held.Total() != bytes {
				t.Errorf("%s a restart: CPUs %q, %d holders of devices, %d bytes; want %q, %d, %d", when, got,
					len(slices.Collect(v.DeviceHolders())), held.Total(), cpus, devices, bytes)
			}
			l = open()
		}
	}
	note := func(d *ledger.Draft) {
		d.PutUnknownLive(ledger.UnknownLivePod{UID: "u", Source: ledger.FromClaimRecord, Claims: lives.Claims, DevicesUnknown: true})
	}
	if err := commit(note); err != nil {
		t.Fatal(err)
	}
	holds("4-5", 1, 1<<20)
	if u, ok := l.View().UnknownLivePod("u"); !ok || !u.DevicesUnknown || u.Source != ledger.FromClaimRecord ||
		!ledger.SameClaims(u.Claims, lives.Claims) {
		t.Errorf("%+v", u)
	}
	for name, claim := range map[string]ledger.Claim{
		"CPUs": ledgertest.Exclusive("c", "5-6"), "devices": ledgertest.Devices("c", "vendor.com/gpu", "gpu-1", "gpu-2"),
	} {
		other := ledgertest.With(ledgertest.Pod("other", "c"), claim)
		if err := commit(func(d *ledger.Draft) { d.PutPod(other) }); err == nil {
			t.Errorf("another pod got the same %s", name)
		}
	}
	if err := commit(func(d *ledger.Draft) {
		d.PutPod(ledgertest.With(ledgertest.Pod("other", "c"), ledgertest.Exclusive("c", "6-7"),
			ledgertest.Devices("c", "vendor.com/gpu", "gpu-2")))
	}); err != nil {
		t.Fatal(err)
	}
	holds("4-7", 2, 1<<20)

	// It comes into the ledger with what it holds.
	if err := commit(func(d *ledger.Draft) { d.PutPod(lives) }); err != nil {
		t.Fatal(err)
	}
	holds("4-7", 2, 1<<20)
	if l.View().UnknownLive("u") {
		t.Error("the pod is in the ledger and noted as unknown")
	}
	// And goes out of it again, as a recovery may have it.
	if err := commit(func(d *ledger.Draft) { d.RemovePod("u"); note(d) }); err != nil {
		t.Fatal(err)
	}
	holds("4-7", 2, 1<<20)
	if err := commit(func(d *ledger.Draft) { d.ForgetUnknownLive("u") }); err != nil {
		t.Fatal(err)
	}
	holds("6-7", 1, 0)
}
