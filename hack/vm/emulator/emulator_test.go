package emulator

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/hack/vm/arch"
	"github.com/berthd/berth/hack/vm/job"
)

// asQEMU makes the test binary replace QEMU: its value is what a VM does.
const asQEMU = "BERTH_TEST_AS_QEMU"

func TestMain(m *testing.M) {
	if manner := os.Getenv(asQEMU); manner != "" {
		talk(manner)
		return
	}
	os.Exit(m.Run())
}

// talk writes to the file that the second serial line is tied to.
func talk(manner string) {
	line := os.NewFile(3, "line")
	say := func(text string) { fmt.Fprintf(line, "%s\r\n", text) }
	if manner == "hang" {
		forever()
	}
	say(`{"Kind":"boot","Text":"Linux"}`)
	switch manner {
	case "garble":
		say("Segmentation fault")
		forever()
	case "well":
		say(`{"Kind":"done"}`)
	case "die":
		fmt.Println("qemu: out of memory")
		os.Exit(1)
	}
}

// forever waits to be killed.
func forever() {
	r, _, err := os.Pipe()
	if err == nil {
		_, err = r.Read(make([]byte, 1))
	}
	panic(err)
}

func TestRun(t *testing.T) {
	for name, c := range map[string]struct {
		boots int // as many as were tried
		heard int
		says  string // of the error; empty for none
	}{
		"well":   {1, 2, ""},
		"hang":   {attempts, 0, errHang.Error()},
		"die":    {1, 1, "qemu: out of memory"},
		"leave":  {1, 1, "before its job was done"},
		"garble": {1, 1, `"Segmentation fault" is no event`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(asQEMU, name)
			cfg := Config{QEMU: os.Args[0], Dir: t.TempDir(), BootLimit: time.Minute}
			if name == "hang" {
				cfg.BootLimit = time.Millisecond
			}
			var log strings.Builder
			cfg.Log = &log
			heard := 0
			err := Run(t.Context(), cfg, func(job.Event) { heard++ })
			if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("%v, want a word of %q", err, c.says)
			}
			if again := strings.Count(log.String(), "trying again"); again != c.boots-1 || heard != c.heard {
				t.Errorf("%d boots, %d events; want %d, %d", again+1, heard, c.boots, c.heard)
			}
		})
	}
}

func TestConsoleIsShown(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "console.log")
	if got := tail(path); got != "the console is empty" {
		t.Errorf("%q", got)
	}
	text := strings.Repeat("x", 2*consoleTail) + "Kernel panic"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := tail(path); !strings.HasSuffix(got, "Kernel panic") || len(got) > consoleTail+20 {
		t.Errorf("%d bytes", len(got))
	}
}

// TestSerialLines: the console comes first, and the events go out on the line that the architecture has for them.
func TestSerialLines(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][]string{
		"amd64": {"console=ttyS0 ", " -serial file:c -serial chardev:events"},
		"arm64": {"console=ttyAMA0 ", " -serial file:c -device pci-serial,chardev=events"},
	} {
		a, err := arch.Named(name)
		if err != nil {
			t.Fatal(err)
		}
		args := strings.Join(Config{Arch: a}.args("c"), " ")
		for _, part := range append(want, "-chardev file,id=events,path=/dev/fd/3 ") {
			if !strings.Contains(args, part) {
				t.Errorf("%s: %q lacks %q", name, args, part)
			}
		}
	}
}
