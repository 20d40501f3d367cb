package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthd/berth/hack/cluster"
	"github.com/berthd/berth/hack/testing/containerd"
)

// kubernetes is a cluster whose node has berthd and berth-nri, as docs/nri.md starts them.
type kubernetes struct {
	*cluster.Cluster
	t testing.TB
	// built is where the programs are, socket berthd's.
	built, socket string
	// flags and env are more of berth-nri, policy those of berthd in place of the usual ones.
	flags, env, policy []string
}

// newKubernetes starts everything. CPU 0 is the system's.
func newKubernetes(t testing.TB, kubelet map[string]any, gates ...string) *kubernetes {
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
	k := &kubernetes{t: t, built: built, Cluster: cluster.Run(t, cluster.Options{Image: filepath.Join(built, "root", "probe"),
		Kubelet: config, FeatureGates: gates})}
	k.socket = k.Path("berthd", "berth.sock")
	k.startBerthd()
	k.startPlugin()
	return k
}

// berthctl calls berthd as its agent or an administrator.
func (k *kubernetes) berthctl(args ...string) (string, error) {
	out, err := exec.Command(filepath.Join(k.built, "berthctl"), append([]string{"--endpoint", k.socket}, args...)...).CombinedOutput()
	return string(out), err
}

func (k *kubernetes) startBerthd() {
	k.t.Helper()
	policy := k.policy
	if policy == nil {
		policy = []string{"--cpu-manager-policy", "static", "--topology-manager-policy", "best-effort"}
	}
	k.Start("berthd", exec.Command(filepath.Join(k.built, "berthd"), append([]string{"--beside", "kubelet", "--kubelet-config",
		k.Path("kubelet.json"),
		"--root-dir", k.Path("berthd")}, policy...)...))
}

func (k *kubernetes) startPlugin() {
	k.t.Helper()
	const synchronized = "synchronized with the runtime"
	before := strings.Count(k.Log("berth-nri").String(), synchronized)
	cmd := exec.Command(os.Args[0], append([]string{"--endpoint", k.socket, "--nri-socket", k.Containerd.NRI, "--node-name", cluster.Node,
		"--log-level", "debug"}, k.flags...)...)
	cmd.Env = append(append(os.Environ(), asPlugin+"=1"), k.env...)
	k.Start("berth-nri", cmd)
	k.Eventually("berth-nri is connected", func() bool { return strings.Count(k.Log("berth-nri").String(), synchronized) > before })
}

// apply creates a pod of one container that prints its CPUs and environment, with requests and limits as JSON.
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

// sources counts how often berth-nri has learned of pods from a source.
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

// TestClusterDevice: a Guaranteed pod with a device of a plugin of the kubelet. While its CPUs are taken, it is
// refused with an event that says why, the kubelet's tries cost no decision, and it starts when they are
// free: on CPUs of its own, with the device in berthd's ledger.
func TestClusterDevice(t *testing.T) {
	k := newKubernetes(t, nil)
	k.Start("plugin", exec.Command(filepath.Join(k.built, "plugin"), "-devices", "gpu0@0"))
	k.Eventually("the node has the device", func() bool {
		text, err := k.Kubectl("get", "node", cluster.Node, "-o", `jsonpath={.status.allocatable.example\.com/gpu}`)
		return err == nil && text == "1"
	})
	// Another agent has the CPUs, without the scheduler's knowledge.
	own := runtime.NumCPU() - 1
	manifest := k.Path("blocker.yaml")
	text := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: blocker, uid: blocker}\nspec:\n  containers:\n  - {name: main, image: x, resources: {limits: {cpu: \"%d\", memory: 1Mi}}}\n", own)
	if err := os.WriteFile(manifest, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := k.berthctl("admit", "-f", manifest); err != nil {
		t.Fatalf("%v: %s", err, out)
	}

	k.apply("trainer", fmt.Sprintf(`{"limits": {"cpu": "%d", "memory": "64Mi", "example.com/gpu": "1"}}`, own))
	var event string
	k.Eventually("the pod has an event", func() bool {
		event, _ = k.Kubectl("get", "events", "--field-selector", "involvedObject.name=trainer,reason=FailedCreatePodSandBox", "-o",
			"jsonpath={.items[0].message}")
		return event != ""
	})
	for _, want := range []string{"berth: admit the pod: ", fmt.Sprintf(": %d needed, 0 free", own),
		"example.com/gpu gpu0 is on NUMA node 0", "it would fit without pod default/blocker"} {
		if !strings.Contains(event, want) {
			t.Errorf("the event lacks %q:\n%s", want, event)
		}
	}
	if len(event) > 1024 {
		t.Errorf("the event has %d bytes", len(event))
	}
	var before string
	k.Eventually("the kubelet tries again", func() bool { return k.tries("trainer") > 1 })
	if text, err := k.berthctl("get", "rejections", "-o", "json"); err != nil {
		t.Errorf("%v: %s", err, text)
	} else if n := strings.Count(text, `"TopologyAffinityError"`) + strings.Count(text, `"UnexpectedAdmissionError"`); n != 1 {
		t.Errorf("berthd has rejected the pod %d times:\n%s", n, text)
	} else {
		before = text
	}

	if out, err := k.berthctl("remove", "blocker"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got, want := k.said("trainer", "affinity"), range1(own); got != want {
		t.Errorf("the container runs on %s, want %s\nrejections before:\n%s", got, want, before)
	}
	described, err := k.berthctl("describe", "pod", "default/trainer")
	if err != nil || !strings.Contains(described, "example.com/gpu") || !strings.Contains(described, "gpu0") {
		t.Errorf("berthd does not know the device: %v\n%s", err, described)
	}
	k.readersAgree("trainer")
	if text, err := k.berthctl("ledger", "check"); err != nil {
		t.Errorf("check of the ledger: %v: %s", err, text)
	}
}

// tries counts how often the kubelet has tried to start the sandbox of a pod that is refused.
func (k *kubernetes) tries(pod string) int {
	refused := 0
	for line := range strings.Lines(k.Log("berth-nri").String()) {
		if strings.Contains(line, "a pod was not admitted") && strings.Contains(line, "pod=default/"+pod+" ") {
			refused++
		}
	}
	return refused
}

// TestClusterClaim: a pod with a device of dynamic resource allocation. The kubelet tells only the device's
// CDI name; berth-nri finds its NUMA node. The device is /dev/null, and the test says where it is.
func TestClusterClaim(t *testing.T) {
	k := newKubernetes(t, nil)
	sys := k.Path("null")
	if err := os.MkdirAll(filepath.Join(sys, "device"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(sys, "device", "numa_node"), []byte("0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	mount := exec.Command("mount", "--bind", sys, "/sys/devices/virtual/mem/null")
	if err := k.Spawn(mount); err != nil {
		t.Fatal(err)
	}
	if err := mount.Wait(); err != nil {
		t.Fatalf("mount in the cluster's namespace: %v", err)
	}
	cdi := filepath.Join(filepath.Dir(k.Containerd.Socket), "cdi")
	if err := k.End("berth-nri", os.Interrupt); err != nil {
		t.Fatal(err)
	}
	k.flags = []string{"--cdi-directories", cdi}
	k.startPlugin()
	k.Start("gpudriver", exec.Command(filepath.Join(k.built, "gpudriver"), "-node", cluster.Node, "-kubeconfig",
		k.Path("admin.kubeconfig"), "-cdi", cdi, "-data", "/var/lib/kubelet/plugins/gpu.example.com"))
	k.Apply(`{"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}]}}`)
	k.Apply(`{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "gpu"}, "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}}`)
	k.Apply(fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "claimer"}, "spec": {"terminationGracePeriodSeconds": 1, "resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}], "containers": [
		{"name": "main", "image": %q, "imagePullPolicy": "Never", "command": ["/probe", "show", ",", "wait"],
		"resources": {"limits": {"cpu": "1", "memory": "64Mi"}, "claims": [{"name": "gpu"}]}}]}}`, containerd.ProbeImage))
	if got := k.said("claimer", "affinity"); got != "1" {
		t.Errorf("the container runs on %s", got)
	}
	described, err := k.berthctl("describe", "pod", "default/claimer")
	if err != nil {
		t.Fatalf("%v: %s", err, described)
	}
	if want := "gpu.example.com/dra " + cluster.Node + "/gpu-0 on NUMA node 0"; !strings.Contains(described, want) {
		t.Errorf("berthd does not know %q:\n%s", want, described)
	}
	if text := k.Log("berth-nri").String(); strings.Contains(text, "the NUMA nodes of some devices of claims are unknown") {
		t.Errorf("the device's NUMA node was not found:\n%s", text)
	}
	k.readersAgree("claimer")
}

// requirePlugin is the configuration of docs/kubernetes.md.
const requirePlugin = `[plugins.'io.containerd.nri.v1.nri'.default_validator]
  enable = true
  required_plugins = ["berth"]
  tolerate_missing_plugins_annotation = "nri.berthd.github.io/tolerate-missing-plugins"
`

// TestClusterRequiredPlugin: a runtime that requires berth-nri starts no container without it but those with the
// annotation, and the pods start when berth-nri is there.
func TestClusterRequiredPlugin(t *testing.T) {
	k := newKubernetes(t, nil)
	if err := errors.Join(k.End("berth-nri", os.Interrupt), k.Containerd.Configure(requirePlugin), k.Containerd.Kill(),
		k.Containerd.Start(t.Context())); err != nil {
		t.Fatal(err)
	}
	k.apply("web", `{"limits": {"cpu": "1", "memory": "64Mi"}}`)
	k.Apply(fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "tolerant", "annotations": {"nri.berthd.github.io/tolerate-missing-plugins": "true"}}, "spec": {"terminationGracePeriodSeconds": 1, "containers": [
		{"name": "main", "image": %q, "imagePullPolicy": "Never", "command": ["/probe", "show", ",", "wait"]}]}}`, containerd.ProbeImage))
	all := "0-" + strconv.Itoa(runtime.NumCPU()-1)
	tolerant := k.pid("tolerant")
	k.runsOn("without berth-nri", all, tolerant)
	k.Eventually("an event of the container that is refused names the plugin", func() bool {
		var events corev1.EventList
		err := k.Call(t.Context(), http.MethodGet,
			"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Dweb,reason%3DFailed", "", &events)
		return err == nil && slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return strings.Contains(e.Message,
				`required plugin "berth" not present`)
		})
	})
	k.startPlugin()
	k.runsOn("with berth-nri", "1", k.pid("web"))
	k.Eventually("the other container leaves that CPU", func() bool {
		cpus, err := cpusOf(tolerant)
		return err == nil && !cpus.Contains(1)
	})
}
