// Package importer makes modules that import berth, as those of other projects do.
package importer

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// Module writes a module with a program, whose versions are those of berth's own go.mod, and returns its directory. root is berth's.
func Module(t testing.TB, root, program string) string {
	t.Helper()
	base, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(base, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	module := regexp.MustCompile(`(?m)^module .*$`).ReplaceAllString(read("go.mod"), "module example.com/importer")
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": module + "\nrequire github.com/berthd/berth v0.0.0\n\nreplace github.com/berthd/berth => " + base + "\n",
		"go.sum": read("go.sum"), "main.go": program,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Environ is the environment for the go command in such a module. The command fetches nothing.
func Environ() []string { return append(os.Environ(), "GOWORK=off", "GOFLAGS=", "GOPROXY=off") }
