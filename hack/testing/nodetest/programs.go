package nodetest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// BuiltVariable is the environment variable that names a folder of programs that are
// built already, for a machine without a Go toolchain.
const BuiltVariable = "BERTH_BUILT"

// Programs are built at most once.
type Programs struct {
	packages map[string]string
	once     sync.Once
	dir      string
	ours     string // the folder, if it was made here
	err      error
}

// NewPrograms names the programs, by the path that each gets below a folder, and their
// packages by where they are in the module: "root/probe" is "hack/probe".
func NewPrograms(packages map[string]string) *Programs { return &Programs{packages: packages} }

// Dir returns the folder that the programs are in. They need no C library.
func (p *Programs) Dir() (string, error) {
	p.once.Do(func() {
		if p.dir = os.Getenv(BuiltVariable); p.dir != "" {
			return
		}
		if p.ours, p.err = os.MkdirTemp("", "built"); p.err == nil {
			p.dir, p.err = p.ours, p.build()
		}
	})
	return p.dir, p.err
}

func (p *Programs) build() error {
	for name, pkg := range p.packages {
		cmd := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Join(p.ours, name), "github.com/berthd/berth/"+pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w: %s", pkg, err, text)
		}
	}
	return nil
}

// Remove removes what was built. TestMain does that when all tests are done.
func (p *Programs) Remove() {
	if p.ours != "" {
		_ = os.RemoveAll(p.ours)
	}
}
