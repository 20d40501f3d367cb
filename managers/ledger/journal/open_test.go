package journal_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
)

func rules() ledger.Rules {
	return ledger.Rules{Machine: machinetest.Build("2s1n4c2t"), ConfigDigest: "one"}
}

// The epoch and the boot of small.
const (
	someEpoch = ledger.EpochID(0x0123456789abcdef)
	someBoot  = "5f8ad6f0-7d6c-4a3e-9c5b-1c2d3e4f5a6b"
)

// small is a ledger with one of everything.
func small(t *testing.T, j journal.Journal) *ledger.Ledger {
	t.Helper()
	l, _ := ledgertest.Open(t, journal.Options{Journal: j, Rules: rules(), Epoch: 1<<40 + 1, EpochID: someEpoch, BootID: someBoot})
	_, err := l.Update(t.Context(), func(d *ledger.Draft) error {
		p := ledgertest.With(ledgertest.Pod("a", "init:i", "c"),
			ledgertest.Exclusive("c", "14-15"), ledgertest.Memory("c", "memory", "0-1", 1<<20),
			ledgertest.Devices("c", "vendor.com/gpu", "gpu-1", "gpu-0"),
			ledger.Claim{Owner: ledger.Owner{}, Provider: "outside", Resource: "vendor.com/lane", Opaque: []byte("lane 1")},
			ledger.Claim{Owner: ledger.Owner{}, Provider: "zweiter", Resource: "vendor.com/lane", Opaque: []byte("lane 2")})
		p.Claims[0].Affinity = &ledger.Affinity{Nodes: numa.Of(1), Preferred: true}
		p.AdmittedAt = time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC)
		p.CgroupParent = "/kubepods/poda"
		p.Trace = &ledger.Trace{AdmissionID: "admission-a", Pod: "a", Admitted: true, Steps: []ledger.Step{{Kind: ledger.StepCommitted}}}
		d.PutPod(p)
		d.PutTrace(&ledger.Trace{AdmissionID: "admission-b", Pod: "b", Reason: "TopologyAffinityError"})
		d.Bind(ledger.Binding{ID: "containerd://1", Owner: ledger.Owner{Pod: "a", Container: "c"}, CgroupPath: "/kubepods/poda/1",
			Own: true, Sequence: 1})
		d.PutResource(ledger.SeenResource{Name: "vendor.com/gpu", LastSeen: time.Date(2026, 11, 20, 7, 0, 0, 0, time.UTC)})
		d.PutLease(ledger.Lease{ID: "lease", Provider: "outside", AdmissionID: "admission-c",
			Expires: time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)})
		d.PutUnknownLive(ledger.UnknownLivePod{UID: "s", Since: time.Date(2026, 11, 20, 8, 30, 0, 0, time.UTC)})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

var update = flag.Bool("update", false, "write the golden files anew")

// The stored form of a small ledger. A change here is a change of the schema.
func TestGolden(t *testing.T) {
	t.Parallel()
	entries, err := journal.Dump(small(t, ledgertest.NewJournal()).View())
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	for _, e := range entries {
		fmt.Fprintf(&got, "%s %s\n\t%s\n", e.Bucket, e.Key, e.Value)
	}
	path := fmt.Sprintf("testdata/schema-%d.golden", journal.SchemaVersion)
	if *update {
		if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("the schema has changed; got\n%s", got.Bytes())
	}
}

// Opening again gives the same facts, and writes nothing.
func TestReopen(t *testing.T) {
	t.Parallel()
	j := ledgertest.NewJournal()
	l := small(t, j)
	j = j.Reopen()
	again, report := ledgertest.Open(t, journal.Options{Journal: j, Rules: rules()})
	ledgertest.SameView(t, again.View(), l.View())
	if j.Commits() != 0 || report.MachineChanged || report.ConfigChanged || report.MigratedFrom != nil || report.Generation != 1 {
		t.Errorf("%d commits, report %+v", j.Commits(), report)
	}
	p, ok := again.View().Pod("a")
	if !ok || p.Trace == nil || !p.Trace.Admitted || len(p.Claims) != 5 {
		t.Errorf("pod %+v", p)
	}
}

// TestRevision: revisions follow the generations, outlive a restart whatever its
// epoch, and are above all of a ledger that was lost.
func TestRevision(t *testing.T) {
	t.Parallel()
	j, last := ledgertest.NewJournal(), uint64(0)
	for _, row := range []struct {
		epoch uint64
		lost  bool
		want  uint64
	}{{epoch: 7, want: 7<<10 + 1}, {epoch: 9, want: 7<<10 + 2}, {epoch: 8, lost: true, want: 8<<10 + 1}, {epoch: 0, want: 8<<10 + 2}} {
		if j = j.Reopen(); row.lost {
			j = ledgertest.NewJournal()
		}
		l, _ := ledgertest.Open(t, journal.Options{Journal: j, Rules: rules(), Epoch: row.epoch})
		view, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(ledgertest.Pod("a", "c")); return nil })
		if err != nil || view.Revision() != row.want || view.Revision() <= last {
			t.Errorf("epoch %d: revision %d after %d, want %d; %v", row.epoch, view.Revision(), last, row.want, err)
		}
		if draft := ledger.NewDraft(view).View(); draft.Revision() != view.Revision() {
			t.Errorf("a draft has revision %d", draft.Revision())
		}
		last = view.Revision()
	}
}

// Another machine or configuration does not stop the start: what today's rules
// would not allow is listed and stays.
func TestChangedRules(t *testing.T) {
	t.Parallel()
	j := ledgertest.NewJournal()
	small(t, j)
	for name, c := range map[string]struct {
		rules                 ledger.Rules
		machine, config       bool
		grandfathered, broken int
	}{
		"same":         {rules: rules()},
		"other digest": {rules: ledger.Rules{Machine: rules().Machine, ConfigDigest: "two"}, config: true},
		"more reserved": {rules: ledger.Rules{Machine: rules().Machine, ConfigDigest: "two", ReservedCPUs: cpuset.Of(0, 15)},
			config: true, grandfathered: 1},
		"fewer CPUs":  {rules: ledger.Rules{Machine: machinetest.Build("2s1n3c2t"), ConfigDigest: "one"}, machine: true, broken: 1},
		"fewer nodes": {rules: ledger.Rules{Machine: machinetest.Build("1s1n8c2t"), ConfigDigest: "one"}, machine: true, broken: 1},
		"less memory": {rules: ledger.Rules{Machine: machinetest.Build("2s1n4c2t", machinetest.Memory(0, 1<<10),
			machinetest.Memory(1, 1<<10)), ConfigDigest: "one"}, grandfathered: 1},
	} {
		l, report, err := journal.Open(t.Context(), journal.Options{Journal: j, Rules: c.rules})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if report.MachineChanged != c.machine || report.ConfigChanged != c.config ||
			len(report.Grandfathered) != c.grandfathered || len(report.Broken) != c.broken || len(report.Damage) > 0 {
			t.Errorf("%s: %+v", name, report)
		}
		if p, ok := l.View().Pod("a"); !ok || len(p.Claims) != 5 {
			t.Errorf("%s: pod %+v", name, p)
		}
	}
	// The first commit under new rules makes them the known ones.
	o := journal.Options{Journal: j.Reopen(), Rules: ledger.Rules{Machine: rules().Machine, ConfigDigest: "two"}}
	l, _ := ledgertest.Open(t, o)
	if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.DropLease("lease"); return nil }); err != nil {
		t.Fatal(err)
	}
	if _, report := ledgertest.Open(t, o); report.ConfigChanged {
		t.Errorf("after a commit: %+v", report)
	}
}

// Registrations of outside providers outlive a restart, field by field.
func TestExternalProvidersStay(t *testing.T) {
	t.Parallel()
	j := ledgertest.NewJournal()
	l := small(t, j)
	want := []ledger.ExternalProvider{
		{Name: "fpga", Endpoint: "/run/fpga.sock", Index: -1, Deadline: time.Second},
		{Name: "nic", Endpoint: "/run/nic.sock", Required: true, Deadline: 2 * time.Second, Resources: []string{"example.com/nic"}},
	}
	if _, err := l.Update(t.Context(), func(d *ledger.Draft) error {
		d.PutExternalProvider(want[1])
		d.PutExternalProvider(want[0])
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	again, _ := ledgertest.Open(t, journal.Options{Journal: j.Reopen(), Rules: rules()})
	if got := slices.Collect(again.View().ExternalProviders()); !reflect.DeepEqual(got, want) {
		t.Errorf("after a restart %+v, want %+v", got, want)
	}
}

func TestSetRules(t *testing.T) {
	t.Parallel()
	j := ledgertest.NewJournal()
	small(t, j)
	j = j.Reopen()
	first := rules()
	first.ConfigDigest = "first" // is written with the next commit
	l, _ := ledgertest.Open(t, journal.Options{Journal: j, Rules: first})
	stale := ledger.NewDraft(l.View())
	stale.DropLease("lease")
	next := ledger.Rules{Machine: rules().Machine, ConfigDigest: "two", StrictReservation: true, ReservedCPUs: cpuset.Of(0)}
	v, err := l.SetRules(t.Context(), next)
	if err != nil || v.Generation() != 2 || v.SharedCPUs().String() != "1-13" || l.View() != v {
		t.Fatalf("set rules: shared %s, %v", v.SharedCPUs(), err)
	}
	if _, err := l.Commit(t.Context(), stale); !errors.Is(err, ledger.ErrStale) {
		t.Errorf("commit of a draft under the old rules: %v", err)
	}
	if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.DropLease("lease"); return nil }); err != nil {
		t.Fatal(err)
	}
	v = l.View()
	if _, report := ledgertest.Open(t, journal.Options{Journal: j.Reopen(), Rules: next}); report.ConfigChanged {
		t.Errorf("after a restart: %+v", report)
	}
	if _, err := l.SetRules(t.Context(), ledger.Rules{}); errdefs.ClassOf(err) != errdefs.Invalid {
		t.Errorf("rules without a machine: %v", err)
	}
	if _, err := l.SetRules(t.Context(), next); errdefs.ClassOf(err) != errdefs.Unavailable || l.View() != v {
		t.Errorf("rules that cannot be written: %v", err)
	}
}

// Whatever happens to a stored entry is found and named.
func TestDamage(t *testing.T) {
	t.Parallel()
	drop := func([]byte) []byte { return nil }
	put := func(text string) func([]byte) []byte { return func([]byte) []byte { return []byte(text) } }
	flip := func(value []byte) []byte { value[len(value)/2] ^= 1; return value }
	for name, c := range map[string]struct {
		bucket, key string
		change      func([]byte) []byte
		want        string
	}{
		"flipped pod":       {"pods", "a", flip, "stored: pods/a: checksum is"},
		"flipped claim":     {"claims", "a/c/cpu", flip, "stored: claims/a/c/cpu: checksum is"},
		"flipped trace":     {"traces", "00000000000000000001", flip, "stored: traces/00000000000000000001: checksum is"},
		"flipped binding":   {"containers", "containerd://1", flip, "stored: containers/containerd://1: checksum is"},
		"flipped schema":    {"meta", "schema", flip, "stored: meta/schema:"},
		"empty value":       {"pods", "a", put(""), "stored: pods/a: no checksum"},
		"short value":       {"pods", "a", put(`{"crc":"01234567`), "stored: pods/a: no value"},
		"lost claim":        {"claims", "a/c/vendor.com/gpu", drop, "stored: pods/a: its claims are not all there"},
		"lost pod":          {"pods", "a", drop, "5 claims of pod \"a\", which is not there"},
		"lost binding":      {"containers", "containerd://1", drop, "the last commit left 12 entries, 11 are there"},
		"lost unknown":      {"unknown-live-pods", "s", drop, "the last commit left 12 entries, 11 are there"},
		"flipped unknown":   {"unknown-live-pods", "s", flip, "stored: unknown-live-pods/s: checksum is"},
		"lost trace of pod": {"traces", "00000000000000000000", drop, "the trace of pod a is missing"},
		"lost generation":   {"meta", "generation", drop, "stored: meta/generation: is missing"},
		"lost machine":      {"meta", "machine", drop, "stored: meta/machine: is missing"},
		"lost schema":       {"meta", "schema", drop, "stored: meta/schema: there is none, and there are"},
		"unknown bucket":    {"pots", "a", put("x"), `the schema has no bucket "pots"`},
		"unknown meta":      {"meta", "other", put("x"), "stored: meta/other: the schema has no such key"},
		"extra pod":         {"pods", "b", put("x"), "stored: pods/b: no checksum"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := ledgertest.NewJournal()
			small(t, j)
			j = j.Reopen()
			j.Alter(c.bucket, c.key, c.change)
			l, report, err := journal.Open(t.Context(), journal.Options{Journal: j, Rules: rules()})
			if l != nil || errdefs.ClassOf(err) != errdefs.Corrupt || len(report.Damage) == 0 {
				t.Fatalf("open: %v, report %+v", err, report)
			}
			found := false
			for _, f := range report.Damage {
				found = found || f.Kind == check.Structural && strings.Contains(f.String(), c.want)
			}
			if !found {
				t.Errorf("findings %v, want %q", report.Damage, c.want)
			}
		})
	}
}

// A value under another value's key is damage although its checksum was right
// where it came from.
func TestSwapped(t *testing.T) {
	t.Parallel()
	j := ledgertest.NewJournal()
	small(t, j)
	j = j.Reopen()
	var memory []byte
	j.Alter("claims", "a/c/memory", func(value []byte) []byte { memory = value; return value })
	j.Alter("claims", "a/c/cpu", func([]byte) []byte { return memory })
	if _, _, err := journal.Open(t.Context(), journal.Options{Journal: j, Rules: rules()}); errdefs.ClassOf(err) != errdefs.Corrupt {
		t.Errorf("open: %v", err)
	}
}

func TestOpenErrors(t *testing.T) {
	t.Parallel()
	if _, _, err := journal.Open(t.Context(), journal.Options{Journal: ledgertest.NewJournal()}); errdefs.ClassOf(err) != errdefs.Invalid {
		t.Errorf("no machine: %v", err)
	}
	if _, _, err := journal.Open(t.Context(), journal.Options{Rules: rules()}); errdefs.ClassOf(err) != errdefs.Invalid {
		t.Errorf("no journal: %v", err)
	}
	j := ledgertest.NewJournal()
	j.Reopen()
	if _, _, err := journal.Open(t.Context(), journal.Options{Journal: j, Rules: rules()}); errdefs.ClassOf(err) != errdefs.Unavailable {
		t.Errorf("closed journal: %v", err)
	}
}
