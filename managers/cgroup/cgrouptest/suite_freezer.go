package cgrouptest

import (
	"context"
	"slices"
	"testing"

	"github.com/berthd/berth/managers/cgroup"
)

// freeze stops a cgroup as another program may, or thaws it.
func (s *suite) freeze(t *testing.T, name cgroup.Name, frozen bool) {
	t.Helper()
	if s.Facts.Version == cgroup.V1 && !slices.Contains(s.Facts.Controllers, "freezer") {
		t.Skipf("the tree has no freezer controller, only %v", s.Facts.Controllers)
	}
	s.ensure(t, name, cgroup.Values{Frozen: &frozen})
	if frozen {
		// What is left frozen by a test that failed could not even be killed.
		t.Cleanup(func() {
			ctx := context.WithoutCancel(t.Context())
			if seen, err := s.Tree.Observe(ctx, name, 0); err == nil && seen.Find(name).State != cgroup.Absent {
				thawed := false
				_, _ = s.Tree.Ensure(ctx, cgroup.Node{Name: name, Values: cgroup.Values{Frozen: &thawed}})
			}
		})
	}
}

// frozen checks which cgroup freezes a cgroup; nil for none.
func (s *suite) frozen(t *testing.T, name, want cgroup.Name) {
	t.Helper()
	by, err := s.Tree.Frozen(t.Context(), name)
	if err != nil || !by.Equal(want) || (by == nil) != (want == nil) {
		t.Errorf("%s is frozen by %v, %v; want %v", name, by, err, want)
	}
	self := s.observe(t, name).Values.Frozen
	if self == nil || *self != (want != nil && want.Equal(name)) {
		t.Errorf("%s freezes itself: %v, and %v freezes it", name, self, want)
	}
}

func testFreezer(t *testing.T, s *suite) {
	pod, leaf := s.name("pod"), s.name("pod", "a")
	s.ensure(t, leaf, cgroup.Values{})
	s.frozen(t, leaf, nil)
	s.freeze(t, leaf, true)
	s.frozen(t, leaf, leaf)
	s.frozen(t, pod, nil)
	s.ensure(t, leaf, s.sample(1))
	s.frozen(t, leaf, leaf)
	s.freeze(t, pod, true)
	s.freeze(t, leaf, false)
	s.frozen(t, leaf, pod)
	s.freeze(t, pod, false)
	s.frozen(t, leaf, nil)
	if by, err := s.Tree.Frozen(t.Context(), s.name("none")); by != nil || err != nil {
		t.Errorf("an absent cgroup is frozen by %v, %v", by, err)
	}
	// Living cgroups are thawed by the ops of Diff, and no others.
	s.freeze(t, pod, true)
	s.freeze(t, leaf, true)
	s.reach(t, []cgroup.Node{{Name: pod}, {Name: leaf, Lives: true}})
	s.frozen(t, leaf, pod)
	s.reach(t, []cgroup.Node{{Name: pod, Lives: true}, {Name: leaf, Lives: true}})
	s.frozen(t, leaf, nil)
}

// Frozen processes die too, in the cgroup that is removed or below it:
// v1's refrigerator keeps even those that were killed.
func testRemoveFrozen(t *testing.T, s *suite) {
	for _, frozen := range [][]cgroup.Name{
		{s.name("pod", "a", "deep")},
		{s.name("pod", "a"), s.name("pod", "a", "deep")},
		{s.name("pod"), s.name("pod", "b")},
	} {
		for _, leaf := range []cgroup.Name{s.name("pod", "a", "deep"), s.name("pod", "b")} {
			s.ensure(t, leaf, cgroup.Values{})
			s.move(t, leaf, s.Start(t).PID)
		}
		for _, name := range frozen {
			s.freeze(t, name, true)
		}
		if err := s.Tree.Remove(t.Context(), s.name("pod")); err != nil {
			t.Fatalf("Remove with %v frozen: %v", frozen, err)
		}
		s.gone(t, s.name("pod"))
	}
}
