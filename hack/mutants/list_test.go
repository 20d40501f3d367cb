package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTexts: the text of every defect is in its file once, so that `make mutants`,
// which takes minutes, does not find out first.
func TestTexts(t *testing.T) {
	t.Parallel()
	for _, m := range mutants {
		source, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(m.file)))
		if err != nil {
			t.Errorf("%s: %v", m.name, err)
			continue
		}
		if n := strings.Count(string(source), m.old); n != 1 || m.old == m.new {
			t.Errorf("%s: its text is %d times in %s", m.name, n, m.file)
		}
	}
}
