package apiconformance

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

// python returns what runs a client in Python, and the directory with the messages and stubs
// that protoc generates from proto/.
func python(t *testing.T, n *node) (program, generated string) {
	t.Helper()
	if program = os.Getenv("BERTH_PYTHON"); program == "" {
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
	generated = t.TempDir()
	protoc := func(args ...string) {
		if out, err := exec.CommandContext(n.ctx(), "protoc", append([]string{"--python_out=" + generated},
			args...)...).CombinedOutput(); err != nil {
			t.Fatalf("protoc: %v\n%s", err, out)
		}
	}
	protoc(append([]string{"-I", schema}, files...)...)
	if plugin, err := exec.LookPath("grpc_python_plugin"); err == nil {
		protoc(append([]string{"-I", schema, "--grpc_python_out=" + generated, "--plugin=protoc-gen-grpc_python=" + plugin}, files...)...)
	}
	// The messages of googleapis-common-protos, which not every Python has.
	set := new(descriptorpb.FileDescriptorSet)
	var add func(f protoreflect.FileDescriptor)
	add = func(f protoreflect.FileDescriptor) {
		for i := range f.Imports().Len() {
			add(f.Imports().Get(i).FileDescriptor)
		}
		set.File = append(set.File, protodesc.ToFileDescriptorProto(f))
	}
	add(errdetails.File_google_rpc_error_details_proto)
	add(statuspb.File_google_rpc_status_proto)
	data, err := proto.Marshal(set)
	if err == nil {
		err = os.WriteFile(filepath.Join(generated, "rpc.binpb"), data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	protoc("--descriptor_set_in="+filepath.Join(generated, "rpc.binpb"), "google/rpc/status.proto", "google/rpc/error_details.proto")
	return program, generated
}

// TestPython leads a pod through its life with a client in Python, whose messages plain protoc
// generates from proto/.
func TestPython(t *testing.T) {
	t.Parallel()
	n := newNode(t, "")
	program, generated := python(t, n)
	life := exec.CommandContext(n.ctx(), program, "testdata/life.py", filepath.Join(n.root, "berth.sock"))
	life.Env = append(os.Environ(), "PYTHONPATH="+generated)
	if out, err := life.CombinedOutput(); err != nil || !strings.Contains(string(out), "the pod has lived") {
		t.Errorf("the client: %v\n%s", err, out)
	}
}

// TestPythonPage: the page about agents in Python shows the program of the tests.
func TestPythonPage(t *testing.T) {
	t.Parallel()
	program, err := os.ReadFile("testdata/agent.py")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/python.md")
	if err != nil {
		t.Fatal(err)
	}
	_, shown, _ := strings.Cut(string(page), "```python\n")
	if shown, _, _ = strings.Cut(shown, "```\n"); shown != string(program) {
		t.Error("docs/python.md does not show testdata/agent.py as it is")
	}
}

// TestPythonAgent runs the agent of docs/python.md: a pod that runs, one that is rejected, and
// one that is wrong.
func TestPythonAgent(t *testing.T) {
	t.Parallel()
	n := newNode(t, "")
	program, generated := python(t, n)
	if _, err := exec.LookPath("grpc_python_plugin"); err != nil {
		t.Skip("protoc has no plugin for stubs in Python: install protobuf-compiler-grpc")
	}
	for name, row := range map[string]struct {
		pod, want string
		code      int
	}{
		"runs": {`{"metadata": {"name": "web", "namespace": "default", "uid": "u-1", "managedFields": []}, "spec": {"containers": [
			{"name": "app", "image": "x", "resources": {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}}}]}}`,
			`^app: CPUs 1,9\nhello from 1,9\n$`, 0},
		"rejected": {`{"metadata": {"name": "big", "uid": "u-2"}, "spec": {"containers": [
			{"name": "app", "resources": {"limits": {"cpu": "64", "memory": "1Gi"}}}]}}`, `^rejected: \w+: .+\n$`, 1},
		"wrong": {`{"metadata": {"name": "wrong", "uid": "u-3"}, "spec": {"containers": [
			{"name": "app", "resources": {"limits": {"cpu": "many"}}}]}}`, `^INVALID_ARGUMENT REQUEST_INVALID: .*cpu.*\n$`, 1},
	} {
		file := filepath.Join(t.TempDir(), name+".json")
		if err := os.WriteFile(file, []byte(row.pod), 0o600); err != nil {
			t.Fatal(err)
		}
		agent := exec.CommandContext(n.ctx(), program, "testdata/agent.py", filepath.Join(n.root, "berth.sock"), file, "echo",
			"hello from 1,9")
		agent.Env = append(os.Environ(), "PYTHONPATH="+generated)
		out, _ := agent.CombinedOutput()
		if code := agent.ProcessState.ExitCode(); code != row.code || !regexp.MustCompile(row.want).MatchString(string(out)) {
			t.Errorf("%s: exit code %d\n%s", name, code, out)
		}
		if uids := n.uids(); len(uids) > 0 {
			t.Errorf("%s: pods %v are left", name, uids)
		}
	}
}
