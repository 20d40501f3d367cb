package ledgertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/machine/machinetest"
)

// RunJournal runs the contract of journal.Journal on one implementation. factory
// is called once for every test and returns a function that opens a handle on
// that test's content, which is empty at first; a handle is closed before the
// next one is opened.
func RunJournal(t *testing.T, factory func(t *testing.T) (open func() journal.Journal)) {
	for name, test := range map[string]func(*testing.T, *handles){
		"empty":       testEmpty,
		"durable":     testDurable,
		"order":       testOrder,
		"generations": testGenerations,
		"copies":      testCopies,
		"large":       testLarge,
		"canceled":    testCanceled,
		"closed":      testClosed,
		"ledger":      testLedger,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, &handles{t: t, open: factory(t)})
		})
	}
}

// handles opens one handle after the other.
type handles struct {
	t       *testing.T
	open    func() journal.Journal
	current journal.Journal
}

// next closes the current handle and opens another one.
func (h *handles) next() journal.Journal {
	h.t.Helper()
	if h.current == nil {
		h.t.Cleanup(func() { h.close() })
	}
	h.close()
	h.current = h.open()
	return h.current
}

func (h *handles) close() {
	if h.current != nil {
		if err := h.current.Close(); err != nil {
			h.t.Errorf("close: %v", err)
		}
	}
}

func (h *handles) commit(gen uint64, batch ...journal.Entry) {
	h.t.Helper()
	if err := h.current.Commit(context.Background(), gen, batch); err != nil {
		h.t.Fatalf("commit generation %d: %v", gen, err)
	}
}

// want fails the test unless the journal holds exactly what is given.
func (h *handles) want(want ...journal.Entry) {
	h.t.Helper()
	got, err := h.current.Load(context.Background())
	if err != nil {
		h.t.Fatalf("load: %v", err)
	}
	have := make(map[[2]string][]byte)
	for _, e := range got {
		have[[2]string{e.Bucket, e.Key}] = e.Value
	}
	if len(have) != len(got) || len(got) != len(want) {
		h.t.Errorf("load: %d entries under %d keys, want %d", len(got), len(have), len(want))
	}
	for _, e := range want {
		if value, ok := have[[2]string{e.Bucket, e.Key}]; !ok || !bytes.Equal(value, e.Value) {
			h.t.Errorf("%s/%s is %q (%t), want %q", e.Bucket, e.Key, value, ok, e.Value)
		}
	}
}

func entry(bucket, key, value string) journal.Entry {
	return journal.Entry{Bucket: bucket, Key: key, Value: []byte(value)}
}

func gone(bucket, key string) journal.Entry { return journal.Entry{Bucket: bucket, Key: key} }

func testEmpty(_ *testing.T, h *handles) {
	h.next()
	h.want()
	h.next()
	h.want()
}

func testDurable(_ *testing.T, h *handles) {
	h.next()
	h.commit(1, entry("pods", "a", "1"), entry("claims", "a/b/vendor.com/gpu", "\x00\xff"), entry("meta", "empty", ""))
	h.next()
	h.want(entry("pods", "a", "1"), entry("claims", "a/b/vendor.com/gpu", "\x00\xff"), entry("meta", "empty", ""))
	h.commit(2, gone("pods", "a"), entry("claims", "a/b/vendor.com/gpu", "new"), entry("pods", "b", "2"))
	h.next()
	h.want(entry("claims", "a/b/vendor.com/gpu", "new"), entry("meta", "empty", ""), entry("pods", "b", "2"))
}

func testOrder(_ *testing.T, h *handles) {
	h.next()
	h.commit(1, entry("pods", "a", "1"), entry("pods", "a", "2"), entry("pods", "b", "1"), gone("pods", "b"),
		gone("pods", "c"), entry("pods", "c", "3"), gone("leases", "never"))
	h.want(entry("pods", "a", "2"), entry("pods", "c", "3"))
}

func testGenerations(t *testing.T, h *handles) {
	j := h.next()
	h.commit(7, entry("pods", "a", "1"))
	for _, gen := range []uint64{7, 6, 0} {
		if err := j.Commit(t.Context(), gen, []journal.Entry{entry("pods", "a", "2")}); err == nil ||
			errdefs.ClassOf(err) != errdefs.Internal {
			t.Errorf("commit generation %d after 7: %v", gen, err)
		}
	}
	h.commit(9, entry("pods", "b", "1"))
	h.want(entry("pods", "a", "1"), entry("pods", "b", "1"))
}

// testCopies: neither side keeps the other's bytes.
func testCopies(t *testing.T, h *handles) {
	j := h.next()
	value := []byte("value")
	h.commit(1, journal.Entry{Bucket: "pods", Key: "a", Value: value})
	copy(value, "other")
	loaded, err := j.Load(t.Context())
	if err != nil || len(loaded) != 1 {
		t.Fatalf("load: %v, %v", loaded, err)
	}
	h.commit(2, entry("pods", "a", "later"))
	if got := string(loaded[0].Value); got != "value" {
		t.Errorf("loaded value became %q", got)
	}
	copy(loaded[0].Value, "wrong")
	h.want(entry("pods", "a", "later"))
}

func testLarge(_ *testing.T, h *handles) {
	h.next()
	var all []journal.Entry
	for i := range 2000 {
		all = append(all, entry("traces", fmt.Sprintf("%020d", i), fmt.Sprint(i)))
	}
	all = append(all, journal.Entry{Bucket: "pods", Key: "big", Value: bytes.Repeat([]byte("x"), 1<<20)})
	h.commit(1, all...)
	h.next()
	h.want(all...)
	var drop []journal.Entry
	for _, e := range all[:1999] {
		drop = append(drop, gone(e.Bucket, e.Key))
	}
	h.commit(2, drop...)
	h.next()
	h.want(all[1999:]...)
}

func testCanceled(t *testing.T, h *handles) {
	j := h.next()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := j.Commit(ctx, 1, []journal.Entry{entry("pods", "a", "1")}); !errors.Is(err, context.Canceled) {
		t.Errorf("commit under a canceled context: %v", err)
	}
	if _, err := j.Load(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("load under a canceled context: %v", err)
	}
	h.want()
	h.commit(1, entry("pods", "a", "1"))
}

func testClosed(t *testing.T, h *handles) {
	j := h.next()
	h.commit(1, entry("pods", "a", "1"))
	h.next()
	if err := j.Commit(t.Context(), 2, []journal.Entry{entry("pods", "a", "2")}); err == nil {
		t.Error("commit after close: no error")
	}
	if _, err := j.Load(t.Context()); err == nil {
		t.Error("load after close: no error")
	}
	h.want(entry("pods", "a", "1"))
}

// testLedger: a ledger opens with the last commit of the one before.
func testLedger(t *testing.T, h *handles) {
	o := journal.Options{Journal: h.next(), Rules: ledger.Rules{Machine: machinetest.Build("2s1n4c2t")}}
	l, _ := Open(t, o)
	for i := range 20 {
		if _, err := l.Update(t.Context(), func(d *ledger.Draft) error {
			uid := fmt.Sprintf("pod-%d", i%5)
			if _, ok := l.View().Pod(uid); ok {
				d.RemovePod(uid)
				return nil
			}
			p := With(Pod(uid, "init:first", "app"), Exclusive("app", fmt.Sprint(i%5+1)), Devices("app", "vendor.com/gpu", uid))
			p.Trace = &ledger.Trace{AdmissionID: p.AdmissionID, Pod: uid, Admitted: true}
			d.PutPod(p)
			d.Bind(ledger.Binding{ID: "containerd://" + uid, Owner: ledger.Owner{Pod: uid, Container: "app"}, Sequence: uint64(i)})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		o.Journal = h.next()
		again, _ := Open(t, o)
		SameView(t, again.View(), l.View())
		l = again
	}
}
