package sysfs

import (
	"io/fs"
	"os"
	"runtime"
	"testing"

	"github.com/berthd/berth/managers/machine"
)

// TestHost discovers the machine that runs the test.
func TestHost(t *testing.T) {
	t.Parallel()
	s, err := Host()
	if err != nil {
		t.Fatal(err)
	}
	m, err := machine.New(s)
	if err != nil {
		t.Fatal(err)
	}
	// The test's own CPUs may be fewer, if it runs inside a cpuset.
	if m.CPUs().Len() < runtime.NumCPU() {
		t.Errorf("found CPUs %s, the runtime has %d", m.CPUs(), runtime.NumCPU())
	}
	if m.MemoryBytes() == 0 || m.NodeMask().IsEmpty() {
		t.Errorf("found %d bytes on nodes %s", m.MemoryBytes(), m.NodeMask())
	}
}

// TestRootFollowsInnerLinks shows what Host relies on: a root at /sys follows
// links that stay inside, lists directories in order, and refuses to leave.
func TestRootFollowsInnerLinks(t *testing.T) {
	t.Parallel()
	root, err := os.OpenRoot("/sys")
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	const cpuLink, behind = "devices/system/node/node0/cpu0", "devices/system/node/node0/cpu0/topology/core_id"
	if info, err := root.Lstat(cpuLink); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		t.Skipf("/sys/%s is not a link on this machine: %v", cpuLink, err)
	}
	if _, err := fs.ReadFile(root.FS(), behind); err != nil {
		t.Errorf("a link inside /sys is not followed: %v", err)
	}
	if _, err := root.Open("../proc/cpuinfo"); err == nil {
		t.Error("a path out of /sys was opened")
	}
}
