package main

import (
	"compress/gzip"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// untouched are files that a change of names leaves as they are: licences, and checksums of other modules.
var untouched = regexp.MustCompile(`^(LICENSE|hack/licences\.txt|.*\.sum)$`)

// named are the packages whose tests compare much text with names in it.
var named = []string{"./api/...", "./clients/berthctl", "./clients/dra/driver", "./clients/nri/cdi",
	"./server/internal/config", "./hack/archtest"}

// TestRename gives the last commit other names in a clone of it. No file has an old name afterwards, without an exception;
// everything compiles, the demo runs, and it could be released. The way back gives the same files.
func TestRename(t *testing.T) {
	t.Parallel()
	if os.Getenv("BERTH_RENAME") == "" {
		t.Skip("builds the project with other names, which takes minutes: BERTH_RENAME=1, as in make test-all")
	}
	top, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	old, dir := ofProject(t), filepath.Join(t.TempDir(), "clone")
	git(t, top, "clone", "-q", "--no-tags", top, dir)
	rename(t, dir, chosen)
	for name := range strings.Lines(git(t, dir, "diff", "--name-only")) {
		if untouched.MatchString(strings.TrimSpace(name)) {
			t.Errorf("%s has changed", name)
		}
	}
	commit(t, dir)
	for _, name := range append([]string{escaped(old["domain"])}, values(old)...) {
		// git grep fails if there is none.
		cmd := exec.CommandContext(t.Context(), "git", "grep", "--text", "-iFl", "-e", name)
		cmd.Dir = dir
		if found, _ := cmd.Output(); len(found) > 0 {
			t.Errorf("%s is still in\n%s", name, found)
		}
	}
	if out := rename(t, dir, chosen); !strings.Contains(out, "the names are these already") || git(t, dir, "status", "--porcelain") != "" {
		t.Errorf("the second time: %s", out)
	}
	for name := range strings.Lines(git(t, dir, "ls-files", "*.gz")) {
		text := unzipped(t, filepath.Join(dir, strings.TrimSpace(name)))
		if slices.ContainsFunc(values(old), func(v string) bool { return strings.Contains(text, v) }) {
			t.Errorf("%s still has an old name", name)
		}
	}
	command(t, dir, "go", "vet", "./...")
	command(t, dir, "go", append([]string{"test", "-count=1"}, named...)...)
	command(t, dir, "go", "test", "-count=1", "-run", "^TestDemo$/^to_its_end$", "./hack/quickstart")

	log, err := os.ReadFile(filepath.Join(dir, "CHANGELOG.md"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, map[string]string{"CHANGELOG.md": strings.Replace(string(log), " (not released yet)", "", 1)})
	git(t, dir, "commit", "-qam", "release")
	command(t, dir, "make", "check-release")

	rename(t, dir, old)
	// The descriptors that are kept as released are of another commit, and archives are compressed anew.
	git(t, dir, "diff", "--exit-code", "HEAD~2", "--", ".", ":!CHANGELOG.md", ":!proto/released.binpb", ":!*.gz")
}

// TestOwnNames: the tests here have no name of the project. Under other names they would test something else.
func TestOwnNames(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*_test.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, value := range values(ofProject(t)) {
			if strings.Contains(string(text), value) {
				t.Errorf("%s has %s", name, value)
			}
		}
	}
}

func values(n names) (all []string) {
	for _, k := range kinds {
		all = append(all, n[k.name])
	}
	return all
}

func unzipped(t *testing.T, path string) string {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(unzipped)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func rename(t *testing.T, dir string, to names) string {
	t.Helper()
	return command(t, dir, "go", "run", "./hack/names", "-set", setting(to))
}

func command(t *testing.T, dir, program string, args ...string) string {
	t.Helper()
	t.Log(program, args)
	var out strings.Builder
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir, cmd.Stdout = dir, io.MultiWriter(&out, os.Stderr)
	cmd.Stderr = cmd.Stdout
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %q: %v\n%s", program, args, err, out.String())
	}
	return out.String()
}
