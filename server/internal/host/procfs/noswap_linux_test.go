package procfs

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/errdefs"
)

func TestNoSwap(t *testing.T) {
	t.Parallel()
	err := NoSwap()
	if err != nil && errdefs.ClassOf(err) != errdefs.Unsupported {
		t.Errorf("%v is of class %s", err, errdefs.ClassOf(err))
	}
	// The mount's options decide.
	dir := t.TempDir()
	switch mounted := unix.Mount("tmpfs", dir, "tmpfs", 0, "noswap"); {
	case mounted == nil:
		if left := unix.Unmount(dir, 0); left != nil {
			t.Fatal(left)
		}
		if err != nil {
			t.Errorf("%v, but it can be mounted", err)
		}
	case err == nil:
		t.Errorf("nothing stands against it, but mount says %v", mounted)
	}
}

func TestNoSwapByVersion(t *testing.T) {
	t.Parallel()
	const all, some = "         0          0 4294967295\n", "0 100000 65536\n"
	for _, row := range []struct {
		release, users string
		can            bool
	}{
		{"6.4.0", all, true}, {"6.18.44-fc-v657", all, true}, {"7.0", all, true},
		{"6.3.9", all, false}, {"6.1.0-56-cloud-amd64", all, false}, {"5.15.0", all, false}, {"", all, false},
		{"6.4.0", some, false}, {"6.4.0", "", false},
	} {
		err := noSwapOf(tree(map[string]string{"self/uid_map": row.users}), row.release)
		if (err == nil) != row.can || err != nil && errdefs.ClassOf(err) != errdefs.Unsupported {
			t.Errorf("%s, %q: %v", row.release, row.users, err)
		}
	}
}
