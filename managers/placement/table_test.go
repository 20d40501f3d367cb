package placement

import (
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/managers/cpuset"
)

// The table that people read is the one that is carried out.
func TestTableIsDocumented(t *testing.T) {
	t.Parallel()
	f, err := parser.ParseFile(token.NewFileSet(), "doc.go", nil, parser.ParseComments|parser.PackageClauseOnly)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(strings.ReplaceAll(f.Doc.Text(), "\t", ""), strings.TrimSpace(transitions)) {
		t.Error("the table in the package comment is not the one in table.go")
	}
	page, err := os.ReadFile("../../docs/lifecycle.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), strings.TrimSpace(transitions)) {
		t.Error("the table in docs/lifecycle.md is not the one in table.go")
	}
	for _, phase := range Phases() {
		if !strings.Contains(string(page), "\n| "+string(phase)+" | ") {
			t.Errorf("docs/lifecycle.md does not say what phase %s is", phase)
		}
	}
}

// Every event has a row with a cell for each phase.
func TestTableIsWhole(t *testing.T) {
	t.Parallel()
	kinds := []EventKind{
		Plan, Restore, Allow, Withdraw, Sent, Confirmed, Refused, ShownCreated, ShownRunning, ShownPaused,
		Ended, Unlisted, KernelRuns, KernelEmpty, Stop, StartOverdue,
	}
	if len(table) != len(kinds) {
		t.Errorf("%d rows for %d events", len(table), len(kinds))
	}
	known := map[Phase]bool{}
	for _, p := range Phases() {
		known[p] = true
	}
	for _, kind := range kinds {
		for _, p := range Phases() {
			if c, ok := table[kind][p]; !ok || !known[c.next] || !strings.ContainsRune("\x00+=~-0*", rune(c.do)) {
				t.Errorf("%s in phase %s: %+v", kind, p, c)
			}
		}
	}
}

// Each cell, applied to a container that may run on CPUs 0-1 and has a write of CPU 2 in
// flight, with an event about CPU 3 (about CPU 2 for answers to the write).
func TestEveryCell(t *testing.T) {
	t.Parallel()
	then, now := time.Unix(1, 0), time.Unix(2, 0)
	for kind, row := range table {
		for from, c := range row {
			cpus := cpuset.Of(3)
			if kind == Confirmed || kind == Refused {
				cpus = cpuset.Of(2)
			}
			x := &Container{Key: at("x"), Name: "p/x", Phase: from, Since: then, confirmed: cpuset.Of(0, 1),
				flight: []cpuset.Set{cpuset.Of(2)}, PossibleCPUs: cpuset.Range(0, 2)}
			tr := &Tracker{containers: map[Key]*Container{x.Key: x}}
			effects := tr.Apply(Event{Kind: kind, Key: at("x"), CPUs: cpus, At: now})
			want := map[effect]string{
				keep: "0-2", add: "0-3", arrive: "0-2", retract: "0-1", none: "", all: "",
				become: "2-3", // what the kernel shows, and what is in flight
			}[c.do]
			if kind == Confirmed && c.do == become {
				want = "2"
			}
			if got := x.PossibleCPUs.String(); x.Phase != c.next || got != want || x.Anywhere != (c.do == all) {
				t.Errorf("%s in phase %s: phase %s, possible CPUs %q, anywhere %v; want %s, %q", kind, from, x.Phase, got, x.Anywhere,
					c.next, want)
			}
			if effects.Look != c.look || effects.List != c.list {
				t.Errorf("%s in phase %s: effects %+v", kind, from, effects)
			}
			if began := x.Since == now; began != (c.next != from || kind == Allow) {
				t.Errorf("%s in phase %s: the phase began at %s", kind, from, x.Since)
			}
			if confirmed := x.AssignedCPUs == cpuset.Of(2); confirmed != (kind == Confirmed && c.do != keep) {
				t.Errorf("%s in phase %s: assigned CPUs %s", kind, from, x.AssignedCPUs)
			}
		}
	}
}

func TestUnknownContainersAndEvents(t *testing.T) {
	t.Parallel()
	var tr Tracker
	for kind := range table {
		if tr.Apply(Event{Kind: kind, Key: at(string(kind))}); len(tr.containers) > 0 != (kind == Plan || kind == Restore) {
			t.Errorf("%s: %d containers", kind, len(tr.containers))
		}
		tr.Forget(at(string(kind)))
	}
	tr.Apply(Event{Kind: Plan, Key: at("x"), Name: "p/x"})
	if got := tr.Apply(Event{Kind: "nonsense", Key: at("x")}); got != (Effects{}) {
		t.Errorf("an unknown event: %+v", got)
	}
	if _, ok := tr.Get(at("y")); ok || tr.Blockers(at("y")) != nil || tr.Block(at("y"), time.Time{}) != nil {
		t.Error("an unknown container is known")
	}
}
