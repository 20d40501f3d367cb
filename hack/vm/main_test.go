package main

import (
	"io"
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
