package cgrouptest

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
)

// Run holds an implementation of cgroup.Tree against the contract. Each call of
// make returns a fixture with a Root of its own. What a tree lacks (a
// controller, a second CPU) skips the tests that need it, by name.
func Run(t *testing.T, make func(t *testing.T) Fixture) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, f *suite)
	}{
		{"EnsureCreates", testEnsureCreates},
		{"EnsureReportsWhatItCreated", testEnsureReports},
		{"EnsureCreatesOnce", testEnsureCreatesOnce},
		{"EnsureKeepsWhatIsAbsent", testEnsureKeeps},
		{"EnsureUndoesACreationThatFailed", testEnsureUndoes},
		{"EnsureKeepsWhatWasThere", testEnsureFailsOnExisting},
		{"ObserveLevels", testObserveLevels},
		{"ObserveAbsent", testObserveAbsent},
		{"BadNames", testBadNames},
		{"MoveAndProcs", testMoveAndProcs},
		{"MoveRefusals", testMoveRefusals},
		{"RemoveKills", testRemoveKills},
		{"RemoveForkBomb", testRemoveForkBomb},
		{"RemoveAbsent", testRemoveAbsent},
		{"Freezer", testFreezer},
		{"RemoveFrozen", testRemoveFrozen},
		{"Cpusets", testCpusets},
		{"CpusetBeyondParent", testCpusetBeyondParent},
		{"MemoryUsage", testMemoryUsage},
		{"DiffAndApply", testDiffAndApply},
		{"RandomTrees", testRandomTrees},
		{"SiblingsAtOnce", testSiblingsAtOnce},
		{"EndedContext", testEndedContext},
		{"Records", testRecords},
		{"RecordsOfNobody", testRecordsOfNobody},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, &suite{Fixture: make(t)}) })
	}
}

func testEnsureCreates(t *testing.T, s *suite) {
	leaf := s.name("a", "b", "c")
	if got := s.observe(t, leaf); got.State != cgroup.Absent {
		t.Fatalf("before: %s, want absent", got.State)
	}
	s.ensure(t, leaf, s.sample(1))
	s.holds(t, leaf, s.sample(1))
	for _, parent := range []cgroup.Name{s.name("a"), s.name("a", "b")} {
		if got := s.observe(t, parent); got.State != cgroup.Valid {
			t.Errorf("parent %s is %s (%s), want valid", parent, got.State, got.Reason)
		}
	}
	s.ensure(t, leaf, s.sample(1))
	s.ensure(t, leaf, s.sample(2))
	s.holds(t, leaf, s.sample(2))
}

// Created is what was not there before: a parent made on the way is there afterwards.
func testEnsureReports(t *testing.T, s *suite) {
	for _, step := range []struct {
		name    cgroup.Name
		values  cgroup.Values
		created bool
	}{
		{s.name("a", "b"), s.sample(1), true},
		{s.name("a", "b"), s.sample(2), false},
		{s.name("a"), cgroup.Values{}, false},
		{s.name("a", "c"), cgroup.Values{}, true},
	} {
		created, err := s.Tree.Ensure(t.Context(), cgroup.Node{Name: step.name, Values: step.values})
		if err != nil || created != step.created {
			t.Errorf("Ensure %s: created %t, %v; want %t", step.name, created, err, step.created)
		}
	}
	if err := s.Tree.Remove(t.Context(), s.name("a", "b")); err != nil {
		t.Fatal(err)
	}
	if created, err := s.Tree.Ensure(t.Context(), cgroup.Node{Name: s.name("a", "b")}); err != nil || !created {
		t.Errorf("Ensure after Remove: created %t, %v", created, err)
	}
}

// Of many who make one cgroup at the same time at most one has created it.
func testEnsureCreatesOnce(t *testing.T, s *suite) {
	for round := range 10 {
		name := s.name("pod" + string(rune('a'+round)))
		made := make([]bool, 8)
		var wg sync.WaitGroup
		for i := range made {
			wg.Go(func() {
				created, err := s.Tree.Ensure(t.Context(), cgroup.Node{Name: name})
				if err != nil {
					t.Errorf("Ensure at the same time: %v", err)
				}
				made[i] = created
			})
		}
		wg.Wait()
		if made = slices.DeleteFunc(made, func(created bool) bool { return !created }); len(made) > 1 {
			t.Errorf("%d calls at the same time have created %s", len(made), name)
		}
	}
}

func testEnsureKeeps(t *testing.T, s *suite) {
	name := s.name("a")
	s.ensure(t, name, s.sample(2))
	before := s.observe(t, name).Values
	s.ensure(t, name, cgroup.Values{})
	s.holds(t, name, before)
	for size := range before.HugePages {
		before.HugePages[size] = 3 * size
		s.ensure(t, name, cgroup.Values{HugePages: map[int64]int64{size: 3 * size}})
		s.holds(t, name, before)
	}
	if slices.Contains(s.Facts.Controllers, "pids") {
		before.PIDs = new(cgroup.Unlimited)
		s.ensure(t, name, cgroup.Values{PIDs: before.PIDs})
		s.holds(t, name, before)
	}
}

func testEnsureUndoes(t *testing.T, s *suite) {
	s.need(t, "cpuset")
	name := s.name("a", "b")
	s.fails(t, name)
	if got := s.observe(t, name); got.State != cgroup.Absent {
		t.Errorf("after a failed creation the cgroup is %s, want absent", got.State)
	}
}

func testEnsureFailsOnExisting(t *testing.T, s *suite) {
	s.need(t, "cpuset")
	name := s.name("a", "b")
	s.ensure(t, name, s.sample(1))
	s.fails(t, name)
	s.holds(t, name, s.sample(1))
}

// fails writes a CPU that the machine does not have.
func (s *suite) fails(t *testing.T, name cgroup.Name) {
	t.Helper()
	last, _ := s.CPUs.Max()
	missing := cpuset.Of(last + 1)
	_, err := s.Tree.Ensure(t.Context(), cgroup.Node{Name: name, Values: cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: missing}}})
	if err == nil {
		t.Fatalf("Ensure with CPU %s, which is not there: no error", missing)
	}
	for _, part := range []string{"cpuset.cpus", `"` + missing.String() + `"`} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not name %s", err, part)
		}
	}
}

func testObserveLevels(t *testing.T, s *suite) {
	for _, n := range []cgroup.Name{s.name("b", "y", "deep"), s.name("a"), s.name("b", "x")} {
		s.ensure(t, n, cgroup.Values{})
	}
	for depth, want := range map[int][]cgroup.Name{
		0:  {s.name()},
		1:  {s.name(), s.name("a"), s.name("b")},
		2:  {s.name(), s.name("a"), s.name("b"), s.name("b", "x"), s.name("b", "y")},
		-1: {s.name(), s.name("a"), s.name("b"), s.name("b", "x"), s.name("b", "y"), s.name("b", "y", "deep")},
	} {
		got, err := s.Tree.Observe(t.Context(), s.Root, depth)
		if err != nil {
			t.Fatal(err)
		}
		var names []cgroup.Name
		for _, n := range got.Nodes {
			names = append(names, n.Name)
		}
		if !slices.EqualFunc(names, want, cgroup.Name.Equal) {
			t.Errorf("depth %d: %v, want %v", depth, names, want)
		}
	}
}

func testObserveAbsent(t *testing.T, s *suite) {
	got, err := s.Tree.Observe(t.Context(), s.name("none"), -1)
	if err != nil || len(got.Nodes) != 1 || got.Nodes[0].State != cgroup.Absent {
		t.Errorf("absent cgroup: %+v, %v", got, err)
	}
	if procs, err := s.Tree.Procs(t.Context(), s.name("none")); len(procs) > 0 || err != nil {
		t.Errorf("processes of an absent cgroup: %v, %v", procs, err)
	}
}

func testBadNames(t *testing.T, s *suite) {
	for _, bad := range []string{"", ".", "..", "a/b", "a\nb", "a\x00b", strings.Repeat("x", 256)} {
		name := s.name(bad, "a")
		_, observed := s.Tree.Observe(t.Context(), name, 0)
		_, procs := s.Tree.Procs(t.Context(), name)
		_, ensured := s.Tree.Ensure(t.Context(), cgroup.Node{Name: name})
		for call, err := range map[string]error{
			"Observe": observed,
			"Procs":   procs,
			"Ensure":  ensured,
			"Move":    s.Tree.Move(t.Context(), name, 1),
			"Remove":  s.Tree.Remove(t.Context(), name),
		} {
			if err == nil || errdefs.ClassOf(err) != errdefs.Invalid {
				t.Errorf("%s of component %q: %v, want class invalid", call, bad, err)
			}
		}
	}
	if err := s.Tree.Remove(t.Context(), nil); errdefs.ClassOf(err) != errdefs.Invalid {
		t.Errorf("Remove of the root: %v, want class invalid", err)
	}
}

// testSiblingsAtOnce makes siblings below a parent that is not there either, again and
// again: the order of the calls in the kernel is random.
func testSiblingsAtOnce(t *testing.T, s *suite) {
	for round := range 10 {
		parent := s.name("pods" + strconv.Itoa(round))
		var wg sync.WaitGroup
		errs := make([]error, 8)
		for i := range errs {
			wg.Go(func() {
				name := append(slices.Clone(parent), string(rune('a'+i)))
				_, errs[i] = s.Tree.Ensure(t.Context(), cgroup.Node{Name: name, Values: s.sample(1)})
				if errs[i] == nil && i%2 == 1 {
					errs[i] = s.Tree.Remove(t.Context(), name)
				}
			})
		}
		wg.Wait()
		for i, err := range errs {
			if err != nil {
				t.Errorf("sibling %d: %v", i, err)
			}
		}
		got, err := s.Tree.Observe(t.Context(), parent, 1)
		if err != nil || len(got.Nodes) != 1+len(errs)/2 {
			t.Errorf("left are %d cgroups, %v; want %d", len(got.Nodes), err, 1+len(errs)/2)
		}
	}
}

func testEndedContext(t *testing.T, s *suite) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	name := s.name("a")
	_, observed := s.Tree.Observe(ctx, name, 0)
	_, procs := s.Tree.Procs(ctx, name)
	_, ensured := s.Tree.Ensure(ctx, cgroup.Node{Name: name})
	for call, err := range map[string]error{
		"Observe": observed,
		"Procs":   procs,
		"Ensure":  ensured,
		"Move":    s.Tree.Move(ctx, name, 1),
		"Remove":  s.Tree.Remove(ctx, name),
	} {
		if errdefs.ClassOf(err) != errdefs.Canceled {
			t.Errorf("%s with an ended context: %v, want class canceled", call, err)
		}
	}
	if got := s.observe(t, name); got.State != cgroup.Absent {
		t.Errorf("Ensure with an ended context made the cgroup")
	}
}
