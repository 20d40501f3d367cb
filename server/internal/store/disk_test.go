package store_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/server/internal/store"
)

// refused checks that a file that a process has cannot be opened.
func refused(t *testing.T, path string, pid int) {
	t.Helper()
	s, err := store.Open(path, store.Options{})
	if err == nil {
		s.Close()
		t.Fatal("two stores on one file")
	}
	if want := fmt.Sprintf("pid %d", pid); errdefs.ClassOf(err) != errdefs.Conflict || !strings.Contains(err.Error(), want) {
		t.Errorf("second store: %v, want a conflict with %s", err, want)
	}
	if s, err := store.Open(path, store.Options{ReadOnly: true}); err == nil || errdefs.ClassOf(err) != errdefs.Unavailable {
		t.Errorf("reader beside a daemon: %v, %v", s, err)
	}
}

func TestModes(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a", "state")
	path := filepath.Join(dir, "berth.db")
	defer mustOpen(t, path, store.Options{}).Close()
	for name, want := range map[string]os.FileMode{dir: 0o700, path: 0o600, filepath.Join(dir, "berthd.lock"): 0o600} {
		info, err := os.Stat(name)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %v, %v, want %v", name, info.Mode().Perm(), err, want)
		}
	}
}

func TestReadOnly(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "berth.db")
	if _, err := store.Open(path, store.Options{ReadOnly: true}); errdefs.ClassOf(err) != errdefs.NotFound {
		t.Errorf("read a file that is not there: %v", err)
	}
	if names, err := os.ReadDir(filepath.Dir(path)); err != nil || len(names) != 0 {
		t.Errorf("a reader made %v, %v", names, err)
	}
	fill(t, path, 2)
	s := mustOpen(t, path, store.Options{ReadOnly: true})
	defer s.Close()
	l, _ := ledgertest.Open(t, options(s))
	d := ledger.NewDraft(l.View())
	d.RemovePod("pod-0001")
	if _, err := l.Commit(t.Context(), d); errdefs.ClassOf(err) != errdefs.Unavailable {
		t.Errorf("commit to a file that is open for reading: %v", err)
	}
}

// tmpfs mounts a small file system of memory, or skips the test where the kernel
// does not let us.
func tmpfs(t *testing.T, kib int, flags uintptr) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("berth-test", dir, "tmpfs", flags, fmt.Sprintf("size=%dk,mode=700", kib)); err != nil {
		t.Skipf("a full disk needs a tmpfs, and uid %d may not mount one: %v", os.Geteuid(), err)
	}
	t.Cleanup(func() {
		// A process that another test starts has the files of this one until it is a
		// program of its own, though they are closed here.
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		err := syscall.Unmount(dir, 0)
		for ; errors.Is(err, syscall.EBUSY) && ctx.Err() == nil; err = syscall.Unmount(dir, 0) {
			<-tick.C
		}
		if err != nil {
			t.Errorf("unmount %s: %v, %v", dir, err, syscall.Unmount(dir, syscall.MNT_DETACH))
		}
	})
	return dir
}

// A full disk refuses commits, keeps what was there, and takes commits again
// once it has space.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	dir := tmpfs(t, 512, 0)
	path := filepath.Join(dir, "berth.db")
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 256<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, path, store.Options{})
	defer func() { s.Close() }()
	l, _ := ledgertest.Open(t, options(s))
	full := fillUp(t, l, path)
	for range 5 { // failing again and again changes nothing either
		fillUp(t, l, path)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if err := step(l); err != nil {
			t.Fatalf("commit after there is space again: %v", err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = mustOpen(t, path, store.Options{})
	again, _ := ledgertest.Open(t, options(s))
	ledgertest.SameView(t, again.View(), viewAt(t, full+5))
}

// fillUp commits until the disk is full and returns the generation that fitted.
func fillUp(t *testing.T, l *ledger.Ledger, path string) uint64 {
	t.Helper()
	for range 10000 {
		before := l.View()
		err := step(l)
		if err == nil {
			continue
		}
		if errdefs.ClassOf(err) != errdefs.Unavailable || !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), path) {
			t.Fatalf("full disk: %v", err)
		}
		if l.View() != before {
			t.Error("a commit that failed shows")
		}
		return before.Generation()
	}
	t.Fatal("the disk does not fill up")
	return 0
}

// A disk that is full from the start, or fills up while the file is made:
// Unavailable with the path, and no trace of it later.
func TestDiskFullAtStart(t *testing.T) {
	t.Parallel()
	dir := tmpfs(t, 64, 0)
	path := filepath.Join(dir, "berth.db")
	ballast := filepath.Join(dir, "ballast")
	for _, free := range []int{0, 4, 8, 12} {
		if err := os.WriteFile(ballast, make([]byte, (64-free)<<10), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := store.Open(path, store.Options{}); errdefs.ClassOf(err) != errdefs.Unavailable || !errors.Is(err, syscall.ENOSPC) ||
			!strings.Contains(err.Error(), dir) {
			t.Errorf("open with %d KiB left: %v", free, err)
		}
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
	}
	s := mustOpen(t, path, store.Options{})
	defer s.Close()
	if _, _, damage, err := s.OpenLedger(t.Context(), options(nil), noon); err != nil || damage != nil {
		t.Errorf("start after a full disk: %v, damage %v", err, damage)
	}
}

func TestReadOnlyDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if os.Geteuid() == 0 {
		dir = tmpfs(t, 64, syscall.MS_RDONLY)
	} else if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(dir, "berth.db"), filepath.Join(dir, "state", "berth.db")} {
		if _, err := store.Open(path, store.Options{}); errdefs.ClassOf(err) != errdefs.Unavailable || !strings.Contains(err.Error(), dir) {
			t.Errorf("open %s: %v", path, err)
		}
	}
}

func TestStateDirectoryIsAFile(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Open(filepath.Join(dir, "berth.db"), store.Options{}); errdefs.ClassOf(err) != errdefs.Unavailable ||
		!strings.Contains(err.Error(), dir) {
		t.Errorf("open: %v", err)
	}
}
