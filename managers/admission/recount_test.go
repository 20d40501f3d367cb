package admission_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/topology"
)

func TestReconcileBindings(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.None)
	h.admit(t, guaranteed("a", 1, 0))
	owner := ledger.Owner{Pod: "a", Container: "main"}
	for _, id := range []string{"kept", "ended", "vanished", "coming"} {
		_, err := h.PreStart(t.Context(), owner, id, 0)
		must(t, err)
	}
	// Those are berth's own; the rest of the test is about the runtime's.
	own := slices.Collect(h.ledger.View().Bindings())
	_, err := h.ledger.Update(t.Context(), func(d *ledger.Draft) error {
		for _, b := range own {
			b.Own, b.CgroupPath = false, ""
			d.Bind(b)
		}
		d.Bind(ledger.Binding{ID: "own", Owner: owner, CgroupPath: "/x", Own: true, Sequence: 9})
		return nil
	})
	must(t, err)
	found := []admission.Found{
		{ID: "kept", Owner: owner}, {ID: "new", Owner: owner},
		{ID: "unknown", Owner: ledger.Owner{Pod: "z", Container: "main"}},
		{ID: "other", Owner: ledger.Owner{Pod: "a", Container: "other"}},
	}
	gone := func(id string) bool { return id != "coming" }
	done, err := h.ReconcileBindings(t.Context(), h.ledger.View(), found, gone)
	must(t, err)
	if got := fmt.Sprint(ids(done.Bound), ids(done.Dropped)); got != "[new] [ended vanished]" {
		t.Errorf("bound and dropped %s", got)
	}
	if done.Bound[0].Sequence != 10 {
		t.Errorf("the new one comes before others: %+v", done.Bound[0])
	}
	if got := fmt.Sprint(ids(slices.Collect(h.ledger.View().Bindings()))); got != "[coming kept new own]" {
		t.Errorf("bindings %s", got)
	}
	before := h.ledger.View().Generation()
	again, err := h.ReconcileBindings(t.Context(), h.ledger.View(), found, gone)
	must(t, err)
	if len(again.Bound)+len(again.Dropped) > 0 || h.ledger.View().Generation() != before {
		t.Errorf("again: %+v", again)
	}
}

// A container that was unbound during the runtime's call is not bound again by its answer,
// while containers that ended by that answer are unbound.
func TestReconcileBindingsOfYesterday(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.None)
	h.admit(t, guaranteed("a", 1, 0))
	owner := ledger.Owner{Pod: "a", Container: "main"}
	bind := func(ids ...string) {
		_, err := h.ledger.Update(t.Context(), func(d *ledger.Draft) error {
			for i, id := range ids {
				d.Bind(ledger.Binding{ID: id, Owner: owner, Sequence: uint64(i)})
			}
			return nil
		})
		must(t, err)
	}
	stop := func(id string) {
		_, err := h.PostStop(t.Context(), id)
		must(t, err)
	}
	bind("stopped", "ended", "gone")
	before := h.ledger.View()
	found := []admission.Found{
		{ID: "stopped", Owner: owner}, {ID: "short", Owner: owner}, {ID: "new", Owner: owner},
	}
	stop("stopped")
	bind("short")
	stop("short")
	count := func(before *ledger.View, want string) {
		t.Helper()
		done, err := h.ReconcileBindings(t.Context(), before, found, func(id string) bool { return id == "ended" || id == "gone" })
		must(t, err)
		if got := fmt.Sprint(ids(done.Bound), ids(done.Dropped)); got != want {
			t.Errorf("bound and dropped %s, want %s", got, want)
		}
	}
	count(before, "[] [ended gone]")
	found = found[2:]
	count(h.ledger.View(), "[new] []")
}

func ids(bindings []ledger.Binding) []string {
	var out []string
	for _, b := range bindings {
		out = append(out, b.ID)
	}
	slices.Sort(out)
	return out
}
