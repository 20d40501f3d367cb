package claimfiles

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
)

func open(t *testing.T) (*Files, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "run", "claims")
	f, err := Open(path, "boot")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f, path
}

var pod = cgroup.Name{"kubepods", "burstable", "poda"}

// TestFiles: a record is there as written, is replaced, listed and removed.
func TestFiles(t *testing.T) {
	t.Parallel()
	f, path := open(t)
	holds := func(want []byte, names ...string) {
		t.Helper()
		got, err := f.ReadRecord(t.Context(), pod)
		if err != nil || !bytes.Equal(got, want) || (got == nil) != (want == nil) {
			t.Fatalf("record %q, %v; want %q", got, err, want)
		}
		if have, err := f.Names(); err != nil || !slices.Equal(have, names) {
			t.Fatalf("names %q, %v; want %q", have, err, names)
		}
	}
	holds(nil)
	for _, record := range []string{"first", "second"} {
		if err := f.WriteRecord(t.Context(), pod, []byte(record)); err != nil {
			t.Fatal(err)
		}
		holds([]byte(record), "poda")
	}
	if info, err := os.Stat(filepath.Join(path, "poda")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	for range 2 {
		if err := f.WriteRecord(t.Context(), pod, nil); err != nil {
			t.Fatal(err)
		}
		holds(nil)
	}
	if _, err := f.ReadRecord(t.Context(), cgroup.Name{"..", "x"}); errdefs.ClassOf(err) != errdefs.Invalid {
		t.Errorf("a bad name: %v", err)
	}
	if err := f.WriteRecord(t.Context(), nil, []byte("x")); errdefs.ClassOf(err) != errdefs.Invalid {
		t.Errorf("the root: %v", err)
	}
}

// TestUnfinished: what a crash in the middle of a write leaves is no record, and in
// nobody's way.
func TestUnfinished(t *testing.T) {
	t.Parallel()
	f, path := open(t)
	if err := os.WriteFile(filepath.Join(path, ".poda"), []byte("hal"), 0o600); err != nil {
		t.Fatal(err)
	}
	if names, err := f.Names(); err != nil || len(names) != 0 {
		t.Errorf("names %q, %v", names, err)
	}
	if err := f.WriteRecord(t.Context(), pod, []byte("whole")); err != nil {
		t.Fatal(err)
	}
	if got, err := f.ReadRecord(t.Context(), pod); err != nil || string(got) != "whole" {
		t.Errorf("%q %v", got, err)
	}
}

// TestNewRecord: a record of any size is written where there is none and where there is
// one, and an empty file, which a crash leaves between its creation and the write, is no
// record.
func TestNewRecord(t *testing.T) {
	t.Parallel()
	f, path := open(t)
	for _, size := range []int{1, atOnce, atOnce + 1, largest, 7} {
		for range 2 {
			record := bytes.Repeat([]byte{'r'}, size)
			if err := f.WriteRecord(t.Context(), pod, record); err != nil {
				t.Fatal(err)
			}
			if got, err := f.ReadRecord(t.Context(), pod); err != nil || !bytes.Equal(got, record) {
				t.Errorf("%d bytes of %d, %v", len(got), size, err)
			}
			if entries, err := os.ReadDir(path); err != nil || len(entries) != 2 { // and the boot's id
				t.Errorf("left are %v, %v", entries, err)
			}
		}
		if size == atOnce {
			if err := f.WriteRecord(t.Context(), pod, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.WriteFile(filepath.Join(path, "podb"), nil, fileMode); err != nil {
		t.Fatal(err)
	}
	if got, err := f.ReadRecord(t.Context(), cgroup.Name{"kubepods", "podb"}); err != nil || got != nil {
		t.Errorf("an empty file: %q, %v", got, err)
	}
	boot, err := os.ReadFile(filepath.Join(path, bootFile))
	if err != nil {
		t.Fatal(err)
	}
	next, err := Open(path, string(boot))
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	if names, err := next.Names(); err != nil || !slices.Equal(names, []string{"poda"}) {
		t.Errorf("after a restart: %q, %v", names, err)
	}
}

// TestLinks: a link is neither read nor written through.
func TestLinks(t *testing.T) {
	t.Parallel()
	f, path := open(t)
	other := filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"poda", ".poda"} {
		if err := os.Symlink(other, filepath.Join(path, name)); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := f.ReadRecord(t.Context(), pod); err == nil {
		t.Errorf("read through a link: %q", got)
	}
	if err := f.WriteRecord(t.Context(), pod, []byte("mine")); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(other); err != nil || string(text) != "other" {
		t.Errorf("the other file: %q, %v", text, err)
	}
	if got, err := f.ReadRecord(t.Context(), pod); err != nil || string(got) != "mine" {
		t.Errorf("%q %v", got, err)
	}
}

// TestForeignDirectory: a directory that others can reach is not berthd's.
func TestForeignDirectory(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	if err := os.Chmod(path, 0o755); err != nil { //nolint:gosec // that is what is refused
		t.Fatal(err)
	}
	if _, err := Open(path, "boot"); errdefs.ClassOf(err) != errdefs.Precondition {
		t.Errorf("mode 0755: %v", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(file, "boot"); err == nil {
		t.Error("a file was taken for a directory")
	}
}

func BenchmarkWriteRecord(b *testing.B) {
	f, err := Open(filepath.Join(b.TempDir(), "claims"), "boot")
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	record := make([]byte, 1024)
	for b.Loop() {
		if err := f.WriteRecord(b.Context(), pod, record); err != nil {
			b.Fatal(err)
		}
	}
}

// TestAnotherBoot: the pods of a boot before have ended, whatever is left of their records.
func TestAnotherBoot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "claims")
	name := cgroup.Name{"kubepods", "podp"}
	for i, boot := range []string{"one", "one", "two"} {
		f, err := Open(path, boot)
		if err != nil {
			t.Fatal(err)
		}
		record, err := f.ReadRecord(t.Context(), name)
		if want := i == 1; err != nil || (record != nil) != want {
			t.Errorf("start %d, in boot %s: record %q, %v", i, boot, record, err)
		}
		if err := f.WriteRecord(t.Context(), name, []byte("record")); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
