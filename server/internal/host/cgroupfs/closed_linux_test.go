package cgroupfs

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/server/internal/host/descriptors"
)

// busyPods makes the cgroups of pods with two containers each, and uses them as berth does.
func busyPods(t *testing.T, d *Driver, top cgroup.Name, n int) (pods []cgroup.Name) {
	t.Helper()
	var values cgroup.Values
	if slices.Contains(d.facts.Controllers, "cpuset") {
		values = podValues(d.facts)
	}
	for i := range n {
		pod := append(top[:1:1], fmt.Sprint("pod", i))
		for _, name := range []cgroup.Name{pod, append(pod[:2:2], "a"), append(pod[:2:2], "b")} {
			if _, err := d.Ensure(t.Context(), cgroup.Node{Name: name, Values: values}); err != nil {
				t.Fatal(err)
			}
			if _, err := d.Procs(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
		pods = append(pods, pod)
	}
	return pods
}

// walkTwice observes the tree below a cgroup so often that what is not used is closed.
func walkTwice(t *testing.T, d *Driver, top cgroup.Name) {
	t.Helper()
	for range 2 {
		if _, err := d.Observe(t.Context(), top, -1); err != nil {
			t.Fatal(err)
		}
	}
}

// openRemoved returns the descriptors of removed cgroups.
func openRemoved(t *testing.T, below string) []string {
	t.Helper()
	return slices.DeleteFunc(openBelow(t, below), func(path string) bool { return !strings.HasSuffix(path, "(deleted)") })
}

// TestRemovedCgroupsAreClosed removes cgroups through the driver, and as runtimes do. No descriptor of one stays open.
func TestRemovedCgroupsAreClosed(t *testing.T) {
	t.Parallel()
	for _, k := range kernelTrees {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			d := k.open(t)
			top := place(t, d)
			pods := busyPods(t, d, top, 4)
			if _, err := d.Observe(t.Context(), top, -1); err != nil {
				t.Fatal(err)
			}
			for _, pod := range pods[:2] {
				if err := d.Remove(t.Context(), pod); err != nil {
					t.Fatal(err)
				}
			}
			if open := openRemoved(t, top[0]); len(open) > 0 {
				t.Errorf("after the driver has removed two pods, descriptors are open: %q", open)
			}
			// Of one pod only the containers end.
			for _, pod := range pods[2:] {
				removeAsOthersDo(t, d, append(pod[:2:2], "a"))
				removeAsOthersDo(t, d, append(pod[:2:2], "b"))
			}
			removeAsOthersDo(t, d, pods[3])
			walkTwice(t, d, top)
			if open := openRemoved(t, top[0]); len(open) > 0 {
				t.Errorf("after another program has removed cgroups, descriptors are open: %q", open)
			}
		})
	}
}

// TestReadersCloseRemoved: a driver that walks nothing, and only reads what others made, keeps no removed cgroup open.
func TestReadersCloseRemoved(t *testing.T) {
	t.Parallel()
	d, reader := kernelTrees[0].open(t), kernelTrees[0].open(t)
	top := place(t, d)
	pod := busyPods(t, d, top, 1)[0]
	if _, err := reader.Procs(t.Context(), append(pod[:2:2], "a")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []cgroup.Name{append(pod[:2:2], "a"), append(pod[:2:2], "b"), pod} {
		removeAsOthersDo(t, d, name)
	}
	walkTwice(t, d, top)
	if open := openRemoved(t, top[0]); len(open) == 0 {
		t.Error("the reader has nothing open, so it can close nothing")
	}
	for range 2 {
		CloseUnused(reader)
	}
	if open := openRemoved(t, top[0]); len(open) > 0 {
		t.Errorf("descriptors are open: %q", open)
	}
}

// TestOpenAtRest: a cgroup at rest has at most one descriptor in each hierarchy.
func TestOpenAtRest(t *testing.T) {
	t.Parallel()
	for _, k := range kernelTrees {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			d := k.open(t)
			top := place(t, d)
			living := 1 + 3*len(busyPods(t, d, top, 4))
			walkTwice(t, d, top)
			if open := openBelow(t, top[0]); len(open) > living*len(d.hierarchies) {
				t.Errorf("%d cgroups in %d hierarchies have %d descriptors: %q", living, len(d.hierarchies), len(open), open)
			}
		})
	}
}

// TestReserve: directories do not stay open if only the reserve is left, and the driver works.
func TestReserve(t *testing.T) {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if descriptors.Few() {
		t.Fatalf("of %d descriptors few are left", before.Cur)
	}
	d := kernelTrees[0].open(t)
	top := place(t, d)
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	tight := before
	tight.Cur = uint64(fd) + descriptors.Reserve
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &tight); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Fatal(err)
		}
	}()
	if !descriptors.Few() {
		t.Errorf("descriptor %d of %d is open, and few is false", fd, tight.Cur)
	}
	already := len(openBelow(t, top[0]))
	busyPods(t, d, top, 4)
	walkTwice(t, d, top)
	if open := openBelow(t, top[0]); len(open) > already {
		t.Errorf("%d more descriptors are open: %q", len(open)-already, open)
	}
}
