package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/berthd/berth/hack/cluster"
	"github.com/berthd/berth/hack/testing/containerd"
)

// dra is the command line of berth-dra.
func (k *kubernetes) dra(cdi string) *exec.Cmd {
	return exec.Command(filepath.Join(k.built, "berth-dra"), "--endpoint", k.socket, "--node-name", cluster.Node, "--kubeconfig",
		k.Path("admin.kubeconfig"), "--cdi-directory", cdi)
}

// startDRA starts berth-dra, and waits until its devices are published.
func (k *kubernetes) startDRA(cdi string) {
	k.t.Helper()
	k.Start("berth-dra", k.dra(cdi))
	k.Eventually("the node publishes what claims may have", func() bool { return k.hasDevice("numa-0") })
}

// The collections of the objects of dynamic resource allocation, and of those in the default namespace.
const (
	resourcePath = "/apis/resource.k8s.io/v1"
	claimsPath   = resourcePath + "/namespaces/default"
)

// hasDevice reports whether a driver has published a device.
func (k *kubernetes) hasDevice(device string) bool {
	var list resourceapi.ResourceSliceList
	return k.Call(k.t.Context(), http.MethodGet, resourcePath+"/resourceslices", "", &list) == nil &&
		slices.ContainsFunc(list.Items, func(s resourceapi.ResourceSlice) bool {
			return slices.ContainsFunc(s.Spec.Devices, func(d resourceapi.Device) bool { return d.Name == device })
		})
}

// create creates an object, as JSON, in a collection.
func (k *kubernetes) create(collection, object string) {
	k.t.Helper()
	if err := k.Call(k.t.Context(), http.MethodPost, collection, object, nil); err != nil {
		k.t.Fatalf("create %s: %v", object, err)
	}
}

// startSecondDriver starts a driver whose devices are near to NUMA nodes, and waits until they are published.
func (k *kubernetes) startSecondDriver(cdi string, devices ...string) {
	k.t.Helper()
	k.Start("second", exec.Command(filepath.Join(k.built, "gpudriver"), "-node", cluster.Node, "-kubeconfig", k.Path("admin.kubeconfig"),
		"-cdi", cdi,
		"-data", "/var/lib/kubelet/plugins/gpu.example.com", "-devices", strings.Join(devices, ",")))
	k.Eventually("the second driver's devices are published", func() bool { return k.hasDevice("gpu-0") })
}

// classes makes the DeviceClasses of both drivers.
func (k *kubernetes) classes() {
	k.t.Helper()
	for name, driver := range map[string]string{"cpu-memory.berthd.github.io": "dra.berthd.github.io",
		"gpu.example.com": "gpu.example.com"} {
		k.create(resourcePath+"/deviceclasses",
			fmt.Sprintf(`{"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": %q}, "spec": {"selectors": [{"cel": {"expression": "device.driver == '%s'"}}]}}`, name, driver))
	}
}

// besideGPU is the specification of a claim on CPUs and memory of the NUMA node of a device of the second driver.
func besideGPU(cpus int) string {
	return fmt.Sprintf(`{"devices": {"requests": [
		{"name": "place", "exactly": {"deviceClassName": "cpu-memory.berthd.github.io",
			"capacity": {"requests": {"cpu": "%d", "memory": "32Mi"}}}},
		{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}],
		"constraints": [{"requests": ["place", "gpu"], "matchAttribute": "resource.kubernetes.io/numaNode"}]}}`, cpus)
}

// nothingLeft waits until berthd has no claim, and no CDI file is left.
func (k *kubernetes) nothingLeft(cdi string) {
	k.t.Helper()
	k.Eventually("berthd has no claim, and there is no CDI file", func() bool {
		out, err := exec.Command(filepath.Join(k.built, "berthctl"), "--endpoint", k.socket, "get", "claims", "-o", "json").Output()
		files, globErr := filepath.Glob(filepath.Join(cdi, "dra.berthd.github.io-*"))
		return err == nil && globErr == nil && len(files) == 0 && !strings.Contains(string(out), `"uid"`)
	})
}

// claimed makes a claim, and a pod whose container main uses it while its container other does not.
func (k *kubernetes) claimed(name, cpus string) {
	k.t.Helper()
	k.Apply(fmt.Sprintf(`{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": %q}, "spec": {"devices": {"requests": [
		{"name": "place", "exactly": {"deviceClassName": "cpu-memory.berthd.github.io", "capacity": {"requests": {"cpu": %q, "memory": "32Mi"}}}}]}}}`, name, cpus))
	k.Apply(fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q}, "spec": {"terminationGracePeriodSeconds": 1, "resourceClaims": [{"name": "place", "resourceClaimName": %q}], "containers": [
		{"name": "main", "image": %q, "imagePullPolicy": "Never", "command": ["/probe", "show", ",", "wait"],
			"resources": {"claims": [{"name": "place"}]}},
		{"name": "other", "image": %q, "imagePullPolicy": "Never", "command": ["/probe", "show", ",", "wait"]}]}}`, name, name, containerd.ProbeImage, containerd.ProbeImage))
}

// affinityOf waits until a container has said on which CPUs it began.
func (k *kubernetes) affinityOf(pod, container string) (value string) {
	k.t.Helper()
	k.Eventually("container "+container+" of "+pod+" tells its CPUs", func() bool {
		text, err := k.Kubectl("logs", pod, "-c", container)
		for line := range strings.Lines(text) {
			if got, ok := strings.CutPrefix(strings.TrimSpace(line), "affinity="); ok && err == nil {
				value = got
				return true
			}
		}
		return false
	})
	return value
}

// withClaims is a cluster whose node has a CPU for claims, the last one, and no other CPUs for pods.
func withClaims(t *testing.T) (k *kubernetes, cdi string) {
	t.Helper()
	if runtime.NumCPU() < 2 {
		t.Skipf("needs two CPUs, one for the system and one for claims; here are %d", runtime.NumCPU())
	}
	last := strconv.Itoa(runtime.NumCPU() - 1)
	k = newKubernetes(t, map[string]any{"reservedSystemCPUs": "0-" + last, "systemReserved": map[string]string{"memory": "256Mi"}})
	return k, k.givesClaims(`{cpus: "` + last + `", memory: [{numaNode: 0, limits: {memory: 128Mi}}]}`)
}

// givesClaims starts berthd again with a division between pods and claims, and berth-dra. Its CDI files are in cdi.
func (k *kubernetes) givesClaims(dra string) (cdi string) {
	k.t.Helper()
	config := k.Path("berthd.yaml")
	if err := os.WriteFile(config, []byte(`apiVersion: config.berthd.github.io/v1alpha1
kind: BerthConfiguration
beside: kubelet
cpu: {policy: static}
topology: {policy: best-effort}
memory: {policy: Static, reserved: [{numaNode: 0, limits: {memory: 256Mi}}]}
dra: `+dra+"\n"), 0o600); err != nil {
		k.t.Fatal(err)
	}
	for _, program := range []string{"berth-nri", "berthd"} {
		_ = k.End(program, os.Kill) // they have no pods yet
	}
	cdi = filepath.Join(filepath.Dir(k.Containerd.Socket), "cdi")
	if err := os.MkdirAll(cdi, 0o755); err != nil {
		k.t.Fatal(err)
	}
	k.policy = []string{"--config", config}
	k.startBerthd()
	k.startPlugin()
	k.startDRA(cdi)
	k.classes()
	return cdi
}

// TestClusterClaims: claims on CPUs and memory, from the scheduler to the first instruction of a container and
// back, over kills of the driver, berthd, berth-nri and the kubelet.
func TestClusterClaims(t *testing.T) {
	k, cdi := withClaims(t)
	last := strconv.Itoa(runtime.NumCPU() - 1)
	all := "0-" + last
	k.claimed("first", "1")
	if got := k.affinityOf("first", "main"); got != last {
		t.Errorf("the container with the claim runs on %s, want %s", got, last)
	}
	k.Eventually("berthd knows which container uses the claim", func() bool {
		out, err := k.berthctl("get", "claims", "first", "--no-headers")
		return err == nil && strings.Contains(out, "default/first/main") && !strings.Contains(out, "default/first/other")
	})
	k.readersAgree("first")
	if out, err := k.berthctl("explain", "claim", "first"); err != nil || !strings.Contains(out, "claim default/first admitted") {
		t.Errorf("explain claim: %v: %s", err, out)
	}
	if got := k.affinityOf("first", "other"); got == last || got == all {
		t.Errorf("the container without the claim runs on %s", got)
	}
	if out, err := k.berthctl("ledger", "check"); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	// The scheduler counts: the second claim waits until the first is given back.
	k.claimed("second", "1")
	k.Eventually("the second pod waits for the claim", func() bool {
		text, err := k.Kubectl("get", "pod", "second", "-o", "jsonpath={.status.conditions[?(@.type=='PodScheduled')].message}")
		return err == nil && strings.Contains(text, "cannot allocate all claims")
	})
	for _, program := range []string{"berth-dra", "berthd", "berth-nri", "kubelet"} {
		_ = k.End(program, os.Kill)
	}
	k.StartProgram("kubelet")
	k.startBerthd()
	k.startPlugin()
	k.startDRA(cdi)
	k.Eventually("berthd answers after the crash", func() bool {
		_, err := k.berthctl("get", "claims")
		return err == nil
	})
	if got, err := k.berthctl("ledger", "check"); err != nil {
		t.Errorf("after the crash: %v: %s", err, got)
	}
	k.deleteClaimed("first")
	if got := k.affinityOf("second", "main"); got != last {
		t.Errorf("after the first claim was given back, the second container runs on %s, want %s", got, last)
	}
	k.deleteClaimed("second")
	k.nothingLeft(cdi)
	if text := k.Log("berth-dra").String(); strings.Contains(text, "level=ERROR") {
		t.Errorf("errors of berth-dra:\n%s", text)
	}
	k.logPrepareTimes()
	k.refusesToSellTwice(cdi)
}

// TestClusterClaimBesideDevice: a claim on CPUs and a device of another driver that publishes NUMA nodes. Only the device on
// the NUMA node of the CPUs is allocated; while that one is taken, a pod waits, although another device is free.
func TestClusterClaimBesideDevice(t *testing.T) {
	k, cdi := withClaims(t)
	k.startSecondDriver(cdi, "gpu-0@1", "gpu-1@0", "gpu-2@1")
	for _, name := range []string{"first", "second"} {
		k.Apply(fmt.Sprintf(`{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": %q}, "spec": %s}`, name,
			besideGPU(1)))
		k.Apply(fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %[1]q}, "spec": {"terminationGracePeriodSeconds": 1, "resourceClaims": [{"name": "place", "resourceClaimName": %[1]q}], "containers": [
			{"name": "main", "image": %[2]q, "imagePullPolicy": "Never", "command": ["/probe", "show", ",", "wait"], "resources": {"claims": [{"name": "place"}]}}]}}`, name, containerd.ProbeImage))
		if name == "first" {
			k.checkBesideDevice(name)
			k.readersAgree(name)
		}
	}
	k.Eventually("the second pod waits, although devices on another NUMA node are free", func() bool {
		text, err := k.Kubectl("get", "pod", "second", "-o", "jsonpath={.status.conditions[?(@.type=='PodScheduled')].message}")
		return err == nil && strings.Contains(text, "cannot allocate all claims")
	})
	k.deleteClaimed("first")
	k.checkBesideDevice("second")
	k.deleteClaimed("second")
	k.nothingLeft(cdi)
}

// checkBesideDevice checks that a pod has the last CPU and the device gpu-1, both on NUMA node 0.
func (k *kubernetes) checkBesideDevice(pod string) {
	k.t.Helper()
	for name, want := range map[string]string{
		"affinity": strconv.Itoa(runtime.NumCPU() - 1), "env.GPU": "gpu-1", "env.GPU_NUMA_NODE": "0", "env.BERTH_NUMA_NODES": "0",
		"env.BERTH_CPUS": strconv.Itoa(runtime.NumCPU() - 1),
	} {
		if got := k.said(pod, name); got != want {
			k.t.Errorf("pod %s: %s is %q, want %q", pod, name, got, want)
		}
	}
}

// kubelet starts the kubelet of the first node again with other values in its configuration.
func (k *kubernetes) kubelet(values map[string]any) {
	k.t.Helper()
	k.kubeletOf(k.Host, values)
}

// kubeletOf starts the kubelet of a node again with other values in its configuration, and without what its CPU manager has stored.
func (k *kubernetes) kubeletOf(h *cluster.Host, values map[string]any) {
	k.t.Helper()
	config := map[string]any{}
	text, err := os.ReadFile(h.Path("kubelet.json"))
	if err == nil {
		err = json.Unmarshal(text, &config)
	}
	maps.Copy(config, values)
	if err == nil {
		text, err = json.Marshal(config)
	}
	if err == nil {
		err = os.WriteFile(h.Path("kubelet.json"), text, 0o600)
	}
	_ = h.End("kubelet", os.Kill)
	if gone := os.Remove(h.Path("var", "lib", "kubelet", "cpu_manager_state")); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	if err != nil {
		k.t.Fatal(err)
	}
	k.StartKubelet(h)
}

// refusesToSellTwice has a kubelet that reserves no CPU: berth-dra withdraws its devices and says why.
func (k *kubernetes) refusesToSellTwice(cdi string) {
	k.t.Helper()
	k.kubelet(map[string]any{"reservedSystemCPUs": ""})
	all := strconv.Itoa(runtime.NumCPU())
	k.Eventually("the kubelet gives all CPUs to pods", func() bool {
		text, err := k.Kubectl("get", "node", cluster.Node, "-o", "jsonpath={.status.allocatable.cpu}")
		return err == nil && text == all
	})
	_ = k.End("berth-dra", os.Kill)
	k.Start("berth-dra", k.dra(cdi))
	k.Eventually("berth-dra says why it publishes nothing", func() bool {
		return strings.Contains(k.Log("berth-dra").String(),
			"cpu is counted twice: the scheduler counts "+all+" as allocatable, and claims on dynamic resources can have 1 (dra.cpus of berthd)")
	})
	k.Eventually("no device is published any more", func() bool {
		text, err := k.Kubectl("get", "resourceslices", "-o", "jsonpath={.items[*].spec.devices[*].name}")
		return err == nil && !strings.Contains(text, "numa-0")
	})
}

// deleteClaimed deletes a pod and its claim.
func (k *kubernetes) deleteClaimed(name string) {
	k.t.Helper()
	for _, kind := range []string{"pod", "resourceclaim"} {
		if out, err := k.Kubectl("delete", kind, name, "--wait=false"); err != nil {
			k.t.Fatalf("delete %s %s: %v: %s", kind, name, err, out)
		}
	}
}

// logPrepareTimes logs how long berth-dra took for claims.
func (k *kubernetes) logPrepareTimes() {
	var times []time.Duration
	for line := range strings.Lines(k.Log("berth-dra").String()) {
		_, after, found := strings.Cut(line, " took=")
		if text, _, _ := strings.Cut(strings.TrimSpace(after), " "); found {
			if d, err := time.ParseDuration(text); err == nil {
				times = append(times, d)
			}
		}
	}
	slices.Sort(times)
	if len(times) > 0 {
		k.t.Logf("%d claims prepared, median %s, longest %s", len(times), times[len(times)/2], times[len(times)-1])
	}
}
