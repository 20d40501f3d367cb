package version

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestFile: one line with a number of semantic versioning, which the changelog has too.
func TestFile(t *testing.T) {
	t.Parallel()
	if !regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+(-[0-9a-z.]+)?\n$`).MatchString(file) {
		t.Errorf("VERSION is %q", file)
	}
	text, err := os.ReadFile("../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "\n## "+strings.TrimSpace(file)) {
		t.Errorf("CHANGELOG.md has nothing about %s", file)
	}
}

// TestAPIs: the versions that are named are those that there are.
func TestAPIs(t *testing.T) {
	t.Parallel()
	found, err := filepath.Glob("../berth/*/*")
	if err != nil || len(found) == 0 {
		t.Fatal(found, err)
	}
	for _, f := range found {
		if filepath.Base(f) != "v1" {
			t.Errorf("%s is not in %q", f, APIs)
		}
	}
}

func TestLine(t *testing.T) {
	t.Parallel()
	i := Info{Version: "1.2.3", Commit: "abc", Go: "go1.26.8", Platform: "linux/amd64"}
	if got, want := i.Line("berthd"), "berthd version 1.2.3, commit abc, go1.26.8, linux/amd64; "+APIs; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	i.Commit = ""
	if got := i.Line("berthd"); !strings.Contains(got, "unknown commit") {
		t.Error(got)
	}
	cmd := Command("berthd")
	var out strings.Builder
	cmd.SetOut(&out)
	if err := cmd.Execute(); err != nil || out.String() != Of().Line("berthd")+"\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}
