package archtest

import (
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/hack/testing/importer"
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
			got := modulesOf(t, importer.Module(t, root, "package main\n\nimport _ \""+imported+"\"\n\nfunc main() {}\n"))
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

// modulesOf returns the modules that the program in a folder is compiled from, besides itself and berth.
func modulesOf(t *testing.T, dir string) []string {
	t.Helper()
	cmd := exec.Command("go", "list", "-mod=readonly", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", ".")
	cmd.Dir, cmd.Env = dir, importer.Environ()
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
