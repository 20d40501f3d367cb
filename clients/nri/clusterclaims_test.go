package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/hack/cluster"
	"github.com/berthd/berth/hack/containerd"
)

// startDRA starts berth-dra, and waits until its devices are published.
func (k *kubernetes) startDRA(cdi string) {
	k.t.Helper()
	k.Start("berth-dra", exec.Command(filepath.Join(k.built, "berth-dra"), "--endpoint", k.socket, "--node-name", cluster.Node,
		"--kubeconfig", k.Path("admin.kubeconfig"), "--cdi-directory", cdi))
	k.Eventually("the node publishes what claims may have", func() bool {
		text, err := k.Kubectl("get", "resourceslices", "-o", "jsonpath={.items[*].spec.devices[*].name}")
		return err == nil && strings.Contains(text, "numa-0")
	})
}

// claimed makes a claim, and a pod whose container main uses it while its container other does not.
func (k *kubernetes) claimed(name, cpus string) {
	k.t.Helper()
	k.Apply(fmt.Sprintf(`{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": %q}, "spec": {"devices": {"requests": [
		{"name": "place", "exactly": {"deviceClassName": "cpu-memory.berthd.github.io", "capacity": {"requests": {"cpu": %q, "memory": "32Mi"}}}}]}}}`, name, cpus))
	k.Apply(fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q}, "spec": {"terminationGracePeriodSeconds": 1, "resourceClaims": [{"name": "place", "resourceClaimName": %q}], "containers": [
		{"name": "main", "image": %q, "imagePullPolicy": "Never", "command": ["/probe", "show", ",", "wait"], "resources": {"claims": [{"name": "place"}]}},
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

// TestClusterClaims: claims on CPUs and memory, from the scheduler to the first instruction of a container and
// back, over the ends of the driver, berthd, berth-nri and the kubelet.
func TestClusterClaims(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("needs two CPUs: one for the system and one for claims")
	}
	all := "0-" + strconv.Itoa(runtime.NumCPU()-1)
	last := strconv.Itoa(runtime.NumCPU() - 1)
	k := newKubernetes(t, map[string]any{"reservedSystemCPUs": "0," + last, "systemReserved": map[string]string{"memory": "256Mi"}})
	config := k.Path("berthd.yaml")
	if err := os.WriteFile(config, []byte(`apiVersion: config.berthd.github.io/v1alpha1
kind: BerthConfiguration
beside: kubelet
cpu: {policy: static}
topology: {policy: best-effort}
memory: {policy: Static, reserved: [{numaNode: 0, limits: {memory: 256Mi}}]}
dra: {cpus: "`+last+`", memory: [{numaNode: 0, limits: {memory: 128Mi}}]}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"berth-nri", "berthd"} {
		_ = k.End(program, os.Kill) // they have no pods yet
	}
	cdi := filepath.Join(filepath.Dir(k.Containerd.Socket), "cdi")
	if err := os.MkdirAll(cdi, 0o755); err != nil {
		t.Fatal(err)
	}
	k.policy = []string{"--config", config}
	k.startBerthd()
	k.startPlugin()
	k.startDRA(cdi)
	k.Apply(`{"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "cpu-memory.berthd.github.io"}, "spec": {"selectors": [{"cel": {"expression": "device.driver == 'dra.berthd.github.io'"}}]}}`)

	k.claimed("first", "1")
	if got := k.affinityOf("first", "main"); got != last {
		t.Errorf("the container with the claim runs on %s, want %s", got, last)
	}
	k.Eventually("berthd knows which container uses the claim", func() bool {
		out, err := k.berthctl("get", "claims", "first", "--no-headers")
		return err == nil && strings.Contains(out, "default/first/main") && !strings.Contains(out, "default/first/other")
	})
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
	for _, program := range []string{"berth-dra", "berthd", "berth-nri"} {
		if err := k.End(program, os.Kill); program != "berth-nri" && err == nil {
			t.Logf("%s ended", program)
		}
	}
	k.startBerthd()
	k.startPlugin()
	k.startDRA(cdi)
	if got, err := k.berthctl("ledger", "check"); err != nil {
		t.Errorf("after the crash: %v: %s", err, got)
	}
	k.deleteClaimed("first")
	if got := k.affinityOf("second", "main"); got != last {
		t.Errorf("after the first claim was given back, the second container runs on %s, want %s", got, last)
	}
	k.deleteClaimed("second")
	k.Eventually("berthd has no claim, and there is no CDI file", func() bool {
		out, err := exec.Command(filepath.Join(k.built, "berthctl"), "--endpoint", k.socket, "get", "claims", "-o", "json").Output()
		files, globErr := filepath.Glob(filepath.Join(cdi, "dra.berthd.github.io-*"))
		return err == nil && globErr == nil && len(files) == 0 && !strings.Contains(string(out), `"uid"`)
	})
	if text := k.Log("berth-dra").String(); strings.Contains(text, "level=ERROR") {
		t.Errorf("errors of berth-dra:\n%s", text)
	}
	k.logPrepareTimes()
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
