package trust_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/managers/errdefs"
)

// TestRemovedMount: a mount of a directory that was removed is an error, and no empty directory.
func TestRemovedMount(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	top := t.TempDir()
	source, target := filepath.Join(top, "source"), filepath.Join(top, "target")
	must(t, errors.Join(os.Mkdir(source, 0o755), os.Mkdir(target, 0o755)))
	runtime.LockOSThread() // and not unlocked: the thread ends with its namespace
	if err := syscall.Unshare(syscall.CLONE_FS | syscall.CLONE_NEWNS); err != nil {
		t.Skipf("a mount namespace of its own is not allowed: %v", err)
	}
	must(t, syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
	must(t, syscall.Mount(source, target, "", syscall.MS_BIND, ""))
	must(t, trust.Check(target))
	must(t, os.Remove(source))
	if err := trust.Check(target); errdefs.ClassOf(err) != errdefs.Precondition ||
		!strings.Contains(err.Error(), "was removed while it is mounted") {
		t.Errorf("got %v", err)
	}
	must(t, syscall.Unmount(target, syscall.MNT_DETACH))
}

// TestConfigMapVolume: the directory of a ConfigMap's volume, which has the mode 0777, is trusted where it is mounted read-only. Another
// directory with this mode is not, and no file that others can write: they may have it without the mount.
func TestConfigMapVolume(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	top := t.TempDir()
	volume, other := filepath.Join(top, "pods/5f/volumes/kubernetes.io~configmap/config"), filepath.Join(top, "pods/5f/volumes/configmap")
	target := filepath.Join(top, "target")
	must(t, os.Mkdir(target, 0o755))
	runtime.LockOSThread() // and not unlocked: the thread ends with its namespace
	if err := syscall.Unshare(syscall.CLONE_FS | syscall.CLONE_NEWNS); err != nil {
		t.Skipf("a mount namespace of its own is not allowed: %v", err)
	}
	must(t, syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
	defer func() { _ = syscall.Unmount(target, syscall.MNT_DETACH) }() // where the test has failed
	file := filepath.Join(target, "file")
	refused := func(what, reason string) {
		t.Helper()
		if err := trust.CheckFile(file); errdefs.ClassOf(err) != errdefs.Precondition || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, source := range []string{volume, other} {
		must(t, errors.Join(os.MkdirAll(source, 0o755), os.WriteFile(filepath.Join(source, "file"), nil, 0o644), os.Chmod(source, 0o777)))
		must(t, syscall.Mount(source, target, "", syscall.MS_BIND, ""))
		refused("mounted for writing", "by everybody")
		must(t, syscall.Mount("", target, "", syscall.MS_REMOUNT|syscall.MS_BIND|syscall.MS_RDONLY, ""))
		if source == other {
			refused("no volume", "by everybody")
		} else {
			must(t, trust.CheckFile(file))
			must(t, os.Chmod(filepath.Join(source, "file"), 0o666))
			refused("a file that all can write", "by everybody")
			must(t, errors.Join(os.Chmod(filepath.Join(source, "file"), 0o644), os.Chown(source, 65534, 65534)))
			refused("of another user", "belongs to user 65534")
		}
		must(t, syscall.Unmount(target, syscall.MNT_DETACH))
	}
}
