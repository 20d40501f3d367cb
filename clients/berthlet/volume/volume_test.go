//go:build linux

package volume_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/clients/berthlet/volume"
	"github.com/berthd/berth/managers/errdefs"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// needMounts skips tests that need the right to mount, with the kernel's error.
func needMounts(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("needs the right to mount: %v", err)
	}
	must(t, unix.Unmount(dir, unix.MNT_DETACH))
}

var holder = volume.Holder{PodUID: "u", Container: "c"}

// open makes pins, and checks in the end that none is left.
func open(t *testing.T) (pins volume.Pins, dir string) {
	t.Helper()
	needMounts(t)
	dir = t.TempDir()
	pins = volume.NewPins(filepath.Join(dir, "pins"))
	t.Cleanup(func() {
		must(t, pins.ReleasePod("u"))
		text, err := os.ReadFile("/proc/self/mountinfo")
		must(t, err)
		if strings.Contains(string(text), dir) {
			t.Errorf("a mount is left below %s", dir)
		}
		if uids, err := pins.Holders(); err != nil || len(uids) > 0 {
			t.Errorf("left: %v, %v", uids, err)
		}
	})
	return pins, dir
}

// TestPin has the name of what was pinned lead elsewhere afterwards.
func TestPin(t *testing.T) {
	t.Parallel()
	pins, dir := open(t)
	v := filepath.Join(dir, "v")
	must(t, os.MkdirAll(filepath.Join(v, "d"), 0o755))
	must(t, os.WriteFile(filepath.Join(v, "d", "file"), []byte("x"), 0o644))
	for i, path := range []string{"d", "d/file", "made/deep"} {
		place, err := pins.Pin(holder, i, v, path)
		must(t, err)
		want, err := os.Lstat(filepath.Join(v, path))
		must(t, err)
		must(t, os.Rename(filepath.Join(v, path), filepath.Join(v, "away")))
		must(t, os.Symlink("/", filepath.Join(v, path)))
		if got, err := os.Stat(place); err != nil || !os.SameFile(got, want) {
			t.Errorf("%s leads elsewhere: %v", path, err)
		}
		must(t, os.Remove(filepath.Join(v, path)))
		must(t, os.Rename(filepath.Join(v, "away"), filepath.Join(v, path)))
	}
	// Another pin of the same number takes the place of the first.
	place, err := pins.Pin(holder, 0, v, "d/file")
	must(t, err)
	if text, err := os.ReadFile(place); err != nil || string(text) != "x" {
		t.Errorf("%q, %v", text, err)
	}
	must(t, pins.Release(holder))
	must(t, pins.Release(holder))
	if text, err := os.ReadFile(filepath.Join(v, "d", "file")); err != nil || string(text) != "x" {
		t.Errorf("the end of a pin has ended what is in the volume: %q, %v", text, err)
	}
}

// TestPinRefused names what is not mounted, and leaves nothing.
func TestPinRefused(t *testing.T) {
	t.Parallel()
	pins, dir := open(t)
	v := filepath.Join(dir, "v")
	must(t, os.Mkdir(v, 0o777))
	must(t, os.Symlink("/etc", filepath.Join(v, "link")))
	must(t, syscall.Mkfifo(filepath.Join(v, "pipe"), 0o644))
	for path, want := range map[string]string{
		"link": "symbolic link", "link/ssl": "symbolic link", "pipe": "expected a directory", "../x": `without ".."`,
	} {
		_, err := pins.Pin(holder, 0, v, path)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `subPath "`+path) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
	if _, err := pins.Pin(holder, 0, filepath.Join(dir, "none"), "x"); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("a volume that is not there: %v", err)
	}
}

// TestPinRace exchanges a directory and a link while it is pinned. Each pin is of the
// directory, or is refused.
func TestPinRace(t *testing.T) {
	t.Parallel()
	pins, dir := open(t)
	v := filepath.Join(dir, "v")
	must(t, os.MkdirAll(filepath.Join(v, "a", "data"), 0o755))
	must(t, os.MkdirAll(filepath.Join(dir, "outside", "data"), 0o755))
	must(t, os.Symlink(filepath.Join(dir, "outside"), filepath.Join(v, "link")))
	want, err := os.Stat(filepath.Join(v, "a", "data"))
	must(t, err)
	done := make(chan struct{})
	var swapper sync.WaitGroup
	swapper.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if err := unix.Renameat2(unix.AT_FDCWD, filepath.Join(v, "a"), unix.AT_FDCWD, filepath.Join(v, "link"),
				unix.RENAME_EXCHANGE); err != nil {
				t.Error(err)
				return
			}
		}
	})
	pinned, refused := 0, 0
	for range 3000 {
		place, err := pins.Pin(holder, 0, v, "a/data")
		if err != nil {
			if errdefs.ClassOf(err) != errdefs.PermissionDenied {
				t.Errorf("refused for another reason: %v", err)
				break
			}
			refused++
			continue
		}
		if got, err := os.Stat(place); err != nil || !os.SameFile(got, want) {
			t.Errorf("a pin of something else: %v", err)
			break
		}
		pinned++
	}
	close(done)
	swapper.Wait()
	if pinned == 0 || refused == 0 {
		t.Errorf("%d pinned and %d refused: the test has lost its subject", pinned, refused)
	}
}

func TestMakeEmpty(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, volume.MakeEmpty(filepath.Join(dir, "pod/volumes/v"), nil))
	gid := int64(os.Getgid())
	must(t, volume.MakeEmpty(filepath.Join(dir, "pod/volumes/w"), &gid))
	for name, want := range map[string]fs.FileMode{"v": 0o777, "w": 0o777 | fs.ModeSetgid} {
		path := filepath.Join(dir, "pod/volumes", name)
		if info, err := os.Stat(path); err != nil || info.Mode()&^fs.ModeDir != want {
			t.Errorf("%s is %v, %v", name, info.Mode(), err)
		}
		// What the pod has made of it stays.
		must(t, os.Chmod(path, 0o711))
		must(t, volume.MakeEmpty(path, nil))
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o711 {
			t.Errorf("%s is %v, %v", name, info.Mode(), err)
		}
	}
}
