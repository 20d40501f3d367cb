package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthd/berth/hack/cluster"
	"github.com/berthd/berth/hack/containerd"
)

// kubernetes is a cluster whose node has berthd and berth-nri, as docs/node.md starts them.
type kubernetes struct {
	*cluster.Cluster
	t *testing.T
	// built is where the programs are, socket berthd's.
	built, socket string
}

// newKubernetes starts everything. CPU 0 is the system's.
func newKubernetes(t *testing.T, kubelet map[string]any) *kubernetes {
	t.Helper()
	cluster.Need(t) // before something is built for it
	built, err := programs.Dir()
	if err != nil {
		t.Fatal(err)
	}
	config := map[string]any{"reservedSystemCPUs": "0"}
	for name, value := range kubelet {
		config[name] = value
	}
	k := &kubernetes{t: t, built: built, Cluster: cluster.Run(t, cluster.Options{Image: filepath.Join(built, "root", "probe"), Kubelet: config})}
	k.socket = k.Path("berthd", "berth.sock")
	k.startBerthd()
	k.startPlugin()
	return k
}

func (k *kubernetes) startBerthd() {
	k.t.Helper()
	k.Start("berthd", exec.Command(filepath.Join(k.built, "berthd"), "--beside", "kubelet", "--kubelet-config", k.Path("kubelet.json"),
		"--root-dir", k.Path("berthd"), "--cpu-manager-policy", "static", "--topology-manager-policy", "best-effort"))
}

func (k *kubernetes) startPlugin() {
	k.t.Helper()
	const synchronized = "synchronized with the runtime"
	before := strings.Count(k.Log("berth-nri").String(), synchronized)
	cmd := exec.Command(os.Args[0], "--endpoint", k.socket, "--nri-socket", k.Containerd.NRI, "--node-name", cluster.Node, "--log-level", "debug")
	cmd.Env = append(os.Environ(), asPlugin+"=1")
	k.Start("berth-nri", cmd)
	k.Eventually("berth-nri is connected", func() bool { return strings.Count(k.Log("berth-nri").String(), synchronized) > before })
}

// apply makes a pod of one container that tells what it sees, with requests and limits as JSON.
func (k *kubernetes) apply(name, resources string) {
	k.t.Helper()
	k.Apply(fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q}, "spec": {"terminationGracePeriodSeconds": 1, "containers": [
		{"name": "main", "image": %q, "imagePullPolicy": "Never", "command": ["/probe", "show", ",", "wait"], "resources": %s}]}}`,
		name, containerd.ProbeImage, resources))
}

// runs waits until a pod runs, and gives what its container says of a name.
func (k *kubernetes) said(pod, name string) (value string) {
	k.t.Helper()
	k.Eventually("the container of "+pod+" tells its "+name, func() bool {
		text, err := k.Kubectl("logs", pod)
		if err != nil {
			return false
		}
		for line := range strings.Lines(text) {
			if got, ok := strings.CutPrefix(strings.TrimSpace(line), name+"="); ok {
				value = got
				return true
			}
		}
		return false
	})
	return value
}

// sources tells how often berth-nri has learned of pods from a source.
func (k *kubernetes) sources(source string) int {
	return strings.Count(k.Log("berth-nri").String(), "source="+source)
}

// TestClusterPods places pods that come from the API server.
func TestClusterPods(t *testing.T) {
	k := newKubernetes(t, nil)
	k.apply("web", `{}`)
	if got := k.said("web", "affinity"); got != "0-1" {
		t.Errorf("the shared container runs on %s", got)
	}
	k.apply("trainer", `{"limits": {"cpu": "1", "memory": "64Mi"}}`)
	if got := k.said("trainer", "affinity"); got != "1" {
		t.Errorf("the container with an exclusive CPU runs on %s", got)
	}
	if k.sources("kubelet") < 2 {
		t.Errorf("the kubelet was not the source:\n%s", k.Log("berth-nri"))
	}
	var pod struct{ Metadata struct{ UID string } }
	if err := k.Get(&pod, "pod", "trainer"); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(filepath.Join(k.built, "berthctl"), "--endpoint", k.socket, "get", "pods", "-o", "json").Output()
	if err != nil || !strings.Contains(string(out), pod.Metadata.UID) || !json.Valid(out) {
		t.Errorf("berthd's pods: %v: %s", err, out)
	}
}
