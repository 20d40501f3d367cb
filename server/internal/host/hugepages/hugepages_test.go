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

// TestApply: pools are changed one after the other. After an error, and after a change that settle refuses, what has
// changed is settled or undone.
func TestApply(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		want    [2]uint64
		missing bool  // of the second pool
		settles error // of settle
		settled bool
		now     string
		text    string
	}{
		"both":         {[2]uint64{9, 1}, false, nil, true, "9", ""},
		"none changes": {[2]uint64{4, 4}, false, errors.New("not called"), false, "4", ""},
		"refused": {[2]uint64{9, 1}, false, errors.New("a pod has some"), true, "4",
			"the numbers before were set again: a pod has some"},
		"no such pool":                  {[2]uint64{9, 1}, true, nil, false, "4", "no huge pages of 2048 KiB on NUMA node 1"},
		"it ends early":                 {[2]uint64{900, 1}, false, nil, true, "132", context.Canceled.Error()},
		"ends early, and it is refused": {[2]uint64{900, 1}, false, errors.New("a pod has some"), true, "4", "a pod has some"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sys, file := tree(t, Pool{0, 2048}, "4\n")
			dir, ok := strings.CutSuffix(file, Pool{0, 2048}.file())
			if !ok {
				t.Fatal(file)
			}
			other := filepath.Join(dir, Pool{1, 2048}.file())
			if !row.missing {
				if err := os.MkdirAll(filepath.Dir(other), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(other, []byte("4\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if row.want[0] == 900 {
				ctx = &endsAfter{Context: ctx, left: 1}
			}
			settled := false
			changes := []Change{{Pool: Pool{0, 2048}, Want: row.want[0]}, {Pool: Pool{1, 2048}, Want: row.want[1]}}
			err := Apply(ctx, sys, changes, func() error { settled = true; return row.settles })
			if row.text == "" && err != nil || row.text != "" && (err == nil || !strings.Contains(err.Error(), row.text)) ||
				settled != row.settled {
				t.Errorf("settled %t: %v", settled, err)
			}
			if text, _ := os.ReadFile(file); strings.TrimSpace(string(text)) != row.now {
				t.Errorf("%q pages", text)
			}
		})
	}
}

// endsAfter is a context that ends after some questions.
type endsAfter struct {
	context.Context
	left int
}

func (c *endsAfter) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// TestApplyUndoesNotAll: the error says that a pool could not get its number again.
func TestApplyUndoesNotAll(t *testing.T) {
	t.Parallel()
	sys, file := tree(t, Pool{0, 2048}, "4\n")
	err := Apply(t.Context(), sys, []Change{{Pool: Pool{0, 2048}, Want: 9}}, func() error {
		return errors.Join(errors.New("a pod has some"), os.Remove(file))
	})
	if errdefs.ClassOf(err) != errdefs.Unavailable || !strings.Contains(err.Error(), "could not all be set again") {
		t.Errorf("%v", err)
	}
}
