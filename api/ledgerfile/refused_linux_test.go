package ledgerfile_test

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/berthd/berth/api/ledgerfile"
	"github.com/berthd/berth/managers/errdefs"
)

// TestReadRefuses: what is no ledger, without waiting and without reading all of it.
func TestReadRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pipe, huge := filepath.Join(dir, "pipe"), filepath.Join(dir, "huge")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(huge, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(huge, 10<<30); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]errdefs.Class{
		filepath.Join(dir, "none"): errdefs.NotFound, dir: errdefs.Precondition, pipe: errdefs.Precondition, huge: errdefs.Precondition,
		"/dev/zero": errdefs.Precondition,
	} {
		if _, _, err := ledgerfile.Read(t.Context(), path); errdefs.ClassOf(err) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	path, commit := create(t)
	commit(1)
	if _, _, err := ledgerfile.Read(ended, path); errdefs.ClassOf(err) != errdefs.Canceled {
		t.Errorf("after the end of the context: %v", err)
	}
}
