package try

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestMountStays: what is mounted in the place is not removed, also where the path of the place has a link.
func TestMountStays(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	top := t.TempDir()
	source, link := filepath.Join(top, "source"), filepath.Join(top, "link")
	write(t, source, "file", "x")
	symlink(t, top, link)
	p, err := create(filepath.Join(link, placeName))
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	target := filepath.Join(top, placeName, "a b")
	mkdir(t, target, 0o700)
	runtime.LockOSThread() // and not unlocked: the thread ends with its namespace
	if err := syscall.Unshare(syscall.CLONE_FS | syscall.CLONE_NEWNS); err != nil {
		t.Skipf("a mount namespace of its own is not allowed: %v", err)
	}
	err = syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, "")
	if err := errors.Join(err, syscall.Mount(source, target, "", syscall.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	if err := p.remove(t.Context()); err == nil || !strings.Contains(err.Error(), "umount "+target) {
		t.Error(err)
	}
	if left := listed(t, source); len(left) != 1 {
		t.Errorf("%q is left of what is mounted", left)
	}
	if err := errors.Join(syscall.Unmount(target, 0), p.remove(t.Context())); err != nil {
		t.Error(err)
	}
	if left := listed(t, top); !slices.Equal(left, []string{link, source, filepath.Join(source, "file")}) {
		t.Errorf("left: %q", left)
	}
}
