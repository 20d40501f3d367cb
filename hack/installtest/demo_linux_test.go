package installtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// demoVariable names a folder with hack/demo.sh and, in bin, the programs that it needs. test.sh boots a machine of another
// architecture for it, where no program can be built.
const demoVariable = "BERTH_TEST_DEMO"

// TestDemo runs the demo without containers.
func TestDemo(t *testing.T) {
	dir := os.Getenv(demoVariable)
	if dir == "" {
		t.Skipf("%s is not set: hack/installtest/test.sh arm64 boots a machine for this", demoVariable)
	}
	if _, err := exec.LookPath("awk"); err != nil { // the name is an alternative, which only an installation by dpkg sets
		if err := os.Symlink("/usr/bin/mawk", filepath.Join(dir, "bin", "awk")); err != nil {
			t.Fatal(err)
		}
	}
	demo := exec.Command("bash", filepath.Join(dir, "hack", "demo.sh"))
	demo.Env = append(os.Environ(), "BERTH_DEMO_BIN="+filepath.Join(dir, "bin"), "BERTH_DEMO_LIMIT=300")
	out, err := demo.CombinedOutput()
	text := string(out)
	if err != nil || !strings.HasSuffix(strings.TrimSpace(text), "# Nothing is left behind") {
		t.Fatalf("%v:\n%s", err, text)
	}
	for _, want := range []string{
		"berthd will decide, and nothing will run", "default/trainer admitted", "UnexpectedAdmissionError",
		"the same pods, CPUs and devices as before",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the demo does not print %q", want)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}
