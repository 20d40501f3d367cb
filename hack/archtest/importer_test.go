package archtest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// importers limits how many modules another module needs for a package of berth, besides berth. A provider of hints
// needs Kubernetes' quantities in addition to gRPC and protobuf.
var importers = map[string]int{
	"github.com/berthd/berth/clients/berth":        6,
	"github.com/berthd/berth/clients/hintprovider": 12,
}

// TestImportersNeedFewModules: a module that imports a client of berth compiles few other modules.
func TestImportersNeedFewModules(t *testing.T) {
	t.Parallel()
	for imported, most := range importers {
		t.Run(filepath.Base(imported), func(t *testing.T) {
			t.Parallel()
			got := modulesOf(t, importer(t, imported))
			if !slices.Contains(got, "google.golang.org/grpc") {
				t.Fatalf("an importer of %s needs %v: expected google.golang.org/grpc among them", imported, got)
			}
			if len(got) > most {
				t.Errorf("an importer of %s needs %d modules: expected at most %d\n\t%s", imported, len(got), most,
					strings.Join(got, "\n\t"))
			}
		})
	}
}

// importer writes a module that imports one package of berth, with the versions of berth's own go.mod.
func importer(t *testing.T, imported string) string {
	t.Helper()
	base, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name string, text []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func(name string) []byte {
		text, err := os.ReadFile(filepath.Join(base, name))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	module := regexp.MustCompile(`(?m)^module .*$`).ReplaceAllString(string(read("go.mod")), "module example.com/importer")
	write("go.mod", []byte(module+"\nrequire github.com/berthd/berth v0.0.0\n\nreplace github.com/berthd/berth => "+base+"\n"))
	write("go.sum", read("go.sum"))
	write("main.go", []byte("package main\n\nimport _ \""+imported+"\"\n\nfunc main() {}\n"))
	return dir
}

// modulesOf returns the modules that the program in a folder is compiled from, besides itself and berth.
func modulesOf(t *testing.T, dir string) []string {
	t.Helper()
	cmd := exec.Command("go", "list", "-mod=readonly", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", ".")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off", "GOFLAGS=", "GOPROXY=off")
	out, err := cmd.Output()
	if err != nil {
		if failed, ok := errors.AsType[*exec.ExitError](err); ok {
			t.Fatalf("go list of an importer: %s", failed.Stderr)
		}
		t.Fatal(err)
	}
	own := []string{"example.com/importer", "github.com/berthd/berth"}
	found := slices.Compact(slices.Sorted(slices.Values(strings.Fields(string(out)))))
	var modules []string
	for _, m := range found {
		if !slices.Contains(own, m) {
			modules = append(modules, m)
		}
	}
	return modules
}
