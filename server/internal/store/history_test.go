package store_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/api/ledgerfile"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/server/internal/store"
)

// recorded gives options a history.
func recorded(o journal.Options) journal.Options {
	o.History = history.New(history.Limits{Entries: 1000}, func() time.Time { return noon })
	return o
}

// with is a ledger with the history that its options have.
func with(l *ledger.Ledger, o journal.Options) history.Ledger {
	return history.Ledger{Ledger: l, History: o.History.(*history.History)}
}

func openRecorded(t *testing.T, o journal.Options) history.Ledger {
	t.Helper()
	o = recorded(o)
	l, _ := ledgertest.Open(t, o)
	return with(l, o)
}

// led checks that the history leads from the current state to each earlier one that it has,
// without a gap, and returns its entries, the newest first.
func led(t *testing.T, l history.Ledger, oldest uint64) (all []*history.Entry) {
	t.Helper()
	if err := l.Entries(t.Context(), 0, func(e *history.Entry, damage error) bool {
		if n := len(all); damage != nil || n > 0 && e.Number != all[n-1].Number-1 {
			t.Errorf("entry %d: %v", e.Number, damage)
		}
		all = append(all, e)
		return true
	}); err != nil {
		t.Fatal(err)
	}
	for generation := oldest; generation <= l.View().Generation(); generation++ {
		got, err := l.At(t.Context(), history.Moment{Revision: l.View().RevisionOf(generation)})
		if err != nil {
			t.Fatalf("generation %d: %v", generation, err)
		}
		want := viewAt(t, generation)
		if got.NumPods() != want.NumPods() || got.ExclusiveCPUs() != want.ExclusiveCPUs() {
			t.Errorf("generation %d: %d pods, CPUs %s, want %d, %s", generation, got.NumPods(), got.ExclusiveCPUs(), want.NumPods(),
				want.ExclusiveCPUs())
		}
		for p := range want.Pods() {
			if have, ok := got.Pod(p.UID()); !ok || len(have.Claims) != len(p.Claims) {
				t.Errorf("generation %d: pod %s is %+v", generation, p.UID(), have)
			}
		}
	}
	return all
}

// Killed at every point of a commit: an entry is there exactly if its change is.
func TestCrashKeepsHistory(t *testing.T) {
	t.Parallel()
	const commits = 8
	for _, point := range []string{store.BeforeBegin, store.AfterPut, store.BeforeCommit, store.AfterCommit} {
		for _, times := range []int{1, 2, 6} {
			t.Run(fmt.Sprintf("%s %d", point, times), func(t *testing.T) {
				t.Parallel()
				path := filepath.Join(t.TempDir(), "berth.db")
				for _, at := range []string{fmt.Sprintf("%s:kill:%d", point, times), ""} {
					r := start(t, path, at, commits, childHistory+"=1")
					for said, ok := "", true; ok && said != "done"; said, ok = r.next(t) {
					}
					r.stop()
					if r.wait(t) != (at != "") {
						t.Fatalf("killed at %q: %t", at, at == "")
					}
					s := mustOpen(t, path, store.Options{})
					l := openRecorded(t, options(s))
					if l.View().Generation() > 0 {
						led(t, l, 1)
					}
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
				}
			})
		}
	}
}

// recordingFile makes a file with a history of some commits, and returns its bytes.
func recordingFile(t *testing.T, path string, commits int) []byte {
	t.Helper()
	s := mustOpen(t, path, store.Options{})
	l := openRecorded(t, options(s))
	for range commits {
		if err := step(l.Ledger); err != nil {
			t.Fatal(err)
		}
	}
	led(t, l, 1)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Damage of one entry, in its bytes or in the page that it is on, takes no pod with it, and
// no other entries but those of its block and its page.
func TestDamagedHistory(t *testing.T) {
	t.Parallel()
	const commits = 40
	whole := recordingFile(t, filepath.Join(t.TempDir(), "berth.db"), commits)
	var places []int // of the entry, and of its copies in pages that are free
	for at := 0; ; {
		next := bytes.Index(whole[at:], []byte(`,"pod":"pod-0013","namespace"`))
		if next < 0 {
			break
		}
		at += next + 1
		places = append(places, at)
	}
	if len(places) == 0 {
		t.Fatal("the file has no entry of the pod")
	}
	for name, spoil := range map[string]func(data []byte, at int){
		"an entry": func(data []byte, at int) { data[at+8] ^= 0x11 },
		"a page": func(data []byte, at int) {
			page := at / 4096
			for int(binary.NativeEndian.Uint64(data[page*4096:])) != page { // it belongs to the page before
				page--
			}
			clear(data[page*4096 : page*4096+16])
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := bytes.Clone(whole)
			for _, at := range places {
				spoil(data, at)
			}
			path := filepath.Join(t.TempDir(), "berth.db")
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			s := mustOpen(t, path, store.Options{})
			defer s.Close()
			o := recorded(options(nil))
			opened, report, damage, err := s.OpenLedger(t.Context(), o, noon)
			if err != nil {
				t.Fatal(err)
			}
			l := with(opened, o)
			want := viewAt(t, commits)
			if l.View().NumPods() != want.NumPods() || len(report.Lost) > 0 || report.Uncertain != "" ||
				(damage != nil) != (name == "a page") {
				t.Errorf("%d pods, want %d; lost %v, uncertain %q, damage %v", l.View().NumPods(), want.NumPods(), report.Lost,
					report.Uncertain, damage)
			}
			entries, damaged := 0, 0
			if err := l.Entries(t.Context(), 0, func(_ *history.Entry, err error) bool {
				if entries++; err != nil {
					damaged++
				}
				return true
			}); err != nil {
				t.Fatal(err)
			}
			if entries < commits/2 || name == "an entry" && damaged == 0 {
				t.Errorf("%d entries, %d damaged", entries, damaged)
			}
			_, err = l.At(t.Context(), history.Moment{Revision: l.View().RevisionOf(2)})
			switch {
			case name == "an entry" && (errdefs.ClassOf(err) != errdefs.NotFound || !strings.Contains(err.Error(), "because")):
				t.Errorf("a state from before the damage: %v", err)
			case name == "a page" && err != nil: // the values on the page are intact
				t.Error(err)
			}
			if err := step(l.Ledger); err != nil {
				t.Error(err)
			}
		})
	}
}

// A file that is made again while berthd runs has no history; it begins there.
func TestHistoryOfRecreated(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "berth.db")
	s := mustOpen(t, path, store.Options{})
	defer func() { s.Close() }()
	o := renewing()
	o.Journal = s
	l := openRecorded(t, o)
	for i := range 8 {
		if i == 4 {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
		if err := step(l.Ledger); err != nil {
			t.Fatal(err)
		}
	}
	all := led(t, l, 6)
	if len(all) != 3 || !all[2].Begins || all[2].Number != 7 {
		t.Errorf("%d entries, the oldest is %+v", len(all), all[len(all)-1])
	}
	if _, err := l.At(t.Context(), history.Moment{Revision: l.View().RevisionOf(5)}); errdefs.ClassOf(err) != errdefs.NotFound {
		t.Errorf("a state of the file that is gone: %v", err)
	}
}

// A file that is cut while it is read is an error, and no end of the process.
func TestHistoryOfCutFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "berth.db")
	recordingFile(t, path, 60)
	s := mustOpen(t, path, store.Options{})
	defer s.Close()
	l := openRecorded(t, options(s))
	if err := os.Truncate(path, 8192); err != nil {
		t.Fatal(err)
	}
	err := l.Entries(t.Context(), 0, func(*history.Entry, error) bool { return true })
	if errdefs.ClassOf(err) != errdefs.Corrupt {
		t.Errorf("%v, want class Corrupt", err)
	}
}

// Whatever bits are wrong on the pages of the history, every pod is kept, and the state is
// certain.
func TestFlippedBitsInHistoryPages(t *testing.T) {
	t.Parallel()
	const commits, pageSize = 120, 4096
	whole := recordingFile(t, filepath.Join(t.TempDir(), "berth.db"), commits)
	want := viewAt(t, commits)
	pages := map[uint16][]int{} // by their kind
	_, ofHistory := ledgerfile.Pages(whole)
	for _, page := range ofHistory {
		kind := binary.NativeEndian.Uint16(whole[page*pageSize+8:])
		pages[kind] = append(pages[kind], int(page))
	}
	if len(pages[1]) == 0 || len(pages[2]) < 2 {
		t.Fatalf("pages of the history: %v", pages)
	}
	for kind, all := range pages {
		for _, page := range all {
			for _, at := range []int{0, 8, 10, 12, 16, 20, 24, 28, 32, 36, 60, 200, 2000} { // the header, elements, keys and values
				for _, bit := range []int{0, 4} {
					data := bytes.Clone(whole)
					data[page*pageSize+at] ^= 1 << bit
					dir := filepath.Join(t.TempDir(), "state")
					path := filepath.Join(dir, "berth.db")
					if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(path, data, 0o600)); err != nil {
						t.Fatal(err)
					}
					s := mustOpen(t, path, store.Options{})
					l, report, damage, err := s.OpenLedger(t.Context(), recorded(options(nil)), noon)
					if err != nil {
						t.Fatalf("kind %d, page %d, bit %d of byte %d: %v", kind, page, bit, at, err)
					}
					if l.View().NumPods() != want.NumPods() || len(report.Lost) > 0 || l.View().Uncertain() != "" {
						t.Errorf("kind %d, page %d, bit %d of byte %d: %d pods, want %d; lost %v, uncertain %q, damage %v",
							kind, page, bit, at, l.View().NumPods(), want.NumPods(), report.Lost, l.View().Uncertain(), damage)
					}
					if err := step(l); err != nil {
						t.Error(err)
					}
					if err := errors.Join(s.Close(), os.RemoveAll(dir)); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	}
}
