package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// testCall is a call of go test in a script, or of a function that makes it, with the packages after it.
var testCall = regexp.MustCompile(`(?m)^[^#\n]*\b(?:go test|run_with)\b.*$`)

// namedPackage is a package among the words of a call, without those below it.
var namedPackage = regexp.MustCompile(`\s\./([\w/-]+)(?:\s|$)`)

// TestScripts: the packages that scripts test have tests. One without any passes, and a package that was moved leaves such a one.
func TestScripts(t *testing.T) {
	t.Parallel()
	found := 0
	err := filepath.WalkDir(filepath.Join(root, "hack"), func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(name) != ".sh" {
			return err
		}
		text, err := os.ReadFile(name)
		joined := strings.ReplaceAll(string(text), "\\\n", " ")
		for _, call := range testCall.FindAllString(joined, -1) {
			// Twice the space: neighbours share one otherwise.
			for _, p := range namedPackage.FindAllStringSubmatch(strings.ReplaceAll(call, " ", "  "), -1) {
				found++
				if tests, _ := filepath.Glob(filepath.Join(root, p[1], "*_test.go")); len(tests) == 0 {
					t.Errorf("%s tests ./%s, which has no tests: %s", name, p[1], strings.TrimSpace(call))
				}
			}
		}
		return err
	})
	if err != nil || found < 10 {
		t.Errorf("found %d packages in scripts, %v; expected 10 or more", found, err)
	}
}
