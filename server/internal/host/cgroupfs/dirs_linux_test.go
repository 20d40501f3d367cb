package cgroupfs

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/server/internal/host/cgroupfs/ocicgroups"
)

// A driver with open directories and files observes the same as one that has just opened
// the tree, whatever was created, removed, replaced or written in between, also if only
// some descriptors may stay open. At the end it has no descriptor of a removed cgroup.
func TestOpenDirectoriesAreCurrent(t *testing.T) {
	t.Parallel()
	for _, k := range kernelTrees {
		for _, room := range []int{1 << 12, 40, 0} {
			t.Run(fmt.Sprintf("%s/%d", k.name, room), func(t *testing.T) {
				t.Parallel()
				d := k.open(t)
				d.dirs.room = room
				c := &changing{t: t, d: d, top: place(t, d), r: rand.New(rand.NewPCG(14, uint64(room)))}
				for range 60 {
					c.change()
					c.compare()
				}
				if err := d.removeDirectories(append(c.top[:1:1], "a")); err != nil {
					t.Fatal(err)
				}
				c.compare()
				if d.dirs.room > room || room > 0 && d.dirs.room < 0 {
					t.Errorf("room for %d of %d descriptors is left", d.dirs.room, room)
				}
				if open := openBelow(t, filepath.Join(c.top[0], "a")); len(open) > 0 {
					t.Errorf("descriptors of removed cgroups are open: %q", open)
				}
			})
		}
	}
}

// A walk finds cgroups that an earlier walk began at.
func TestWalkAfterOneThatBeganInside(t *testing.T) {
	t.Parallel()
	for _, k := range kernelTrees {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			d := k.open(t)
			pod := place(t, d)
			container := append(pod[:len(pod):len(pod)], "main")
			if _, err := d.Ensure(t.Context(), cgroup.Node{Name: container}); err != nil {
				t.Fatal(err)
			}
			for _, name := range []cgroup.Name{container, pod} {
				seen, err := d.Observe(t.Context(), name, -1)
				if err != nil || seen.Find(container).State != cgroup.Valid {
					t.Errorf("from %s: %+v, %v", name, seen, err)
				}
			}
		})
	}
}

// changing makes random changes to a tree.
type changing struct {
	t   *testing.T
	d   *Driver
	top cgroup.Name
	r   *rand.Rand
}

func (c *changing) change() {
	c.t.Helper()
	name := append(c.top[:1:1], string(rune('a'+c.r.IntN(2))))
	for range c.r.IntN(3) {
		name = append(name, string(rune('a'+c.r.IntN(3))))
	}
	h := c.d.hierarchies[c.r.IntN(len(c.d.hierarchies))]
	var err error
	switch c.r.IntN(9) {
	case 8: // a walk that begins inside
		_, err = c.d.Observe(c.t.Context(), name, -1)
	case 6, 7: // the CPUs alone
		v := cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: cpuset.Of(0)}}
		if c.r.IntN(2) == 0 {
			v.CPUs = cpuset.Of(0, 1)
		}
		if !slices.Contains(c.d.facts.Controllers, "cpuset") {
			v = cgroup.Values{}
		}
		if _, err = c.d.Ensure(c.t.Context(), cgroup.Node{Name: name, Values: v}); err == nil {
			seen, looked := c.d.Observe(c.t.Context(), name, 0)
			if looked != nil || seen.Nodes[0].Values.CPUs != v.CPUs && !v.CPUs.IsEmpty() {
				c.t.Fatalf("wrote CPUs %s and observed %+v, %v", v.CPUs, seen, looked)
			}
		} else if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EINVAL) {
			err = nil // children have more CPUs, or the parent fewer
		}
	case 0, 1:
		_, err = c.d.Ensure(c.t.Context(), cgroup.Node{Name: name})
	case 2:
		err = c.d.removeDirectories(name)
	case 3: // in one hierarchy only
		err = c.d.removeTree(h, name)
	case 4: // one in the place of another
		if err = c.d.removeDirectories(name); err == nil {
			_, err = c.d.Ensure(c.t.Context(), cgroup.Node{Name: append(name[:len(name)-1:len(name)-1], "z")})
		}
	default:
		if err = c.d.removeDirectories(name); err == nil {
			_, err = c.d.Ensure(c.t.Context(), cgroup.Node{Name: name,
				Values: cgroup.Values{CPUShares: ptr(uint64(2 + c.r.IntN(100)))}.For(c.d.facts)})
		}
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		c.t.Fatal(err)
	}
}

func (c *changing) compare() {
	c.t.Helper()
	fresh, err := Open(Options{Mount: c.d.mount, Required: []string{}, Setter: ocicgroups.Setter{}})
	if err != nil {
		c.t.Fatal(err)
	}
	defer fresh.Close()
	want, err := fresh.Observe(c.t.Context(), c.top, -1)
	if err != nil {
		c.t.Fatal(err)
	}
	for range 2 {
		got, err := c.d.Observe(c.t.Context(), c.top, -1)
		if err != nil {
			c.t.Fatal(err)
		}
		for _, s := range []*cgroup.Snapshot{got, want} {
			for i := range s.Nodes {
				s.Nodes[i].MemoryUsageBytes = 0
			}
		}
		if !reflect.DeepEqual(got.Nodes, want.Nodes) {
			c.t.Fatalf("observed\n%s\nwant\n%s", names(got), names(want))
		}
	}
}

func names(s *cgroup.Snapshot) string {
	var out []string
	for _, o := range s.Nodes {
		out = append(out, fmt.Sprintf("%s %s %s %+v", o.Name, o.State, o.Reason, o.Values))
	}
	return strings.Join(out, "\n")
}

// openBelow returns the open files of this process below a cgroup.
func openBelow(t *testing.T, name string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if at, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.Contains(at, name) {
			out = append(out, at)
		}
	}
	return out
}

// A walk sees processes that have come or gone since the last one, although v1 keeps the
// list of processes of an open file for a second.
func TestWalkSeesProcesses(t *testing.T) {
	t.Parallel()
	d := kernelTrees[0].open(t)
	top := place(t, d)
	name := append(top, "c")
	if _, err := d.Ensure(t.Context(), cgroup.Node{Name: name}); err != nil {
		t.Fatal(err)
	}
	populated := func() bool {
		seen, err := d.Observe(t.Context(), top, -1)
		if err != nil {
			t.Fatal(err)
		}
		return seen.Find(name).Populated
	}
	for range 3 {
		if populated() {
			t.Fatal("processes in an empty cgroup")
		}
		p := exec.Command(os.Args[0])
		p.Env = append(os.Environ(), workerEnv+"=1") // it lives until its input ends
		if _, err := p.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		err := d.Move(t.Context(), name, p.Process.Pid)
		full := err == nil && populated()
		_ = p.Process.Kill()
		_ = p.Wait()
		if err != nil || !full {
			t.Fatalf("moved (%v), and populated is %v", err, full)
		}
	}
}
