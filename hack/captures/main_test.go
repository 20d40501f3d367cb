package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRecordingsAreOfTheCaptures: the captures beside the project give what the tests
// of server/internal/app replay.
func TestRecordingsAreOfTheCaptures(t *testing.T) {
	t.Parallel()
	dir := filepath.Join("..", "..", "..", "shared", "captures")
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		t.Skipf("there are no captures at %s", dir)
	}
	got, err := build(dir)
	if err != nil {
		t.Fatal(err)
	}
	packed, err := os.ReadFile(filepath.Join("..", "..", "server", "internal", "app", "testdata", "kubelet.jsonl.gz"))
	if err != nil {
		t.Fatal(err)
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	want, err := io.ReadAll(unpacked)
	if err != nil {
		t.Fatal(err)
	}
	mine, theirs := strings.Split(string(got), "\n"), strings.Split(string(want), "\n")
	if len(mine) != len(theirs) {
		t.Errorf("the captures give %d lines, the file has %d: run make captures", len(mine), len(theirs))
	}
	for i := range min(len(mine), len(theirs)) {
		if mine[i] != theirs[i] {
			t.Errorf("line %d is %.60s…, the captures give %.60s…: run make captures", i+1, theirs[i], mine[i])
		}
	}
}
