package cgrouptest

import (
	"slices"
	"testing"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/numa"
)

// Fixture is a tree for the suite.
type Fixture struct {
	Tree  cgroup.Tree
	Facts cgroup.Facts
	// Root is where the suite may do as it likes. It need not exist.
	Root cgroup.Name
	// CPUs and Mems are what the machine has for Root.
	CPUs cpuset.Set
	Mems numa.Mask
	// Start starts a process outside of Root. It ends when it is killed, at the
	// latest with the test.
	Start func(t *testing.T) Process
}

// Process is a process of a fixture.
type Process struct {
	PID int
	// Fork makes it fork without end.
	Fork func()
}

// suite is one test's fixture with shorthand.
type suite struct{ Fixture }

func (s *suite) name(components ...string) cgroup.Name {
	return append(slices.Clone(s.Root), components...)
}

func (s *suite) ensure(t *testing.T, name cgroup.Name, v cgroup.Values) {
	t.Helper()
	if _, err := s.Tree.Ensure(t.Context(), cgroup.Node{Name: name, Values: v}); err != nil {
		t.Fatalf("Ensure: %v", err)
	}
}

func (s *suite) observe(t *testing.T, name cgroup.Name) cgroup.Observed {
	t.Helper()
	got, err := s.Tree.Observe(t.Context(), name, 0)
	if err != nil {
		t.Fatalf("Observe: %v", err)
	}
	return got.Find(name)
}

// holds checks that a cgroup is valid and has at least the given values.
func (s *suite) holds(t *testing.T, name cgroup.Name, want cgroup.Values) {
	t.Helper()
	got := s.observe(t, name)
	if got.State != cgroup.Valid {
		t.Fatalf("cgroup %s is %s (%s), want valid", name, got.State, got.Reason)
	}
	files := map[string]string{}
	for _, f := range got.Values.Files(s.Facts) {
		files[f.Name] = f.Text
	}
	for _, f := range want.Files(s.Facts) {
		if files[f.Name] != f.Text {
			t.Errorf("cgroup %s: %s is %q, want %q", name, f.Name, files[f.Name], f.Text)
		}
	}
}

// need skips the test unless the tree has the controllers.
func (s *suite) need(t *testing.T, controllers ...string) {
	t.Helper()
	for _, c := range controllers {
		if !slices.Contains(s.Facts.Controllers, c) {
			t.Skipf("the tree has no %s controller, only %v", c, s.Facts.Controllers)
		}
	}
}

// sample gives values for every controller that the tree has; n makes them
// differ.
func (s *suite) sample(n int64) cgroup.Values {
	var v cgroup.Values
	has := func(c string) bool { return slices.Contains(s.Facts.Controllers, c) }
	if has("cpu") {
		v.CPUShares = new(uint64(1024 * n))
		v.CPUQuotaUS, v.CPUPeriodUS = new(5000*n), new(uint64(10_000))
	}
	if has("memory") {
		v.MemoryBytes = new(64 << 20 * n)
		if s.Facts.Version == cgroup.V2 {
			v.Unified = map[string]string{"memory.low": "4096"}
		}
	}
	if has("pids") {
		v.PIDs = new(100 * n)
	}
	for i, size := range s.Facts.HugePageSizes {
		if v.HugePages == nil {
			v.HugePages = map[int64]int64{}
		}
		v.HugePages[size] = int64(i) * size * n
	}
	return v
}

func (s *suite) procs(t *testing.T, name cgroup.Name) []int {
	t.Helper()
	got, err := s.Tree.Procs(t.Context(), name)
	if err != nil {
		t.Fatalf("Procs: %v", err)
	}
	return got
}

func (s *suite) move(t *testing.T, name cgroup.Name, pids ...int) {
	t.Helper()
	if err := s.Tree.Move(t.Context(), name, pids...); err != nil {
		t.Fatalf("Move: %v", err)
	}
}

// gone checks that nothing is left of a cgroup.
func (s *suite) gone(t *testing.T, name cgroup.Name) {
	t.Helper()
	if got := s.observe(t, name); got.State != cgroup.Absent {
		t.Errorf("cgroup %s is %s after Remove, want absent", name, got.State)
	}
	if left := s.procs(t, name); len(left) > 0 {
		t.Errorf("processes %v are left in %s", left, name)
	}
}

// pods are a parent and two children with the given CPUs.
func (s *suite) pods(above, below cgroup.Values, parent, a, b cpuset.Set) []cgroup.Node {
	with := func(v cgroup.Values, cpus cpuset.Set) cgroup.Values {
		for _, c := range s.Facts.Controllers {
			if c == "cpuset" {
				v.CPUs, v.Mems = cpus, s.Mems
			}
		}
		return v
	}
	if b.IsEmpty() {
		b = a
	}
	return []cgroup.Node{
		{Name: s.name("tier"), Values: with(above, parent)},
		{Name: s.name("tier", "a"), Values: with(below, a)},
		{Name: s.name("tier", "b"), Values: with(below, b)},
	}
}

// reach applies what differs and checks that nothing differs then.
func (s *suite) reach(t *testing.T, desired []cgroup.Node) {
	t.Helper()
	seen, err := s.Tree.Observe(t.Context(), s.Root, -1)
	if err != nil {
		t.Fatal(err)
	}
	if err := cgroup.Apply(t.Context(), s.Tree, cgroup.Diff(desired, seen)); err != nil {
		t.Fatalf("Apply: %v", err)
	}
	for _, n := range desired {
		s.holds(t, n.Name, n.Values)
	}
	if seen, err = s.Tree.Observe(t.Context(), s.Root, -1); err != nil {
		t.Fatal(err)
	}
	for _, op := range cgroup.Diff(desired, seen) {
		t.Errorf("a second Diff still wants %s of %s: %+v", op.Kind, op.Name, op.Writes)
	}
}
