package store_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/api/ledgerfile"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/server/internal/store"
)

const pageSize = 4096

// worn makes a file with 20 pods and a past: pods that were removed have left copies
// in pages that are free now.
func worn(t *testing.T, path string) ([]byte, *ledger.View) {
	t.Helper()
	s := mustOpen(t, path, store.Options{})
	defer s.Close()
	l, _ := ledgertest.Open(t, options(s))
	commit := func(change func(d *ledger.Draft)) {
		if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { change(d); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 30 {
		commit(func(d *ledger.Draft) {
			p := pod(i)
			d.PutPod(p)
			d.Bind(ledger.Binding{ID: "cri://" + p.UID(), Owner: ledger.Owner{Pod: p.UID(), Container: "main"}})
		})
		if i%3 == 2 {
			commit(func(d *ledger.Draft) { d.RemovePod(pod(i - 1).UID()) })
		}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data, l.View()
}

// place is where an entry stands in a file: its key, and its value behind that.
type place struct {
	owner    string // the pod
	from, to int
}

// recordOffsets finds the current records and claims of pods in a file.
func recordOffsets(t *testing.T, data []byte, v *ledger.View) (all []place) {
	t.Helper()
	entries, err := journal.Dump(v)
	if err != nil {
		t.Fatal(err)
	}
	current, _ := ledgerfile.Pages(data)
	for _, e := range entries {
		if e.Bucket != journal.BucketPods && e.Bucket != journal.BucketClaims {
			continue
		}
		text := append([]byte(e.Key), e.Value...)
		found := 0
		for at := 0; ; at++ {
			next := bytes.Index(data[at:], text)
			if next < 0 {
				break
			}
			if at += next; current[at/pageSize] {
				uid, _, _ := strings.Cut(e.Key, "/")
				all = append(all, place{uid, at, at + len(text)})
				found++
			}
		}
		if found != 1 {
			t.Fatalf("%s/%s is in the file %d times", e.Bucket, e.Key, found)
		}
	}
	return all
}

// damage is what happened to a file: the ranges whose bytes are not what they were.
type damage struct {
	name string
	data []byte
	hit  [][2]int
}

// flipped, zeroed, truncated, swapped and copied draw a damage each.
func flipped(r *rand.Rand, whole []byte) damage {
	data, at := bytes.Clone(whole), r.IntN(len(whole))
	data[at] ^= 1 << r.IntN(8)
	return damage{fmt.Sprintf("bit of byte %d", at), data, [][2]int{{at, at + 1}}}
}

func zeroed(r *rand.Rand, whole []byte) damage {
	data, at := bytes.Clone(whole), r.IntN(len(whole))
	end := min(at+1<<r.IntN(14), len(whole))
	clear(data[at:end])
	return damage{fmt.Sprintf("zeroes from %d to %d", at, end), data, [][2]int{{at, end}}}
}

func truncated(r *rand.Rand, whole []byte) damage {
	at := r.IntN(len(whole))
	return damage{fmt.Sprintf("truncated at %d", at), bytes.Clone(whole[:at]), [][2]int{{at, len(whole)}}}
}

func swapped(r *rand.Rand, whole []byte) damage {
	data, pages := bytes.Clone(whole), len(whole)/pageSize
	a, b := r.IntN(pages), r.IntN(pages)
	copy(data[a*pageSize:(a+1)*pageSize], whole[b*pageSize:])
	copy(data[b*pageSize:(b+1)*pageSize], whole[a*pageSize:(a+1)*pageSize])
	d := damage{name: fmt.Sprintf("pages %d and %d swapped", a, b), data: data}
	for _, p := range []int{a, b} {
		// A page that belongs to the one before it has no place of its own.
		if own := binary.NativeEndian.Uint64(whole[p*pageSize:]); a != b && (own != uint64(p) || p < 2) {
			d.hit = [][2]int{{a * pageSize, (a + 1) * pageSize}, {b * pageSize, (b + 1) * pageSize}}
		}
	}
	return d
}

func copied(r *rand.Rand, whole []byte) damage {
	data, pages := bytes.Clone(whole), len(whole)/pageSize
	from, to := r.IntN(pages), r.IntN(pages)
	copy(data[to*pageSize:(to+1)*pageSize], whole[from*pageSize:])
	return damage{fmt.Sprintf("page %d written over page %d", from, to), data, [][2]int{{to * pageSize, (to + 1) * pageSize}}}
}

// TestRandomDamage: whatever happens to the file, the start continues with every pod whose
// own record and claims are whole, takes no wrong value and brings no pod back that was
// removed; what was hit is reported.
func TestRandomDamage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	whole, was := worn(t, filepath.Join(dir, "whole.db"))
	at := recordOffsets(t, whole, was)
	kinds := []func(*rand.Rand, []byte) damage{flipped, flipped, zeroed, truncated, swapped, copied}
	random := rand.New(rand.NewPCG(2026, 12))
	kept, lost, stale := 0, 0, 0
	for n := range 300 {
		d := kinds[n%len(kinds)](random, whole)
		hit := map[string]bool{}
		for _, p := range at {
			for _, h := range d.hit {
				if p.from < h[1] && h[0] < p.to && !bytes.Equal(whole[p.from:p.to],
					d.data[min(p.from, len(d.data)):min(p.to, len(d.data))]) {
					hit[p.owner] = true
				}
			}
		}
		path := filepath.Join(dir, fmt.Sprintf("damage-%d", n), "berth.db")
		v, report := startOn(t, path, d.data)
		for p := range was.Pods() {
			is, ok := v.Pod(p.UID())
			switch {
			case ok && !samePod(is, p):
				t.Errorf("%s: pod %s is another one", d.name, p.UID())
			case ok:
				kept++
			case !hit[p.UID()] && (!d.wide() || !remembered(report, p)):
				t.Errorf("%s: pod %s is lost, and was not hit", d.name, p.UID())
			case !hit[p.UID()]:
				stale++
			default:
				lost++
			}
			if !ok && v.Uncertain() == "" {
				t.Errorf("%s: pod %s is lost, and the state is certain", d.name, p.UID())
			}
		}
		for p := range v.Pods() {
			if _, ok := was.Pod(p.UID()); !ok {
				t.Errorf("%s: pod %s is back", d.name, p.UID())
			}
		}
		if v.Revision() < was.Revision() {
			t.Errorf("%s: revision %d after %d", d.name, v.Revision(), was.Revision())
		}
		if t.Failed() {
			t.Fatalf("%s: %s\n%s\n%v", d.name, report.Outcome(), strings.Join(report.Unread, "\n"), report.Damage)
		}
	}
	t.Logf("%d pods were kept, %d were hit, %d may be stale", kept, lost, stale)
	if lost == 0 || kept < 3*(lost+stale) {
		t.Errorf("%d pods kept, %d lost: the test has lost its subject", kept, lost)
	}
}

// wide reports whether the damage is in more than one page: where the root and the
// freelist are both gone, nothing reports what is in use from what was freed.
func (d damage) wide() bool {
	return len(d.hit) > 0 && d.hit[0][0]/pageSize != (d.hit[0][1]-1)/pageSize
}

// remembered reports whether a pod is reported as lost with all that it holds.
func remembered(r journal.Report, p *ledger.Pod) bool {
	for _, l := range r.Lost {
		if l.UID == p.UID() {
			return l.PerhapsStale && l.Pod != nil && !slices.ContainsFunc(p.Claims, func(c ledger.Claim) bool {
				return !slices.ContainsFunc(l.Claims, func(o ledger.Claim) bool { return reflect.DeepEqual(o, c) })
			})
		}
	}
	return false
}

func samePod(a, b *ledger.Pod) bool {
	x, y := *a, *b
	x.Trace, y.Trace = nil, nil
	return reflect.DeepEqual(x, y)
}

// startOn starts on a file, commits to what it finds and starts again.
func startOn(t *testing.T, path string, data []byte) (*ledger.View, journal.Report) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, path, store.Options{})
	defer func() { s.Close() }()
	l, report, _, err := s.OpenLedger(t.Context(), options(nil), noon.Add(time.Hour))
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	v := l.View()
	if findings := check.View(v); len(findings) > 0 {
		t.Errorf("%v", findings)
	}
	if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.PutLease(ledger.Lease{ID: "lease"}); return nil }); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, path, store.Options{})
	again, _, damage, err := s.OpenLedger(t.Context(), options(nil), noon.Add(time.Hour))
	if err != nil || damage != nil {
		t.Fatalf("start again: %v, %v", err, damage)
	}
	ledgertest.SameView(t, again.View(), l.View())
	return v, report
}

// FuzzSalvage: no file makes the reader of pages panic or run without an end, and what
// it finds makes a sound ledger.
func FuzzSalvage(f *testing.F) {
	f.Add([]byte("damaged"), uint32(0), byte(0))
	f.Add(make([]byte, 4*pageSize), uint32(0), byte(0))
	seed := filepath.Join(f.TempDir(), "berth.db")
	s, err := store.Open(seed, store.Options{})
	if err != nil {
		f.Fatal(err)
	}
	l, _, _, err := s.OpenLedger(f.Context(), options(nil), noon)
	for i := range 6 {
		if err == nil {
			_, err = l.Update(f.Context(), func(d *ledger.Draft) error { d.PutPod(pod(i)); return nil })
		}
	}
	if err != nil {
		f.Fatal(err)
	}
	if err := s.Close(); err != nil {
		f.Fatal(err)
	}
	data, err := os.ReadFile(seed)
	if err != nil {
		f.Fatal(err)
	}
	for at := uint32(0); at < uint32(len(data)); at += 3001 {
		f.Add(data, at, byte(0x20))
	}
	f.Fuzz(func(t *testing.T, data []byte, at uint32, flip byte) {
		data = bytes.Clone(data)
		if len(data) > 0 {
			data[int(at)%len(data)] ^= flip
		}
		found := ledgerfile.Salvage("file", data)
		saved, err := journal.Salvage(options(nil), found)
		if err != nil {
			return // of a newer schema
		}
		j := ledgertest.NewJournal()
		if err := j.Commit(t.Context(), saved.Generation, saved.Entries); err != nil {
			t.Fatal(err)
		}
		ledgertest.Open(t, options(j.Reopen()))
	})
}
