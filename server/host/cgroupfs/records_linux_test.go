package cgroupfs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
)

// recordTree is the system's tree with a pod's cgroup.
func recordTree(t *testing.T) (*Driver, cgroup.Name) {
	t.Helper()
	d := kernelTrees[0].open(t)
	name := append(place(t, d), "poda")
	if _, err := d.Ensure(t.Context(), cgroup.Node{Name: name}); err != nil {
		t.Fatal(err)
	}
	if err := d.WriteRecord(t.Context(), name, []byte("record")); errdefs.ClassOf(err) == errdefs.Unsupported {
		t.Skipf("the kernel keeps no attributes of cgroups: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	return d, name
}

// TestRecordOfAnotherOwner: a record in a cgroup that somebody else owns could be
// written by that one, and is not believed.
func TestRecordOfAnotherOwner(t *testing.T) {
	t.Parallel()
	d, name := recordTree(t)
	if os.Getuid() != 0 {
		t.Skipf("uid %d cannot give cgroups away", os.Getuid())
	}
	if err := os.Chown(filepath.Join(d.mount, d.recordHierarchy().path(name)), 65534, -1); err != nil {
		t.Fatal(err)
	}
	got, err := d.ReadRecord(t.Context(), name)
	if errdefs.ClassOf(err) != errdefs.PermissionDenied || got != nil || !strings.Contains(err.Error(), "65534") {
		t.Errorf("%q, %v", got, err)
	}
}

// TestRecordHierarchy: on v1 the record is in the cpuset hierarchy and in no other.
func TestRecordHierarchy(t *testing.T) {
	t.Parallel()
	d, name := recordTree(t)
	buf := make([]byte, 64)
	for _, h := range d.hierarchies {
		n, err := unix.Getxattr(filepath.Join(d.mount, h.path(name)), cgroup.RecordAttribute, buf)
		if is := err == nil && n > 0; is != h.has("cpuset") && d.facts.Version == cgroup.V1 {
			t.Errorf("hierarchy %s %q: record %t, %v", h.dir, h.controllers, is, err)
		}
	}
}
