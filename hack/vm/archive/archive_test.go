package archive

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"testing"
)

// entry is what the test reads back.
type entry struct {
	mode string
	text string
	dev  string
}

// read understands an archive as the kernel does: fields of eight hexadecimal
// digits, name and bytes each filled up to four.
func read(t *testing.T, data []byte) (order []string, entries map[string]entry) {
	t.Helper()
	entries = map[string]entry{}
	for {
		field := func(i int) int {
			n, err := strconv.ParseInt(string(data[6+8*i:14+8*i]), 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			return int(n)
		}
		if string(data[:6]) != "070701" {
			t.Fatalf("no header: %s", hex.Dump(data[:16]))
		}
		fill := func(n int) int { return (n + 3) &^ 3 }
		name := string(data[110 : 110+field(11)-1])
		start := fill(110 + field(11))
		e := entry{mode: strconv.FormatInt(int64(field(1)), 8), text: string(data[start : start+field(6)])}
		if field(9) != 0 {
			e.dev = strconv.Itoa(field(9)) + ":" + strconv.Itoa(field(10))
		}
		data = data[start+fill(field(6)):]
		if name == "TRAILER!!!" {
			return order, entries
		}
		order = append(order, name)
		entries[name] = e
	}
}

func TestEntries(t *testing.T) {
	t.Parallel()
	host := t.TempDir()
	if err := os.WriteFile(filepath.Join(host, "data"), []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("data", filepath.Join(host, "link")); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	a := New(&b)
	a.Device("/dev/console", 5, 1)
	a.Bytes("init", 0o755, []byte("x"))
	a.Tree("/src/p", host)
	a.Folder("src")
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	order, got := read(t, b.Bytes())
	if want := []string{"dev", "dev/console", "init", "src", "src/p", "src/p/data", "src/p/link"}; !reflect.DeepEqual(order, want) {
		t.Errorf("order %q, want %q", order, want)
	}
	want := map[string]entry{
		"dev": {"40755", "", ""}, "dev/console": {"20600", "", "5:1"}, "init": {"100755", "x", ""},
		"src": {"40755", "", ""}, "src/p": {"40755", "", ""},
		"src/p/data": {"100600", "12345", ""}, "src/p/link": {"120777", "data", ""},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestFirstErrorStays(t *testing.T) {
	t.Parallel()
	a := New(&bytes.Buffer{})
	a.File("a", filepath.Join(t.TempDir(), "none"))
	a.Bytes("b", 0o600, nil)
	if err := a.Close(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v, want that there is no such file", err)
	}
}
