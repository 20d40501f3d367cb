package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	// pairCell is a cell such as 9/14 or 63Gi/64Gi.
	pairCell = regexp.MustCompile(`^[0-9.]+[KMGTPE]?i?/[0-9.]+[KMGTPE]?i?\b`)
	// columns separates the cells of a table.
	columns = regexp.MustCompile(` {2,}`)
	header  = regexp.MustCompile(`^[A-Z]{2,}[A-Z0-9./ -]*$`)
	// bareBytes is a number of bytes behind the name of a resource, as in "memory 4294967296".
	bareBytes = regexp.MustCompile(`\b(memory|ephemeral-storage|hugepages-[0-9]+[KMG]i)[ =][0-9]{4,}\b`)
)

// TestAmountsInTexts: in everything that the examples print for people, a pair of amounts has a heading that names both, with one meaning
// in all commands, and bytes have a unit.
func TestAmountsInTexts(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("testdata/*.golden")
	if err != nil {
		t.Fatal(err)
	}
	pairs := 0
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var headings []string
		for i, line := range strings.Split(string(text), "\n") {
			if strings.HasPrefix(line, "$ ") || strings.HasPrefix(line, "! ") {
				continue
			}
			if bareBytes.MatchString(line) {
				t.Errorf("%s:%d: bytes without a unit: %s", path, i+1, line)
			}
			if header.MatchString(line) {
				headings = columns.Split(line, -1)
				continue
			}
			cells := columns.Split(line, -1)
			for at := range min(len(cells), len(headings)) {
				if len(cells) != len(headings) || !pairCell.MatchString(cells[at]) {
					continue
				}
				if pairs++; !strings.HasSuffix(headings[at], " FREE/TOTAL") {
					t.Errorf("%s:%d: the heading of %s is %q, want FREE/TOTAL", path, i+1, cells[at], headings[at])
				}
			}
		}
	}
	if pairs < 20 {
		t.Errorf("%d pairs: the test does not find them", pairs)
	}
}
