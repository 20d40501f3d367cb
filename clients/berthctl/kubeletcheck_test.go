package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthd/berth/hack/testing/kubeletnode"
)

// checkedPods has the pod of the examples.
const checkedPods = `{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "Pod",
	"metadata": {"name": "web", "namespace": "shop", "uid": "u-web"},
		"spec": {"containers": [{"name": "app", "resources": {"limits": {"cpu": "2", "memory": "1Gi"}}}]},
		"status": {"phase": "Running"}}]}`

// TestCheckKubelet: the files of a node are read and compared, also those with which no kubelet starts.
func TestCheckKubelet(t *testing.T) {
	t.Parallel()
	const dir, config = "var/lib/kubelet/", "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
	for name, row := range map[string]struct {
		files map[string]string
		code  int
		want  []string
	}{
		"nothing is wrong": {
			files: map[string]string{
				"cpu_manager_state": `{"policyName":"static","defaultCpuSet":"0,3-7","entries":{"u-web":{"app":"1-2"}},"checksum":0}`,
			},
			want: []string{"nothing is wrong\n"},
		},
		"a setting": {
			files: map[string]string{"config.yaml": config + "enforceNodeAllocatable: [none]\n"},
			code:  1, want: []string{"warning pods-not-enforced: enforceNodeAllocatable", "0 errors, 1 warning\n"},
		},
		"a checksum": {
			files: map[string]string{"cpu_manager_state": `{"policyName":"static","defaultCpuSet":"0-7","checksum":1}`},
			code:  3,
			want:  []string{"error state-damaged: /var/lib/kubelet/cpu_manager_state", "the checksum is 1", "cpu_manager_state is damaged"},
		},
		"a field": {
			files: map[string]string{"config.yaml": config + "topologyManagerScope: node\n"},
			code:  3, want: []string{"error configuration: topologyManagerScope"},
		},
		"no configuration": {
			files: map[string]string{"config.yaml": "kind: Pod\napiVersion: v1\n"},
			code:  3, want: []string{"error configuration: ", "the kubelet's configuration cannot be read"},
		},
		"a checkpoint of devices": {
			files: map[string]string{"device-plugins/kubelet_internal_checkpoint": `{}`},
			code:  3, want: []string{"error devices-damaged: /var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"},
		},
		"a removed pod": {
			files: map[string]string{
				"cpu_manager_state": `{"policyName":"static","defaultCpuSet":"0,3-7","entries":{"u-db":{"app":"1-2"}},"checksum":0}`,
			},
			code: 1, want: []string{"warning cpus-left-behind: pod u-db", "container app: CPUs 1-2"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := kubeletnode.New(t)
			for file, text := range row.files {
				write(t, filepath.Join(root, dir, file), text)
			}
			code, out, problems := ctl(t, checkedPods, "check", "--kubelet="+root, "--pods", "-", "--now")
			if code != row.code {
				t.Errorf("exit code %d, want %d\n%s%s", code, row.code, out, problems)
			}
			for _, part := range row.want {
				if !strings.Contains(out+problems, part) {
					t.Errorf("there is no %q in\n%s%s", part, out, problems)
				}
			}
		})
	}
}

// TestCheckPage: docs/check.md shows what is printed.
func TestCheckPage(t *testing.T) {
	t.Parallel()
	root := kubeletnode.New(t)
	write(t, filepath.Join(root, "var/lib/kubelet/cpu_manager_state"),
		`{"policyName":"static","defaultCpuSet":"0,4-5","entries":{"u-web":{"app":"1-2"},"u-db":{"app":"3"}},"checksum":0}`)
	page, err := os.ReadFile("../../docs/check.md")
	if err != nil {
		t.Fatal(err)
	}
	const begin = "```\n$ berthctl check --kubelet --pods pods.json --now\n"
	before, rest, _ := strings.Cut(string(page), begin)
	_, after, ok := strings.Cut(rest, "```\n")
	if !ok {
		t.Fatal("docs/check.md shows no session")
	}
	code, out, _ := ctl(t, checkedPods, "check", "--kubelet="+root, "--pods", "-", "--now")
	if code != 3 {
		t.Errorf("exit code %d", code)
	}
	compare(t, "../../docs/check.md", []byte(before+begin+out+"```\n"+after))
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}
