package hugepages

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
)

func tree(t *testing.T, p Pool, text string) (*os.Root, string) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, p.file())
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return root, file
}

func TestSet(t *testing.T) {
	t.Parallel()
	for _, size := range []uint64{64, 2048, 1 << 20} {
		for _, row := range [][2]uint64{{0, 512}, {512, 0}, {7, 8}, {8, 7}, {3, 3}, {0, 900}, {900, 1}} {
			p := Pool{1, size}
			sys, file := tree(t, p, strconv.FormatUint(row[0], 10)+"\n")
			has, err := Set(t.Context(), sys, p, row[1])
			text, _ := os.ReadFile(file)
			if err != nil || has != row[1] || strings.TrimSpace(string(text)) != strconv.FormatUint(row[1], 10) {
				t.Errorf("%v of %d KiB: %d, %q, %v", row, size, has, text, err)
			}
		}
	}
}

func TestSetFails(t *testing.T) {
	t.Parallel()
	p := Pool{0, 2048}
	sys, _ := tree(t, p, "4\n")
	if _, err := Set(t.Context(), sys, Pool{1, 2048}, 1); errdefs.ClassOf(err) != errdefs.NotFound {
		t.Errorf("no such node: %v", err)
	}
	if _, err := Set(t.Context(), sys, Pool{0, 4}, 1); errdefs.ClassOf(err) != errdefs.NotFound {
		t.Errorf("no such size: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if has, err := Set(ctx, sys, p, 8); !errors.Is(err, context.Canceled) || has != 4 {
		t.Errorf("canceled: %d, %v", has, err)
	}
	sys, file := tree(t, p, "many\n")
	if _, err := Set(t.Context(), sys, p, 8); errdefs.ClassOf(err) != errdefs.Unavailable {
		t.Errorf("no number: %v", err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("4"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, file); err != nil {
		t.Fatal(err)
	}
	if _, err := Set(t.Context(), sys, p, 8); err == nil {
		t.Error("a link that leads out of /sys was followed")
	}
	if text, _ := os.ReadFile(outside); string(text) != "4" {
		t.Errorf("written outside: %q", text)
	}
}
