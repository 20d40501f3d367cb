package sysctl

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
)

// proc makes a tree in which every setting has the required value.
func proc(t *testing.T) (dir string, root *os.Root) {
	t.Helper()
	dir = t.TempDir()
	for _, s := range Wanted() {
		write(t, dir, s.Name, strconv.Itoa(s.Want)+"\n")
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return dir, root
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	file := filepath.Join(dir, "sys", name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestCompareAndSet(t *testing.T) {
	t.Parallel()
	dir, root := proc(t)
	if got, err := Compare(root.FS(), Wanted()); len(got) != 0 || err != nil {
		t.Fatalf("as wanted: %v, %v", got, err)
	}
	write(t, dir, "kernel/panic", "0\n")
	write(t, dir, "vm/overcommit_memory", "0\n")
	got, err := Compare(root.FS(), Wanted())
	want := []Difference{{Setting{"vm/overcommit_memory", 1}, 0}, {Setting{"kernel/panic", 10}, 0}}
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("got %v, %v, want %v", got, err, want)
	}
	if text := got[1].String(); text != "invalid kernel flag: kernel/panic, expected value: 10, actual value: 0" {
		t.Errorf("in words: %s", text)
	}
	if err := Set(root, got); err != nil {
		t.Fatal(err)
	}
	if got, err := Compare(root.FS(), Wanted()); len(got) != 0 || err != nil {
		t.Errorf("after Set: %v, %v", got, err)
	}
}

func TestTrouble(t *testing.T) {
	t.Parallel()
	dir, root := proc(t)
	write(t, dir, "kernel/panic", "ten\n")
	write(t, dir, "vm/panic_on_oom", "1\n")
	if err := os.Remove(filepath.Join(dir, "sys/kernel/keys/root_maxkeys")); err != nil {
		t.Fatal(err)
	}
	got, err := Compare(root.FS(), Wanted())
	if len(got) != 1 || got[0].Name != "vm/panic_on_oom" {
		t.Errorf("what can be read: %v", got)
	}
	for _, name := range []string{"kernel/panic", "kernel/keys/root_maxkeys"} {
		if errdefs.ClassOf(err) != errdefs.Unavailable || !strings.Contains(err.Error(), name) {
			t.Errorf("the error is silent about %s: %v", name, err)
		}
	}
	err = Set(root, []Difference{{Setting{"kernel/missing", 1}, 0}, got[0]})
	if errdefs.ClassOf(err) != errdefs.Unavailable || !strings.Contains(err.Error(), "kernel/missing") {
		t.Errorf("a setting that is not there: %v", err)
	}
	if left, _ := Compare(root.FS(), []Setting{got[0].Setting}); len(left) != 0 {
		t.Errorf("the other one was not written: %v", left)
	}
}
