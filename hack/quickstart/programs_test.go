package quickstart

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// packages are the programs that readers have, and those that replace theirs.
var packages = map[string]string{
	"berthd": "server/berthd", "berthctl": "clients/berthctl", "berthlet": "clients/berthlet", "berth-nri": "clients/nri",
	"plugin": "hack/plugin", "probe": "hack/probe",
}

var built struct {
	once sync.Once
	dir  string
	err  error
}

// programs gives the directory of the programs, which are built once.
func programs(t *testing.T) string {
	t.Helper()
	for _, tool := range []string{"bash", "cc"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is missing: %v", tool, err)
		}
	}
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "quickstart"); built.err != nil {
			return
		}
		// A container's user can look into it.
		built.err = os.Chmod(built.dir, 0o755)
		for name, pkg := range packages {
			if built.err != nil {
				return
			}
			cmd := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Join(built.dir, name), "github.com/berthd/berth/"+pkg)
			cgo := "0"
			if name == "berthlet" {
				cgo = "1"
			}
			cmd.Env = append(os.Environ(), "CGO_ENABLED="+cgo)
			var text []byte
			if text, built.err = cmd.CombinedOutput(); built.err != nil {
				built.err = &buildError{name, strings.TrimSpace(string(text)), built.err}
			}
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.dir
}

type buildError struct {
	name, text string
	err        error
}

func (e *buildError) Error() string { return "build " + e.name + ": " + e.err.Error() + "\n" + e.text }

func TestMain(m *testing.M) {
	code := m.Run()
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
	os.Exit(code)
}
