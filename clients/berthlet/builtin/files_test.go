//go:build linux && cgo

package builtin

import (
	"errors"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestKeptOrUnknown: a keeper that is gone is distinguished from one of unknown state: the container of one that
// is gone is ended.
func TestKeptOrUnknown(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if alive, err := kept(dir); alive || err != nil {
		t.Errorf("without a pipe: %v, %v", alive, err)
	}
	pipe := filepath.Join(dir, lifePipe)
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if alive, err := kept(dir); alive || err != nil {
		t.Errorf("nobody holds the pipe: %v, %v", alive, err)
	}
	keeper, err := unix.Open(pipe, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(keeper) }()
	if alive, err := kept(dir); !alive || err != nil {
		t.Errorf("the keeper holds the pipe: %v, %v", alive, err)
	}
	other := t.TempDir()
	if err := unix.Mkdir(filepath.Join(other, lifePipe), 0o700); err != nil {
		t.Fatal(err)
	}
	if alive, err := kept(other); alive || !errors.Is(err, syscall.EISDIR) {
		t.Errorf("the pipe cannot be read: %v, %v", alive, err)
	}
}
