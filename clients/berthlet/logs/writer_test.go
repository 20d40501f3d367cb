package logs_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/berthd/berth/clients/berthlet/logs"
)

func fixed() time.Time { return time.Date(2026, 1, 2, 15, 4, 5, 123456789, time.UTC) }

const stamp = "2026-01-02T15:04:05.123456789Z "

func write(t *testing.T, limit int64, s logs.Stream, r io.Reader) (text, older string, err error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "0.log")
	f, err := logs.Open("", path, limit, fixed)
	if err != nil {
		t.Fatal(err)
	}
	copied := f.Copy(s, r)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	now, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, _ := os.ReadFile(path + ".1")
	return string(now), string(before), copied
}

func TestEntries(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 16<<10)
	for _, row := range []struct{ name, in, want string }{
		{"nothing", "", ""},
		{"a line", "hello\n", stamp + "stdout F hello\n"},
		{"lines", "a\n\nb\n", stamp + "stdout F a\n" + stamp + "stdout F \n" + stamp + "stdout F b\n"},
		{"no end of line at the end", "a\nb", stamp + "stdout F a\n" + stamp + "stdout F b\n"},
		{"a line of the longest length", long[1:] + "\n", stamp + "stdout F " + long[1:] + "\n"},
		{"a line that is longer", long + "y\nz\n", stamp + "stdout P " + long + "\n" + stamp + "stdout F y\n" + stamp + "stdout F z\n"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			for _, r := range []io.Reader{strings.NewReader(row.in), iotest.OneByteReader(strings.NewReader(row.in))} {
				got, _, err := write(t, 0, logs.Stdout, r)
				if err != nil || got != row.want {
					t.Errorf("got %.200q, %v; want %.200q", got, err, row.want)
				}
			}
		})
	}
}

func TestWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	got, _, err := write(t, 0, logs.Stderr, io.MultiReader(strings.NewReader("a\n"), iotest.ErrReader(broken)))
	if !errors.Is(err, broken) || got != stamp+"stderr F a\n" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestRotation(t *testing.T) {
	t.Parallel()
	line := stamp + "stdout F 12345\n"
	now, before, err := write(t, int64(2*len(line)), logs.Stdout, strings.NewReader(strings.Repeat("12345\n", 5)))
	if err != nil || now != line || before != line+line {
		t.Errorf("got %q after %q, %v", now, before, err)
	}
}

// TestStreamsTogether shows that entries of both streams stay whole.
func TestStreamsTogether(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "0.log")
	f, err := logs.Open("", path, 0, fixed)
	if err != nil {
		t.Fatal(err)
	}
	var both sync.WaitGroup
	for _, s := range []logs.Stream{logs.Stdout, logs.Stderr} {
		both.Go(func() {
			if err := f.Copy(s, strings.NewReader(strings.Repeat(string(s)+"\n", 500))); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	whole := regexp.MustCompile(`^\S+Z (stdout F stdout|stderr F stderr)$`)
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	for _, l := range lines {
		if !whole.MatchString(l) {
			t.Fatalf("entry %q", l)
		}
	}
	if len(lines) != 1000 {
		t.Errorf("%d entries, want 1000", len(lines))
	}
}
