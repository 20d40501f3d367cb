package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/server/internal/store"
)

// Whatever is committed until the file is full, the next start reads it. A refused commit has no
// effect, and what fills the file can be removed.
func TestNoCommitMakesTheFileUnreadable(t *testing.T) {
	t.Parallel()
	const largest = 24 << 20
	dir := t.TempDir()
	runs := 0
	rapid.Check(t, func(t *rapid.T) {
		runs++
		path := filepath.Join(dir, fmt.Sprint(runs), "berth.db")
		open := func() *store.Store {
			s, err := store.Open(path, store.Options{Largest: largest})
			if err != nil {
				t.Fatalf("a written file is refused: %v", err)
			}
			return s
		}
		s, want, gen := open(), map[[2]string]int{}, uint64(0)
		defer func() { _ = s.Close() }()
		for range rapid.IntRange(1, 12).Draw(t, "commits") {
			next := maps.Clone(want)
			var batch []journal.Entry
			for range rapid.IntRange(1, 4).Draw(t, "entries") {
				bucket := rapid.SampledFrom([]string{journal.BucketClaims, journal.BucketTraces, journal.BucketPods}).Draw(t, "bucket")
				key := fmt.Sprint(rapid.IntRange(0, 20).Draw(t, "key"))
				if rapid.IntRange(0, 3).Draw(t, "kind") == 0 {
					batch = append(batch, journal.Entry{Bucket: bucket, Key: key})
					delete(next, [2]string{bucket, key})
					continue
				}
				size := rapid.IntRange(1, 4<<20).Draw(t, "size")
				batch = append(batch, journal.Entry{Bucket: bucket, Key: key, Value: bytes.Repeat([]byte{1}, size)})
				next[[2]string{bucket, key}] = size
			}
			gen++
			switch err := s.Commit(t.Context(), gen, batch); {
			case err == nil:
				want = next
			case errdefs.ClassOf(err) != errdefs.Exhausted:
				t.Fatal(err)
			}
			if rapid.IntRange(0, 4).Draw(t, "start") == 0 {
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				s, gen = open(), 0
			}
			if got := sizes(t, s); !maps.Equal(got, want) {
				t.Fatalf("the file has %v, want %v", got, want)
			}
		}
		var all []journal.Entry
		for _, at := range slices.Collect(maps.Keys(want)) {
			all = append(all, journal.Entry{Bucket: at[0], Key: at[1]})
		}
		if err := s.Commit(t.Context(), gen+1, all); err != nil {
			t.Fatalf("remove everything: %v", err)
		}
	})
}

// sizes returns the size of every value in a store.
func sizes(t rapid.TB, s *store.Store) map[[2]string]int {
	t.Helper()
	entries, err := s.Load(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	got := map[[2]string]int{}
	for _, e := range entries {
		got[[2]string{e.Bucket, e.Key}] = len(e.Value)
	}
	return got
}

// full commits large values until the file has no space for another one.
func full(t *testing.T, s *store.Store, gen uint64) (keys int) {
	t.Helper()
	for {
		err := s.Commit(t.Context(), gen+uint64(keys), []journal.Entry{{Bucket: journal.BucketClaims, Key: fmt.Sprint(keys),
			Value: make([]byte, 1<<20)}})
		if errdefs.ClassOf(err) == errdefs.Exhausted {
			return keys
		} else if err != nil {
			t.Fatal(err)
		}
		keys++
	}
}

// A start makes a file smaller that is mostly free. A reader does not.
func TestFreedPagesAreCompacted(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "berth.db")
	o := store.Options{Largest: 64 << 20}
	s := mustOpen(t, path, o)
	keys := full(t, s, 1)
	var drop []journal.Entry
	for i := 1; i < keys; i++ {
		drop = append(drop, journal.Entry{Bucket: journal.BucketClaims, Key: fmt.Sprint(i)})
	}
	if err := s.Commit(t.Context(), 1000, append(drop, journal.Entry{Bucket: journal.BucketHistory, Key: "1",
		Value: []byte("kept")})); err != nil {
		t.Fatalf("remove what fills the file: %v", err)
	}
	size := func() int64 {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	before := size()
	for _, o.ReadOnly = range []bool{true, false} {
		s = mustOpen(t, path, o)
		if got, want := sizes(t, s), map[[2]string]int{{journal.BucketClaims, "0"}: 1 << 20}; !maps.Equal(got, want) {
			t.Errorf("read only %t: the file has %v, want %v", o.ReadOnly, got, want)
		}
		if got := size(); o.ReadOnly != (got == before) || !o.ReadOnly && got > 8<<20 {
			t.Errorf("read only %t: %d of %d bytes", o.ReadOnly, got, before)
		}
		kept := 0
		if err := s.HistorySizes(t.Context(), func(string, int) { kept++ }); err != nil || kept != 1 {
			t.Errorf("history: %d entries, %v", kept, err)
		}
		if !o.ReadOnly && full(t, s, 2000) < keys/2 {
			t.Error("the file cannot be filled again")
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A commit that the file has no space for names the provider whose claims it is about.
func TestFullFileNamesTheProvider(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, filepath.Join(t.TempDir(), "berth.db"), store.Options{Largest: 24 << 20})
	t.Cleanup(func() { _ = s.Close() })
	l, _ := ledgertest.Open(t, options(s))
	for i := range 100 {
		before := l.View()
		p := ledgertest.Pod(fmt.Sprintf("pod-%d", i), "main")
		d := ledger.NewDraft(before)
		d.PutPod(ledgertest.With(p, ledger.Claim{
			Owner: ledger.Owner{Container: "main"}, Provider: "hoarder", Resource: "example.com/r", Opaque: make([]byte, 2<<20),
		}))
		_, err := l.Commit(t.Context(), d)
		if err == nil {
			continue
		}
		named := new(errdefs.Error)
		if !errors.As(err, &named) || named.Class != errdefs.Exhausted || named.Provider != "hoarder" || l.View() != before {
			t.Errorf("%v, want class exhausted and the provider", err)
		}
		d = ledger.NewDraft(before)
		d.RemovePod("pod-0")
		if _, err := l.Commit(t.Context(), d); err != nil {
			t.Errorf("remove a pod from a full ledger: %v", err)
		}
		return
	}
	t.Error("the file is never full")
}

// Killed before the smaller file takes the name: the next start finds the whole state, and tries again.
func TestCrashInCompaction(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "berth.db")
	fill(t, path, 4)
	s := mustOpen(t, path, store.Options{})
	for gen, value := range [][]byte{make([]byte, 40<<20), nil} {
		if err := s.Commit(t.Context(), uint64(gen)+1, []journal.Entry{{Bucket: journal.BucketTraces, Key: "large",
			Value: value}}); err != nil {
			t.Fatal(err)
		}
	}
	want := sizes(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if r := start(t, path, store.AfterCompact+":kill:1", 0); !r.wait(t) {
		t.Fatal("the child was not killed")
	}
	s = mustOpen(t, path, store.Options{})
	defer s.Close()
	info, err := os.Stat(path)
	if got := sizes(t, s); err != nil || !maps.Equal(got, want) || info.Size() > 8<<20 {
		t.Errorf("%d values of %d in %d bytes, %v", len(got), len(want), info.Size(), err)
	}
}
