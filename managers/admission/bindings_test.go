package admission_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/topology"
)

// ids lists the ids of a pod's containers, older before newer.
func (h *fixture) ids(uid string) (ids []string) {
	for b := range h.ledger.View().BindingsOf(uid) {
		ids = append(ids, b.ID)
	}
	return ids
}

// TestIDsOfAContainer: an agent that never calls PostStop leaves one id for each container that may live, and never more
// than a few.
func TestIDsOfAContainer(t *testing.T) {
	t.Parallel()
	const starts = 3000
	for name, row := range map[string]struct {
		// pid of the process that is placed, ended whether the one before has ended by then.
		pid   func(i int) int
		ended bool
		want  []string
	}{
		"one after the other":     {func(i int) int { return i }, true, []string{"id-3000"}},
		"all go on":               {func(i int) int { return i }, false, lastIDs(starts)},
		"the runtime places them": {func(int) int { return 0 }, true, lastIDs(starts)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newFixture(t, topology.BestEffort)
			h.admit(t, guaranteed("a", 1, 0))
			h.admit(t, guaranteed("b", 1, 0))
			_, err := h.PreStart(t.Context(), ledger.Owner{Pod: "b", Container: "main"}, "other", 1<<20)
			must(t, err)
			for i := 1; i <= starts; i++ {
				if row.ended {
					h.cgroups.exits(i - 1)
				}
				for range 2 { // the call is repeated, as after a lost answer
					_, err := h.PreStart(t.Context(), ledger.Owner{Pod: "a", Container: "main"}, fmt.Sprint("id-", i), row.pid(i))
					must(t, err)
				}
			}
			if got := h.ids("a"); !slices.Equal(got, row.want) {
				t.Errorf("ids are %v, want %v", got, row.want)
			}
			if got := h.ids("b"); !slices.Equal(got, []string{"other"}) {
				t.Errorf("the ids of another pod are %v", got)
			}
			ledgertest.Check(t, h.ledger)
		})
	}
}

// lastIDs are those that are kept of the first n.
func lastIDs(n int) (ids []string) {
	for i := n - 15; i <= n; i++ {
		ids = append(ids, fmt.Sprint("id-", i))
	}
	return ids
}

// TestRestartOverlaps: the container that ends keeps its id while its process is there, and its end takes nothing from
// the one that has started.
func TestRestartOverlaps(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	h.admit(t, guaranteed("a", 1, 0))
	owner := ledger.Owner{Pod: "a", Container: "main"}
	start := func(id string, pid int, want ...string) {
		t.Helper()
		_, err := h.PreStart(t.Context(), owner, id, pid)
		must(t, err)
		if got := h.ids("a"); !slices.Equal(got, want) {
			t.Errorf("ids are %v, want %v", got, want)
		}
	}
	start("old", 1, "old")
	start("new", 2, "old", "new")
	found, err := h.PostStop(t.Context(), "old")
	must(t, err)
	if !found || len(h.cgroups.containers) != 1 {
		t.Errorf("the old one was known: %v; cgroups %v", found, h.cgroups.containers)
	}
	h.cgroups.exits(1)
	h.cgroups.exits(2)
	start("third", 3, "third")
	// The end of an unknown container is no error and ends no other container.
	if found, err := h.PostStop(t.Context(), "new"); found || err != nil || len(h.cgroups.containers) != 1 {
		t.Errorf("%v, %v; cgroups %v", found, err, h.cgroups.containers)
	}
	h.cgroups.exits(3)
	h.cgroups.fail["vacant"] = errdefs.Unavailablef("list processes: too many open files")
	if _, err := h.PreStart(t.Context(), owner, "fourth", 4); class(t, err) != errdefs.Unavailable {
		t.Errorf("%v", err)
	}
	start("fourth", 4, "fourth")
}

// TestIDsOfARuntime: what a runtime has in cgroups of its own is kept in force by its binding, so none is dropped, and one
// too many is refused until the ended ones were reported.
func TestIDsOfARuntime(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	h.admit(t, guaranteed("a", 1, 0))
	h.cgroups.runtime = true
	owner := ledger.Owner{Pod: "a", Container: "main"}
	for i := range 16 {
		_, err := h.PreStart(t.Context(), owner, fmt.Sprint("id-", i), 0)
		must(t, err)
	}
	_, err := h.PreStart(t.Context(), owner, "more", 0)
	if class(t, err) != errdefs.Precondition || !strings.Contains(err.Error(),
		"16 ids of this container may be running already, the oldest is id-0: call PostStopContainer") {
		t.Errorf("%v", err)
	}
	if code, _ := errdefs.CodeOf(err, errdefs.Precondition); code != "CONTAINER_IDS_EXHAUSTED" {
		t.Errorf("code %s", code)
	}
	_, err = h.PreStart(t.Context(), owner, "id-3", 0)
	must(t, err)
	_, err = h.PostStop(t.Context(), "id-7")
	must(t, err)
	_, err = h.PreStart(t.Context(), owner, "more", 0)
	must(t, err)
	if got := h.ids("a"); len(got) != 16 {
		t.Errorf("ids are %v", got)
	}
}
