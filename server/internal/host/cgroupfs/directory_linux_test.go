package cgroupfs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
)

// TestReplacedCgroup: the directory of a cgroup that another program has removed and made
// again is not mistaken for the new one.
func TestReplacedCgroup(t *testing.T) {
	t.Parallel()
	for _, k := range kernelTrees {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			d := k.open(t)
			pod := append(place(t, d), "pod")
			container := append(pod[:2:2], "container")
			for range 2 {
				if _, err := d.Ensure(t.Context(), cgroup.Node{Name: container}); err != nil {
					t.Fatal(err)
				}
				seen, err := d.Observe(t.Context(), pod, -1)
				if err != nil || len(seen.Nodes) != 2 || seen.Nodes[1].State != cgroup.Valid || seen.Nodes[1].Values.Frozen == nil {
					t.Fatalf("%+v, %v", seen, err)
				}
				removeAsOthersDo(t, d, container)
				removeAsOthersDo(t, d, pod)
				if seen, err = d.Observe(t.Context(), pod, -1); err != nil || len(seen.Nodes) != 1 || seen.Nodes[0].State != cgroup.Absent {
					t.Fatalf("after the removal: %+v, %v", seen, err)
				}
			}
		})
	}
}

// CPUs alone are written to the cgroup that has the name now, through its open directory if
// that is still the one.
func TestCPUsOfAReplacedCgroup(t *testing.T) {
	t.Parallel()
	d := kernelTrees[0].open(t)
	name := append(place(t, d), "container")
	for _, how := range []string{"made", "open", "replaced", "removed"} {
		if how == "replaced" || how == "removed" {
			removeAsOthersDo(t, d, name)
		}
		if how == "made" || how == "replaced" {
			other := kernelTrees[0].open(t)
			if _, err := other.Ensure(t.Context(), cgroup.Node{Name: name}); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			for _, cpus := range []cpuset.Set{cpuset.Of(0), cpuset.Of(0, 1)} {
				node := cgroup.Node{Name: name, Values: cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: cpus}}}
				created, err := d.Ensure(t.Context(), node)
				if err != nil || created != (how == "removed") {
					t.Fatalf("%s: created %t, %v", how, created, err)
				}
				if how == "removed" {
					how = "open"
				}
				seen, err := d.Observe(t.Context(), name[:1], -1)
				if err != nil || len(seen.Nodes) != 2 || seen.Nodes[1].State != cgroup.Valid || seen.Nodes[1].Values.CPUs != cpus {
					t.Fatalf("%s: %+v, %v; want CPUs %s", how, seen, err, cpus)
				}
			}
		}
	}
}

// removeAsOthersDo removes a cgroup without the driver.
func removeAsOthersDo(t *testing.T, d *Driver, name cgroup.Name) {
	t.Helper()
	for _, h := range d.hierarchies {
		if err := os.Remove(d.absolute(h, name)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFewDescriptors: where no more directories may stay open, everything works, and
// none does.
func TestFewDescriptors(t *testing.T) {
	t.Parallel()
	d := kernelTrees[0].open(t)
	d.root.room.Store(0)
	name := append(place(t, d), "pod", "container")
	if created, err := d.Ensure(t.Context(), cgroup.Node{Name: name}); err != nil || !created {
		t.Fatalf("created %t, %v", created, err)
	}
	seen, err := d.Observe(t.Context(), name[:1], -1)
	if err != nil || len(seen.Nodes) != 3 || len(d.root.below) > 0 {
		t.Errorf("%+v, %v, and %d directories are open", seen, err, len(d.root.below))
	}
}

// TestNoPathFromTheMount: a second look at a tree goes through directories that are
// open. The tree of this test has moved meanwhile, so no path to it is right.
func TestNoPathFromTheMount(t *testing.T) {
	t.Parallel()
	d := plainV2(t, "pods")
	for _, dir := range []string{"pods/pod", "pods/pod/container"} {
		path := filepath.Join(d.mount, dir)
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(path, "cgroup.controllers"), []byte(strings.Join(v2Controllers, " ")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	look := func() int {
		t.Helper()
		seen, err := d.Observe(t.Context(), nil, -1)
		if err != nil {
			t.Fatal(err)
		}
		return len(seen.Nodes)
	}
	if n := look(); n != 4 {
		t.Fatalf("%d cgroups, want 4", n)
	}
	if err := os.Rename(d.mount, d.mount+"-moved"); err != nil {
		t.Fatal(err)
	}
	if n := look(); n != 4 {
		t.Errorf("%d cgroups of the tree that moved, want 4", n)
	}
}

// TestControlFiles: one is never made, and an error names the file.
func TestControlFiles(t *testing.T) {
	t.Parallel()
	dir, err := openMount(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dir.Close() })
	path := filepath.Join(dir.Name(), "cpuset.cpus")
	if err := dir.write("cpuset.cpus", "0"); !gone(err) || !strings.Contains(err.Error(), path) {
		t.Errorf("writing to nothing gave %v", err)
	}
	if _, err := dir.read("cpuset.cpus"); !gone(err) || !strings.Contains(err.Error(), path) {
		t.Errorf("reading nothing gave %v", err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, length := range []int{1, 4096, 5000, 8192} {
		long := strings.Repeat("7", length)
		if err := dir.write("cpuset.cpus", long); err != nil {
			t.Fatal(err)
		}
		if got, err := dir.read("cpuset.cpus"); err != nil || got != long {
			t.Errorf("read back %d bytes, %v, want %d", len(got), err, len(long))
		}
	}
	if err := os.Symlink("/etc/hostname", path+"-link"); err != nil {
		t.Fatal(err)
	}
	if err := dir.write("cpuset.cpus-link", "1"); err == nil {
		t.Error("a link out of the directory was followed")
	}
}
