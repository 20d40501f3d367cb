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
	if err := trust.Check(target); errdefs.ClassOf(err) != errdefs.Precondition || !strings.Contains(err.Error(), "was removed while it is mounted") {
		t.Errorf("got %v", err)
	}
	must(t, syscall.Unmount(target, syscall.MNT_DETACH))
}

// TestReadOnlyMount: in a directory of a file system that is mounted read-only nobody writes, whatever its mode: the
// volume of a Kubernetes ConfigMap has the mode 0777.
func TestReadOnlyMount(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	top := t.TempDir()
	source, target := filepath.Join(top, "source"), filepath.Join(top, "target")
	must(t, errors.Join(os.Mkdir(source, 0o755), os.Mkdir(target, 0o755), os.WriteFile(filepath.Join(source, "file"), nil, 0o644), os.Chmod(source, 0o777)))
	runtime.LockOSThread() // and not unlocked: the thread ends with its namespace
	if err := syscall.Unshare(syscall.CLONE_FS | syscall.CLONE_NEWNS); err != nil {
		t.Skipf("a mount namespace of its own is not allowed: %v", err)
	}
	must(t, syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
	must(t, syscall.Mount(source, target, "", syscall.MS_BIND, ""))
	file := filepath.Join(target, "file")
	if err := trust.CheckFile(file); errdefs.ClassOf(err) != errdefs.Precondition {
		t.Errorf("mounted for writing: %v", err)
	}
	must(t, syscall.Mount("", target, "", syscall.MS_REMOUNT|syscall.MS_BIND|syscall.MS_RDONLY, ""))
	must(t, trust.CheckFile(file))
	must(t, os.Chown(source, 65534, 65534))
	if err := trust.CheckFile(file); errdefs.ClassOf(err) != errdefs.Precondition || !strings.Contains(err.Error(), "belongs to user 65534") {
		t.Errorf("of another user, who may have another mount: %v", err)
	}
	must(t, syscall.Unmount(target, syscall.MNT_DETACH))
}
