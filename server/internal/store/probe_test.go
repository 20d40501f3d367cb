package store_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/store"
)

// TestProbe: it reports what keeps a commit from succeeding, and leaves nothing behind.
func TestProbe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "ledger.db")
	s, err := store.Open(path, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	// What a killed probe left behind does not block later ones.
	if err := os.WriteFile(filepath.Join(dir, ".probe"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Probe(); err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(path)
	if err != nil || string(after) != string(before) {
		t.Errorf("the ledger's file has changed, %v", err)
	}
	if _, err := os.Lstat(filepath.Join(dir, ".probe")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left behind: %v", err)
	}
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	if err := s.Probe(); errdefs.ClassOf(err) != errdefs.Unavailable || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without its file: %v", err)
	}
}

// TestProbeOnAReadOnlyFileSystem: the reason is the file system's.
func TestProbeOnAReadOnlyFileSystem(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := store.Open(filepath.Join(dir, "ledger.db"), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := syscall.Mount(dir, dir, "", syscall.MS_BIND, ""); err != nil {
		t.Skipf("needs the right to mount a file system: %v", err)
	}
	defer func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) }()
	if err := syscall.Mount("", dir, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if err := s.Probe(); errdefs.ClassOf(err) != errdefs.Unavailable || !errors.Is(err, syscall.EROFS) {
		t.Errorf("read-only: %v", err)
	}
}
