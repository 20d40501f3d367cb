package app

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
)

// roots is a tree that knows the processes of its root.
type roots struct {
	root  []int
	moved map[string][]int
	// refuse is the error for a process that cannot be moved.
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
			os.Mkdir(at, 0o755), os.WriteFile(filepath.Join(at, "stat"), []byte(strconv.Itoa(pid)+" (program) S 1 1 1 0 -1 4194560 0"),
				0o600),
			os.WriteFile(filepath.Join(at, "oom_score_adj"), []byte("0\n"), 0o600),
			os.WriteFile(filepath.Join(at, "status"), []byte("NSpid:\t"+strconv.Itoa(pid)+"\n"), 0o600),
			os.WriteFile(filepath.Join(at, "cgroup"), []byte("0::/of/"+strconv.Itoa(pid)+"\n"), 0o600),
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
		found: new(atomic.Pointer[[]*nodev1.SystemContainer]),
		tree:  tree, proc: processes(t, 1, 10, 11, 40), system: cgroup.Name{"system"},
		kept: []keptProcess{{nodev1.SystemContainer_PART_BERTHD, is(40), cgroup.Name{"runtime", "berth"}, -999}},
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

// is finds a process.
func is(pid int) func(context.Context) (int, error) {
	return func(context.Context) (int, error) { return pid, nil }
}

// TestKeptProcesses is the kubelet's ensureProcessInContainerWithOOMScore: the process is
// moved and scored, unless it is of a container; the first one stays where it is.
func TestKeptProcesses(t *testing.T) {
	t.Parallel()
	away := errdefs.Unavailablef("nobody there")
	for name, tt := range map[string]struct {
		kept    keptProcess
		inside  bool
		moved   []int
		score   string
		problem string
	}{
		"moved and scored": {keptProcess{find: is(40), in: cgroup.Name{"runtime"}, score: -999}, false, []int{40}, "-999", ""},
		"only scored":      {keptProcess{find: is(40), score: -999}, false, nil, "-999", ""},
		"only moved":       {keptProcess{find: is(40), in: cgroup.Name{"runtime"}, score: noScore}, false, []int{40}, "0\n", ""},
		"only looked at":   {keptProcess{find: is(40), score: noScore}, false, nil, "0\n", ""},
		"in a container":   {keptProcess{find: is(40), in: cgroup.Name{"runtime"}, score: -999}, true, nil, "0\n", ""},
		"made by the first": {keptProcess{part: nodev1.SystemContainer_PART_RUNTIME, find: is(1), in: cgroup.Name{"runtime"},
			score: -999}, false, nil, "0\n", "set its pid file"},
		"gone": {keptProcess{find: is(41), in: cgroup.Name{"runtime"}, score: -999}, false, nil, "0\n",
			"there is no process 41"},
		"unknown": {keptProcess{find: func(context.Context) (int, error) { return 0, away }, score: -999}, false, nil, "0\n",
			"nobody there"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tree := &roots{moved: map[string][]int{}}
			c := systemCgroups{tree: tree, proc: processes(t, 1, 40), kept: []keptProcess{tt.kept},
				found: new(atomic.Pointer[[]*nodev1.SystemContainer])}
			if tt.inside {
				if err := os.WriteFile(filepath.Join(c.proc.Name(), "40/status"), []byte("NSpid:\t40\t1\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			err := c.round(t.Context())
			if (err != nil) != (tt.problem != "") || err != nil && !strings.Contains(err.Error(), tt.problem) {
				t.Errorf("%v, want %q", err, tt.problem)
			}
			if got := tree.moved["/runtime"]; !slices.Equal(got, tt.moved) {
				t.Errorf("moved %v, want %v", got, tt.moved)
			}
			if score, err := c.proc.ReadFile("40/oom_score_adj"); err != nil || string(score) != tt.score {
				t.Errorf("score %q, %v", score, err)
			}
			if found := (*c.found.Load())[0]; (found.GetCgroup() == "/of/40") != (tt.problem == "") ||
				(found.GetProblem() != "") != (tt.problem != "") {
				t.Errorf("found %v", found)
			}
		})
	}
}

func TestPIDFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pid")
	for text, want := range map[string]int{"42\n": 42, " 7": 7, "": 0, "-1": 0, "0": 0, "many": 0} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := pidIn(file)(t.Context()); got != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	if _, err := pidIn(file + "-not")(t.Context()); errdefs.ClassOf(err) != errdefs.Unavailable {
		t.Errorf("no file: %v", err)
	}
}

func TestSystemCgroupsWithNothingToDo(t *testing.T) {
	t.Parallel()
	tree := &roots{root: []int{10}, moved: map[string][]int{}}
	c := systemCgroups{tree: tree, proc: processes(t, 10), found: new(atomic.Pointer[[]*nodev1.SystemContainer])}
	if err := c.round(t.Context()); err != nil || len(tree.moved) > 0 {
		t.Errorf("%v, %v", tree.moved, err)
	}
}
