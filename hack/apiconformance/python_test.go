package apiconformance

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestPython leads a pod through its life with a client in Python, whose messages plain protoc
// generates from proto/.
func TestPython(t *testing.T) {
	t.Parallel()
	python := os.Getenv("BERTH_PYTHON")
	if python == "" {
		t.Skip("BERTH_PYTHON does not name a Python with grpc and google.protobuf: make test-all does")
	}
	schema, err := filepath.Abs("../../proto")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(schema + "/berth/*/*/*.proto")
	if err != nil || len(files) == 0 {
		t.Fatalf("no schema in %s: %v", schema, err)
	}
	n, generated := newNode(t, ""), t.TempDir()
	protoc := exec.CommandContext(n.ctx(), "protoc", append([]string{"-I", schema, "--python_out=" + generated}, files...)...)
	if out, err := protoc.CombinedOutput(); err != nil {
		t.Fatalf("protoc: %v\n%s", err, out)
	}
	life := exec.CommandContext(n.ctx(), python, "testdata/life.py", filepath.Join(n.root, "berth.sock"))
	life.Env = append(os.Environ(), "PYTHONPATH="+generated)
	if out, err := life.CombinedOutput(); err != nil || !strings.Contains(string(out), "the pod has lived") {
		t.Errorf("the client: %v\n%s", err, out)
	}
}
