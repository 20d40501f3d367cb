package app

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
)

// roots is a tree that knows the processes of its root.
type roots struct {
	root  []int
	moved map[string][]int
	// refuse is what is said of a process that cannot be moved.
	refuse map[int]error
}

func (r *roots) Ensure(_ context.Context, node cgroup.Node) (created bool, err error) {
	if created = r.moved[node.Name.String()] == nil; created {
		r.moved[node.Name.String()] = []int{}
	}
	return created, nil
}

func (r *roots) Move(_ context.Context, name cgroup.Name, pids ...int) error {
	for _, pid := range pids {
		if err := r.refuse[pid]; err != nil {
			return err
		}
		r.root = slices.DeleteFunc(slices.Clone(r.root), func(p int) bool { return p == pid })
		r.moved[name.String()] = append(r.moved[name.String()], pid)
	}
	return nil
}

func (r *roots) RootProcs() ([]int, error) { return r.root, nil }

// processes is a /proc in which some run programs.
func processes(t *testing.T, programs ...int) *os.Root {
	t.Helper()
	dir := t.TempDir()
	for _, pid := range programs {
		at := filepath.Join(dir, strconv.Itoa(pid))
		if err := errors.Join(
			os.Mkdir(at, 0o755), os.WriteFile(filepath.Join(at, "stat"), []byte(strconv.Itoa(pid)+" (program) S 1 1 1 0 -1 4194560 0"), 0o600),
			os.WriteFile(filepath.Join(at, "oom_score_adj"), []byte("0\n"), 0o600),
		); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return root
}

func TestSystemCgroups(t *testing.T) {
	t.Parallel()
	tree := &roots{
		root: []int{0, 1, 2, 10, 11, 12}, moved: map[string][]int{},
		refuse: map[int]error{12: errdefs.NotFoundf("no such process")},
	}
	c := systemCgroups{
		tree: tree, proc: processes(t, 1, 10, 11, 40), pid: 40, score: -999,
		system: cgroup.Name{"system"}, own: cgroup.Name{"runtime", "berth"},
	}
	if err := c.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := tree.moved["/system"]; !slices.Equal(got, []int{10, 11}) {
		t.Errorf("%v are in the system's cgroup; 1 is the first process, 2 the kernel's, 12 has gone", got)
	}
	if got := tree.moved["/runtime/berth"]; !slices.Equal(got, []int{40}) {
		t.Errorf("%v are in berthd's cgroup", got)
	}
	if score, err := c.proc.ReadFile("40/oom_score_adj"); err != nil || string(score) != "-999" {
		t.Errorf("berthd's score is %q, %v", score, err)
	}
	busy := errdefs.Preconditionf("device or resource busy")
	tree.root, tree.refuse = []int{10}, map[int]error{10: busy}
	if err := c.round(t.Context()); !errors.Is(err, busy) {
		t.Errorf("%v, want %v", err, busy)
	}
}

func TestSystemCgroupsWithNothingToDo(t *testing.T) {
	t.Parallel()
	tree := &roots{root: []int{10}, moved: map[string][]int{}}
	c := systemCgroups{tree: tree, proc: processes(t, 10)}
	if err := c.round(t.Context()); err != nil || len(tree.moved) > 0 {
		t.Errorf("%v, %v", tree.moved, err)
	}
}
