package cgroupfs

import (
	"errors"
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

// TestRecordsOfOthers: a record in a cgroup that another program owns or can write to could be
// written by that one, and is ignored. berthd's next record is, once it is root's again.
func TestRecordsOfOthers(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skipf("uid %d cannot give cgroups away", os.Getuid())
	}
	for name, test := range map[string]struct {
		give func(path string) error
		want string
	}{
		"another owner": {func(path string) error { return os.Chown(path, 65534, -1) }, "65534"},
		"a group":       {func(path string) error { return os.Chmod(path, 0o775) }, "0775"},
		"everybody":     {func(path string) error { return os.Chmod(path, 0o757) }, "0757"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, name := recordTree(t)
			path := filepath.Join(d.mount, d.recordHierarchy().path(name))
			if err := test.give(path); err != nil {
				t.Fatal(err)
			}
			got, err := d.ReadRecord(t.Context(), name)
			if errdefs.ClassOf(err) != errdefs.PermissionDenied || got != nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%q, %v", got, err)
			}
			if err := errors.Join(os.Chown(path, 0, -1), os.Chmod(path, 0o755),
				d.WriteRecord(t.Context(), name, []byte("mine"))); err != nil {
				t.Fatal(err)
			}
			if got, err := d.ReadRecord(t.Context(), name); string(got) != "mine" || err != nil {
				t.Errorf("%q, %v", got, err)
			}
		})
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
