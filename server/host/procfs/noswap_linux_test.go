package procfs

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/fault"
)

func TestNoSwap(t *testing.T) {
	t.Parallel()
	err := NoSwap()
	if err != nil && fault.ClassOf(err) != fault.Unsupported {
		t.Errorf("%v is of class %s", err, fault.ClassOf(err))
	}
	// What a mount says is the truth.
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
