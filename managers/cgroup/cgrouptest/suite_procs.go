package cgrouptest

import (
	"slices"
	"testing"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
)

func testMoveAndProcs(t *testing.T, s *suite) {
	a, b := s.name("pod", "a"), s.name("pod", "b")
	s.ensure(t, a, cgroup.Values{})
	s.ensure(t, b, cgroup.Values{})
	p, q := s.Start(t), s.Start(t)
	s.move(t, a, p.PID, q.PID)
	both := []int{min(p.PID, q.PID), max(p.PID, q.PID)}
	for _, name := range []cgroup.Name{a, s.name("pod"), s.Root} {
		if got := s.procs(t, name); !slices.Equal(got, both) {
			t.Errorf("processes of %s: %v, want %v", name, got, both)
		}
	}
	s.move(t, b, q.PID)
	if got := s.procs(t, a); !slices.Equal(got, []int{p.PID}) {
		t.Errorf("processes of %s after a move: %v, want %d", a, got, p.PID)
	}
	if !s.observe(t, b).Populated || s.observe(t, s.name("pod")).Populated {
		t.Errorf("Populated is wrong: want it for %s and not for its parent", b)
	}
}

func testMoveRefusals(t *testing.T, s *suite) {
	p := s.Start(t)
	if err := s.Tree.Move(t.Context(), s.name("none"), p.PID); errdefs.ClassOf(err) != errdefs.NotFound {
		t.Errorf("Move into an absent cgroup: %v, want class not found", err)
	}
	leaf := s.name("pod", "a")
	s.ensure(t, leaf, cgroup.Values{})
	const noSuchPID = 1 << 22 // one more than the kernel's largest
	if err := s.Tree.Move(t.Context(), leaf, noSuchPID); errdefs.ClassOf(err) != errdefs.NotFound {
		t.Errorf("Move of a process that is not there: %v, want class not found", err)
	}
	err := s.Tree.Move(t.Context(), s.name("pod"), p.PID)
	if s.Facts.Version == cgroup.V2 && s.handsDown() {
		if errdefs.ClassOf(err) != errdefs.Precondition {
			t.Errorf("Move into an inner cgroup on v2: %v, want class precondition", err)
		}
	} else if err != nil {
		t.Errorf("Move into an inner cgroup that hands down nothing: %v", err)
	}
}

// handsDown reports whether the tree has a controller of the kind whose children's
// parent takes no processes: any but the threaded ones. The unified hierarchy of a
// hybrid system may have none.
func (s *suite) handsDown() bool {
	threaded := []string{"cpu", "cpuset", "perf_event", "pids"}
	return slices.ContainsFunc(s.Facts.Controllers, func(c string) bool { return !slices.Contains(threaded, c) })
}

func testRemoveKills(t *testing.T, s *suite) {
	pod, other := s.name("pod"), s.name("other")
	for _, n := range []cgroup.Name{s.name("pod", "a"), s.name("pod", "b", "inner"), other} {
		s.ensure(t, n, s.sample(1))
	}
	p, q, r := s.Start(t), s.Start(t), s.Start(t)
	s.move(t, s.name("pod", "a"), p.PID)
	s.move(t, s.name("pod", "b", "inner"), q.PID)
	s.move(t, other, r.PID)
	if err := s.Tree.Remove(t.Context(), pod); err != nil {
		t.Fatalf("Remove: %v", err)
	}
	s.gone(t, pod)
	if got := s.procs(t, s.Root); !slices.Equal(got, []int{r.PID}) {
		t.Errorf("processes left: %v, want only the sibling's %d", got, r.PID)
	}
	s.holds(t, other, s.sample(1))
}

func testRemoveForkBomb(t *testing.T, s *suite) {
	pod, leaf := s.name("pod"), s.name("pod", "bomb")
	s.ensure(t, pod, cgroup.Values{PIDs: s.pidsLimit(64)})
	s.ensure(t, leaf, cgroup.Values{})
	for range 3 {
		p := s.Start(t)
		s.move(t, leaf, p.PID)
		p.Fork()
	}
	if err := s.Tree.Remove(t.Context(), pod); err != nil {
		t.Fatalf("Remove: %v", err)
	}
	s.gone(t, pod)
}

// pidsLimit keeps a bomb from taking the machine with it.
func (s *suite) pidsLimit(n int64) *int64 {
	if slices.Contains(s.Facts.Controllers, "pids") {
		return &n
	}
	return nil
}

func testRemoveAbsent(t *testing.T, s *suite) {
	for range 2 {
		if err := s.Tree.Remove(t.Context(), s.name("none", "below")); err != nil {
			t.Errorf("Remove of an absent cgroup: %v", err)
		}
	}
}
