package ledger_test

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
)

// golden returns what small held when a version of the schema was the newest.
func golden(t *testing.T, version int) []ledger.Entry {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("testdata/schema-%d.golden", version))
	if err != nil {
		t.Fatal(err)
	}
	var entries []ledger.Entry
	for head, rest, ok := strings.Cut(string(text), "\n\t"); ok; head, rest, ok = strings.Cut(rest, "\n\t") {
		bucket, key, _ := strings.Cut(head, " ")
		var value string
		value, rest, _ = strings.Cut(rest, "\n")
		entries = append(entries, ledger.Entry{Bucket: bucket, Key: key, Value: []byte(value)})
	}
	return entries
}

// TestMigrateGolden: a ledger as an older version wrote it opens with all that it
// held, and the first commit makes it one of today.
func TestMigrateGolden(t *testing.T) {
	t.Parallel()
	for version, came := range map[int]uint64{1: 0, 2: 1, 3: 1, 4: 1} {
		j := ledgertest.NewJournal()
		if err := j.Commit(t.Context(), 1, golden(t, version)); err != nil {
			t.Fatal(err)
		}
		j = j.Reopen()
		o := ledger.Options{Journal: j, Rules: rules(), EpochID: someEpoch, BootID: someBoot}
		old, report := ledgertest.Open(t, o)
		if report.MigratedFrom == nil || *report.MigratedFrom != version || len(report.Damage) > 0 {
			t.Fatalf("version %d: report %+v", version, report)
		}
		// What it held is what the same ledger of today holds, but for what is new.
		today := small(t, ledgertest.NewJournal())
		if version < 2 {
			if _, err := today.Update(t.Context(), func(d *ledger.Draft) error { d.ForgetUnknownLive("s"); return nil }); err != nil {
				t.Fatal(err)
			}
		}
		was, is := facts(t, old.View()), facts(t, today.View())
		if len(was) != len(is) {
			t.Fatalf("version %d: %d entries, want %d", version, len(was), len(is))
		}
		for i, e := range was {
			if e.Bucket != ledger.BucketPods && (e.Key != is[i].Key || !bytes.Equal(e.Value, is[i].Value)) {
				t.Errorf("version %d: %s/%s is %s, want %s", version, e.Bucket, e.Key, e.Value, is[i].Value)
			}
		}
		if p, ok := old.View().Pod("a"); !ok || p.AdmittedGeneration != came || p.AdmissionID != "admission-a" || len(p.Claims) != 5 {
			t.Errorf("version %d: pod %+v", version, p)
		}
		if _, err := old.Update(t.Context(), func(d *ledger.Draft) error { d.DropLease("lease"); return nil }); err != nil {
			t.Fatal(err)
		}
		again, report := ledgertest.Open(t, ledger.Options{Journal: j.Reopen(), Rules: rules(), EpochID: 7})
		if report.MigratedFrom != nil || report.LastBootID != someBoot || again.View().EpochID() != someEpoch {
			t.Errorf("version %d, after a commit: epoch %s, %+v", version, again.View().EpochID(), report)
		}
	}
}

// facts returns what a view holds outside meta.
func facts(t *testing.T, v *ledger.View) []ledger.Entry {
	t.Helper()
	entries, err := ledger.Dump(v)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(entries, func(e ledger.Entry) bool { return e.Bucket == ledger.BucketMeta })
}
