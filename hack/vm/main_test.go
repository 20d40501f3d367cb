package main

import (
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/hack/vm/job"
)

// TestLines puts lines together that arrive in pieces.
func TestLines(t *testing.T) {
	t.Parallel()
	var said lines
	var all []string
	for _, e := range []job.Event{
		{Kind: job.Start, Text: "no line\n"}, {Kind: job.Output, Text: "plug c"}, {Kind: job.Output},
		{Kind: job.Output, Text: "pu4\n\nkeep"},
		{Kind: job.Output, Text: " 1\nrest"},
	} {
		all = append(all, said.of(e)...)
	}
	if want := []string{"plug cpu4", "", "keep 1"}; !slices.Equal(all, want) {
		t.Errorf("%q, want %q", all, want)
	}
}

// TestArchitecture: what another architecture does not have is refused by name.
func TestArchitecture(t *testing.T) {
	t.Parallel()
	foreign := "arm64"
	if runtime.GOARCH == foreign {
		foreign = "amd64"
	}
	o, machine, err := parse([]string{"-arch", "arm64", "-nodes", "2", "./x"}, io.Discard)
	if err != nil || o.arch.Name != "arm64" || !strings.HasPrefix(machine.Machine, "virt") {
		t.Errorf("%+v, %+v, %v", o.arch, machine, err)
	}
	for says, args := range map[string][]string{
		"-shape contradicts -arch arm64":    {"-arch", "arm64", "-shape", "n4"},
		"-cgo contradicts -arch " + foreign: {"-arch", foreign, "-cgo"},
		`-arch: architecture "riscv64"`:     {"-arch", "riscv64"},
	} {
		if _, _, err := parse(append(args, "./x"), io.Discard); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", args, err, says)
		}
	}
}

// TestAdditions has what the VM gets beyond the tests.
func TestAdditions(t *testing.T) {
	t.Parallel()
	o, _, err := parse([]string{"-add", "a/b:/opt/b", "-env", "A=1=2", "-add", "c:/c", "-env", "B=", "-disk", "64", "-disk-add", "d:/d",
		"./x"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if want := []addition{{"a/b", "/opt/b"}, {"c", "/c"}}; !slices.Equal(o.files, want) {
		t.Errorf("files %v, want %v", o.files, want)
	}
	if want := []addition{{"d", "/d"}}; !slices.Equal(o.diskFiles, want) {
		t.Errorf("files of the disk %v, want %v", o.diskFiles, want)
	}
	if _, _, err := parse([]string{"-disk-add", "d:/d", "./x"}, io.Discard); err == nil || !strings.Contains(err.Error(), "-disk") {
		t.Errorf("files of a disk that is not there: %v", err)
	}
	if env := (compiled{}).job(o).Env; !slices.Contains(env, "A=1=2") || !slices.Contains(env, "B=") {
		t.Errorf("the tests are told %v", env)
	}
	for _, bad := range []string{"-add=a", "-add=a:b", "-add=:/b", "-disk-add=d", "-env=A", "-env==1"} {
		if _, _, err := parse([]string{bad, "./x"}, io.Discard); err == nil || !strings.Contains(err.Error(), "want ") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
