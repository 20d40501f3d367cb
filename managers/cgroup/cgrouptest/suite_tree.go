package cgrouptest

import (
	"testing"

	"github.com/berthd/berth/managers/cgroup"
)

func testCpusets(t *testing.T, s *suite) {
	s.need(t, "cpuset")
	first := s.CPUs.Lowest(1)
	parent, child := s.name("p"), s.name("p", "c")
	s.ensure(t, parent, cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: first, Mems: s.Mems}})
	s.ensure(t, child, cgroup.Values{})
	if got := s.observe(t, child).Effective; got.CPUs != first || got.Mems != s.Mems {
		t.Errorf("a new child may use CPUs %q and memory nodes %q, want those of its parent, %q and %q",
			got.CPUs, got.Mems, first, s.Mems)
	}
	p := s.Start(t)
	s.move(t, child, p.PID)
	s.ensure(t, child, cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: first}})
	if got := s.observe(t, child); got.Values.CPUs != first || got.Effective.CPUs != first {
		t.Errorf("CPUs are %q, effective %q, want %q", got.Values.CPUs, got.Effective.CPUs, first)
	}
}

func testCpusetBeyondParent(t *testing.T, s *suite) {
	s.need(t, "cpuset")
	if s.CPUs.Len() < 2 {
		t.Skipf("the machine has one CPU only (%s)", s.CPUs)
	}
	first := s.CPUs.Lowest(1)
	rest := s.CPUs.Minus(first)
	parent, child := s.name("p"), s.name("p", "c")
	s.ensure(t, parent, cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: first, Mems: s.Mems}})
	_, err := s.Tree.Ensure(t.Context(), cgroup.Node{Name: child, Values: cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: rest}}})
	if s.Facts.Version == cgroup.V1 {
		if err == nil {
			t.Errorf("v1 let a child have CPUs %s while its parent has %s", rest, first)
		}
		return
	}
	if err != nil {
		t.Fatalf("v2 refuses CPUs outside of the parent's: %v", err)
	}
	if got := s.observe(t, child); got.Values.CPUs != rest || got.Effective.CPUs != first {
		t.Errorf("CPUs are %q, effective %q; want %q, effective the parent's %q", got.Values.CPUs, got.Effective.CPUs, rest, first)
	}
}

func testMemoryUsage(t *testing.T, s *suite) {
	s.need(t, "memory")
	name := s.name("a")
	s.ensure(t, name, cgroup.Values{})
	if got := s.observe(t, name).MemoryUsageBytes; got < 0 || got > 1<<20 {
		t.Errorf("an empty cgroup uses %d bytes", got)
	}
}

// testDiffAndApply goes from nothing to a tree, to another one with CPUs handed
// from one container to another, and back, and holds the tree against Diff.
func testDiffAndApply(t *testing.T, s *suite) {
	first := s.CPUs.Lowest(1)
	trees := [][]cgroup.Node{
		s.pods(s.sample(2), s.sample(1), s.CPUs, s.CPUs, s.CPUs),
		s.pods(s.sample(1), s.sample(1), s.CPUs, first, s.CPUs.Minus(first)),
		s.pods(s.sample(3), s.sample(2), first, first, first),
		s.pods(s.sample(2), s.sample(2), s.CPUs, s.CPUs, first),
	}
	for i, desired := range trees {
		s.reach(t, desired)
		if t.Failed() {
			t.Fatalf("at tree %d", i)
		}
	}
}
