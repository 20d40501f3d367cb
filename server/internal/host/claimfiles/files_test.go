package claimfiles

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

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
	if info, err := os.Stat(filepath.Join(path, pageFile)); err != nil || info.Mode().Perm() != 0o600 {
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
// no one's way.
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

// TestSizes: a record of any size is written where there is none and where there is one of
// another size, is there after a restart, and leaves nothing when it is removed.
func TestSizes(t *testing.T) {
	t.Parallel()
	f, path := open(t)
	inPage := pageSize - headerSize - len("poda")
	for _, size := range []int{1, inPage, inPage + 1, largest, 7} {
		for range 2 {
			record := bytes.Repeat([]byte{'r'}, size)
			if err := f.WriteRecord(t.Context(), pod, record); err != nil {
				t.Fatal(err)
			}
			for _, reader := range []*Files{f, reopen(t, path)} {
				if got, err := reader.ReadRecord(t.Context(), pod); err != nil || !bytes.Equal(got, record) {
					t.Errorf("%d bytes of %d, %v", len(got), size, err)
				}
				if names, err := reader.Names(); err != nil || !slices.Equal(names, []string{"poda"}) {
					t.Errorf("names %q, %v", names, err)
				}
			}
		}
		if size != inPage {
			continue // the next one replaces this one
		}
		if err := f.WriteRecord(t.Context(), pod, nil); err != nil {
			t.Fatal(err)
		}
		if got, err := reopen(t, path).ReadRecord(t.Context(), pod); err != nil || got != nil {
			t.Errorf("after the removal: %q, %v", got, err)
		}
	}
	if err := f.WriteRecord(t.Context(), pod, nil); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(path); err != nil || len(entries) != 2 { // the boot's id and the pages
		t.Errorf("left are %v, %v", entries, err)
	}
}

// reopen opens the directory as the next berthd of the same boot does.
func reopen(t *testing.T, path string) *Files {
	t.Helper()
	f, err := Open(path, "boot")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// TestLeftOvers: what a crash leaves between two steps is decided at the next start. An
// empty file is no record, a file counts more than a page, and a page that is none is
// free.
func TestLeftOvers(t *testing.T) {
	t.Parallel()
	f, path := open(t)
	for i, uid := range []string{"poda", "podb", "podc", "podd"} {
		if err := f.WriteRecord(t.Context(), cgroup.Name{"kubepods", uid}, []byte{byte('a' + i)}); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range map[string]string{"pode": "", "poda": "file"} {
		if err := os.WriteFile(filepath.Join(path, name), []byte(content), fileMode); err != nil {
			t.Fatal(err)
		}
	}
	pages, err := os.OpenFile(filepath.Join(path, pageFile), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer pages.Close()
	page := make([]byte, pageSize)
	if _, err := pages.ReadAt(page, 2*pageSize); err != nil { // of podc
		t.Fatal(err)
	}
	for number, content := range map[int64]string{1: "noise", 4: string(page), 5: string(page[:headerSize])} {
		if _, err := pages.WriteAt([]byte(content), number*pageSize); err != nil {
			t.Fatal(err)
		}
	}
	next := reopen(t, path)
	if names, err := next.Names(); err != nil || !slices.Equal(names, []string{"poda", "podc", "podd"}) {
		t.Errorf("names %q, %v", names, err)
	}
	for uid, want := range map[string]string{"poda": "file", "podb": "", "podc": "c", "podd": "d", "pode": ""} {
		if got, err := next.ReadRecord(t.Context(), cgroup.Name{"kubepods", uid}); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v, want %q", uid, got, err, want)
		}
	}
	if _, err := pages.WriteAt([]byte("noise"), 2*pageSize); err != nil {
		t.Fatal(err)
	}
	if got, err := next.ReadRecord(t.Context(), cgroup.Name{"kubepods", "podc"}); err == nil {
		t.Errorf("a page that somebody wrote over: %q", got)
	}
}

// TestRecordsProperty compares the records with a map, over restarts and with records of
// all sizes, and the file with what the most records at a time need.
func TestRecordsProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		path := filepath.Join(t.TempDir(), "claims")
		f, err := Open(path, "boot")
		if err != nil {
			rt.Fatal(err)
		}
		model := map[string]string{}
		most := 0
		for range rapid.IntRange(1, 300).Draw(rt, "steps") {
			uid := rapid.StringMatching("pod[a-z]{1,2}").Draw(rt, "uid")
			var record []byte
			switch rapid.IntRange(0, 9).Draw(rt, "step") {
			case 0:
				if err := f.Close(); err != nil {
					rt.Fatal(err)
				}
				if f, err = Open(path, "boot"); err != nil {
					rt.Fatal(err)
				}
			case 1, 2, 3, 4:
				if model[uid] != "" { // most pods are new ones
					continue
				}
				fallthrough
			case 5:
				size := rapid.SampledFrom([]int{1, 900, pageSize - headerSize - 5, pageSize, 9000}).Draw(rt, "size")
				record = bytes.Repeat([]byte(uid[3:]), size)[:size]
				fallthrough
			default:
				if err := f.WriteRecord(t.Context(), cgroup.Name{uid}, record); err != nil {
					rt.Fatal(err)
				}
				if delete(model, uid); record != nil {
					model[uid] = string(record)
				}
			}
			most = max(most, len(model))
		}
		names, err := f.Names()
		if err != nil || !slices.Equal(names, slices.Sorted(maps.Keys(model))) {
			rt.Fatalf("names %q, %v, want %q", names, err, slices.Sorted(maps.Keys(model)))
		}
		for _, uid := range append(names, "podnobody") {
			if got, err := f.ReadRecord(t.Context(), cgroup.Name{uid}); err != nil || string(got) != model[uid] {
				rt.Fatalf("%s: %d bytes, %v, want %d", uid, len(got), err, len(model[uid]))
			}
		}
		if info, err := os.Stat(filepath.Join(path, pageFile)); err != nil || info.Size() > int64(most)*pageSize {
			rt.Fatalf("%d bytes, %v: want at most those of %d records", info.Size(), err, most)
		}
		if err := f.Close(); err != nil {
			rt.Fatal(err)
		}
	})
}

// TestPagesAreGivenBack: the memory of many pods does not stay when they have gone.
func TestPagesAreGivenBack(t *testing.T) {
	t.Parallel()
	f, path := open(t)
	write := func(record []byte) {
		t.Helper()
		for i := range 3 * tooManyFree {
			if err := f.WriteRecord(t.Context(), cgroup.Name{fmt.Sprint("pod", i)}, record); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 2 {
		write([]byte("record"))
		write(nil)
	}
	info, err := os.Stat(filepath.Join(path, pageFile))
	if err != nil || info.Size() >= tooManyFree*pageSize {
		t.Errorf("%d bytes, %v", info.Size(), err)
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
	if got, err := f.ReadRecord(t.Context(), pod); err != nil || got != nil {
		t.Errorf("read through a link: %q, %v", got, err)
	}
	mine := bytes.Repeat([]byte("mine"), pageSize) // in a file
	if err := f.WriteRecord(t.Context(), pod, mine); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(other); err != nil || string(text) != "other" {
		t.Errorf("the other file: %q, %v", text, err)
	}
	if got, err := f.ReadRecord(t.Context(), pod); err != nil || !bytes.Equal(got, mine) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	pages := filepath.Join(path, pageFile)
	if err := errors.Join(os.Remove(pages), os.Symlink(other, pages)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, "boot"); err == nil {
		t.Error("pages behind a link")
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

// BenchmarkRecord writes the record of a new pod and removes it; with TMPDIR=/dev/shm it
// does so where a daemon does.
func BenchmarkRecord(b *testing.B) {
	f, err := Open(filepath.Join(b.TempDir(), "claims"), "boot")
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	record := make([]byte, 1024)
	b.ReportAllocs()
	for b.Loop() {
		if err := errors.Join(f.WriteRecord(b.Context(), pod, record), f.WriteRecord(b.Context(), pod, nil)); err != nil {
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

// TestDirectoryGoesMeanwhile: whatever becomes of the directory while it is open, the next
// call makes it again with the records in pages, and nothing is written where no start finds it.
func TestDirectoryGoesMeanwhile(t *testing.T) {
	t.Parallel()
	other, large := cgroup.Name{"kubepods", "podb"}, cgroup.Name{"kubepods", "podlarge"}
	for name, harm := range map[string]func(path string) error{
		"removed":      os.RemoveAll,
		"moved away":   func(path string) error { return os.Rename(path, path+"-old") },
		"replaced":     func(path string) error { return errors.Join(os.RemoveAll(path), os.Mkdir(path, 0o700)) },
		"pages only":   func(path string) error { return os.Remove(filepath.Join(path, pageFile)) },
		"around it":    func(path string) error { return os.RemoveAll(filepath.Dir(path)) },
		"pages, moved": func(path string) error { return os.Rename(filepath.Join(path, pageFile), filepath.Join(path, ".x")) },
	} {
		for _, call := range []string{"read", "write", "check"} {
			t.Run(name+", "+call, func(t *testing.T) {
				t.Parallel()
				f, path := open(t)
				must := func(err error) {
					t.Helper()
					if err != nil {
						t.Fatal(err)
					}
				}
				must(f.WriteRecord(t.Context(), pod, []byte("a record")))
				must(f.WriteRecord(t.Context(), large, bytes.Repeat([]byte("l"), 2*pageSize)))
				must(harm(path))
				switch call {
				case "read":
					_, err := f.ReadRecord(t.Context(), other)
					must(err)
				case "write":
					must(f.WriteRecord(t.Context(), other, []byte("another")))
				case "check":
					renewed, err := f.Check()
					if must(err); renewed != 1 {
						t.Errorf("renewed %d times, want once", renewed)
					}
				}
				for _, from := range []string{"the same", "a start"} {
					if from == "a start" {
						var err error
						must(f.Close())
						f, err = Open(path, "boot")
						must(err)
						t.Cleanup(func() { _ = f.Close() })
					}
					if got, err := f.ReadRecord(t.Context(), pod); err != nil || string(got) != "a record" {
						t.Errorf("%s: %q, %v", from, got, err)
					}
					want := ""
					if call == "write" {
						want = "another"
					}
					if got, err := f.ReadRecord(t.Context(), other); err != nil || string(got) != want {
						t.Errorf("%s: %q, %v; want %q", from, got, err, want)
					}
					// It is there, or known to be missing.
					if got, err := f.ReadRecord(t.Context(), large); err != nil || got != nil && len(got) != 2*pageSize {
						t.Errorf("%s: %d bytes, %v", from, len(got), err)
					}
				}
			})
		}
	}
}

// TestForeignDirectoryMeanwhile: a directory that others can write to does not get the records.
func TestForeignDirectoryMeanwhile(t *testing.T) {
	t.Parallel()
	f, path := open(t)
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o777); err != nil { //nolint:gosec // that is what is refused
		t.Fatal(err)
	}
	if err := f.WriteRecord(t.Context(), pod, []byte("x")); errdefs.ClassOf(err) != errdefs.Precondition {
		t.Errorf("written: %v", err)
	}
	if _, err := f.Check(); errdefs.ClassOf(err) != errdefs.Precondition {
		t.Errorf("checked: %v", err)
	}
}
