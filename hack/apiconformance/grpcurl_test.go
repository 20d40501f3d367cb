package apiconformance

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// webPod is a pod as kubectl prints it, in a request as the documents make it with jq.
const webPod = `{"pod": {"apiVersion": "v1", "kind": "Pod",
	"metadata": {"name": "web", "namespace": "default", "uid": "u-1",
		"creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": [{"manager": "kubectl"}]},
	"spec": {"nodeName": "n", "restartPolicy": "Always", "containers": [{"name": "app", "image": "nginx",
		"resources": {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}}}]},
	"status": {"qosClass": "Guaranteed", "phase": "Pending"}}}`

// TestGrpcurl runs the lines of the documents with grpcurl as they stand there, except for the
// path of the socket.
func TestGrpcurl(t *testing.T) {
	t.Parallel()
	program := os.Getenv("BERTH_GRPCURL")
	if program == "" {
		t.Skip("BERTH_GRPCURL does not name a grpcurl: make test-all builds the pinned one")
	}
	n := newNode(t, "")
	socket := filepath.Join(n.root, "berth.sock")
	lines := 0
	for file, want := range map[string]string{"../../README.md": `"VERDICT_ADMITTED"`,
		"../../docs/README.md": "berth.admission.v1.AdmissionService"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.SplitSeq(string(text), "\n") {
			line, ok := strings.CutPrefix(strings.TrimSpace(line), "grpcurl ")
			if !ok {
				continue
			}
			lines++
			cmd := exec.CommandContext(n.ctx(), program, strings.Fields(strings.ReplaceAll(line, "/run/berth/berth.sock", socket))...)
			cmd.Stdin = strings.NewReader(webPod)
			if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), want) {
				t.Errorf("%s: grpcurl %s: %v\n%s", file, line, err, out)
			}
		}
	}
	if lines < 2 {
		t.Errorf("the documents have %d lines with grpcurl", lines)
	}
	// The other spelling of a socket.
	if out, err := exec.CommandContext(n.ctx(), program, "-plaintext", "unix://"+socket, "list").CombinedOutput(); err != nil ||
		!strings.Contains(string(out), "berth.admission.v1.AdmissionService") {
		t.Errorf("unix://: %v\n%s", err, out)
	}
}
