package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthd/berth/hack/cluster"
	"github.com/berthd/berth/hack/containerd"
	"github.com/berthd/berth/managers/cpuset"
)

// packed is how many pods TestClusterPacked has in each way.
const packed = 50

// gpus are the devices of the second driver, and of the device plugin: two on each NUMA node.
var gpus = []string{"gpu-0@0", "gpu-1@0", "gpu-2@1", "gpu-3@1"}

// TestClusterPacked packs pods with one or two CPUs and a device on a machine of two NUMA nodes, more than fit at a time.
// With claims, the scheduler knows the NUMA nodes: no pod is refused on the node, and each has its CPUs beside its
// device. Then a kubelet with the policy restricted gets the same pods as classic requests, and the log says how many it rejects.
func TestClusterPacked(t *testing.T) {
	cluster.Need(t)
	disk := os.Getenv(vmDisk)
	if disk == "" {
		t.Skipf("needs a machine of its own with two NUMA nodes: %s, which names its disk, is empty; hack/cluster/test.sh boots one", vmDisk)
	}
	m := newClusterMachine(t, disk, map[string]any{"systemReserved": map[string]string{"memory": "1Gi"}})
	if m.far.Len() != 2 || m.all.Len() != 4 {
		t.Fatalf("the machine has the CPUs %v, and %v on NUMA node 1; expected 4 and 2", m.all, m.far)
	}
	m.withClaims()
	m.classic()
}

// withClaims packs the pods as claims.
func (m *clusterMachine) withClaims() {
	m.t.Helper()
	all := m.all.String()
	m.kubelet(map[string]any{"reservedSystemCPUs": all})
	config := m.Path("berthd.yaml")
	if err := os.WriteFile(config, []byte(`apiVersion: config.berthd.github.io/v1alpha1
kind: BerthConfiguration
beside: kubelet
cpu: {policy: static}
topology: {policy: best-effort}
memory: {policy: Static, reserved: [{numaNode: 0, limits: {memory: 512Mi}}, {numaNode: 1, limits: {memory: 512Mi}}]}
dra: {cpus: "`+m.all.Minus(cpuset.Of(0)).String()+`", memory: [{numaNode: 0, limits: {memory: 256Mi}}, {numaNode: 1, limits: {memory: 256Mi}}]}
`), 0o600); err != nil {
		m.t.Fatal(err)
	}
	cdi := filepath.Join(filepath.Dir(m.Containerd.Socket), "cdi")
	if err := os.MkdirAll(cdi, 0o755); err != nil {
		m.t.Fatal(err)
	}
	m.policy, m.socket = []string{"--config", config}, m.Path("berthd", "berth.sock")
	m.startBerthd()
	m.startPlugin()
	m.startDRA(cdi)
	m.startSecondDriver(cdi, gpus...)
	m.classes()
	for _, cpus := range []int{1, 2} {
		m.Apply(fmt.Sprintf(`{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "place-%d"}, "spec": {"spec": %s}}`, cpus, besideGPU(cpus)))
	}
	m.t.Logf("next: %d pods with claims", packed)
	m.pods("claim", func(cpus int) string {
		return fmt.Sprintf(`"resourceClaims": [{"name": "place", "resourceClaimTemplateName": "place-%d"}]`, cpus)
	}, func(int) string { return `{"claims": [{"name": "place"}]}` })
	done := m.finished("claim")
	unaligned := 0
	for name, p := range done {
		if p.Status.Phase != corev1.PodSucceeded {
			m.t.Errorf("pod %s: %s %s: %s", name, p.Status.Phase, p.Status.Reason, p.Status.Message)
			continue
		}
		if why := m.misplaced(name, cpusOfPod(name)); why != "" {
			unaligned++
			m.t.Errorf("pod %s: %s", name, why)
		}
	}
	var events corev1.EventList
	if err := m.Call(m.t.Context(), http.MethodGet, "/api/v1/namespaces/default/events?fieldSelector=type%3DWarning", "", &events); err != nil {
		m.t.Fatal(err)
	}
	refused := 0
	for _, e := range events.Items {
		if e.Reason != "FailedPrepareDynamicResources" && e.Reason != "FailedCreatePodSandBox" {
			continue
		}
		m.t.Logf("event of %s, %d times: %s: %.300s", e.InvolvedObject.Name, e.Count, e.Reason, e.Message)
		// Calls of the kubelet have short timeouts, and the machine is emulated.
		if !strings.Contains(e.Message, "DeadlineExceeded") {
			refused++
		}
	}
	if refused > 0 {
		m.t.Errorf("%d events of pods that the node refused", refused)
	}
	m.t.Logf("%d pods with claims: %d events of refusals on the node, %d not aligned", len(done), refused, unaligned)
	m.logPrepareTimes()
	m.nothingLeft(cdi)
	for _, program := range []string{"berth-dra", "second", "berth-nri", "berthd"} {
		if err := m.End(program, os.Interrupt); err != nil {
			m.t.Errorf("end %s: %v", program, err)
		}
	}
}

// classic has a kubelet with the policies static and restricted place the same pods.
func (m *clusterMachine) classic() {
	m.t.Helper()
	m.kubelet(map[string]any{"reservedSystemCPUs": "0", "cpuManagerPolicy": "static", "topologyManagerPolicy": "restricted"})
	m.Start("gpus", exec.Command(filepath.Join(m.built, "plugin"), "-devices", strings.Join(gpus, ",")))
	m.Eventually("the node has the devices and the CPUs", func() bool {
		var node corev1.Node
		err := m.Call(m.t.Context(), http.MethodGet, "/api/v1/nodes/"+cluster.Node, "", &node)
		devices := node.Status.Allocatable["example.com/gpu"]
		return err == nil && int(devices.Value()) == len(gpus) && int(node.Status.Allocatable.Cpu().Value()) == m.all.Len()-1
	})
	m.t.Logf("next: %d pods with classic requests", packed)
	m.pods("classic", func(int) string { return `"hostIPC": false` }, func(cpus int) string {
		return fmt.Sprintf(`{"limits": {"cpu": "%d", "memory": "32Mi", "example.com/gpu": "1"}}`, cpus)
	})
	ends := map[string]int{}
	for _, p := range m.finished("classic") {
		ends[strings.TrimSpace(string(p.Status.Phase)+" "+p.Status.Reason)]++
	}
	m.t.Logf("%d pods with classic requests under restricted: %v", packed, ends)
}

// cpusOfPod is how many CPUs a pod has; its number is in its name.
func cpusOfPod(name string) int {
	n, _ := strconv.Atoi(name[strings.LastIndex(name, "-")+1:])
	return 1 + n%2
}

// pods makes all pods at once. Each says what it has, and ends.
func (m *clusterMachine) pods(kind string, spec, resources func(cpus int) string) {
	m.t.Helper()
	for i := range packed {
		name := fmt.Sprintf("%s-%d", kind, i)
		cpus := cpusOfPod(name)
		m.Apply(fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q, "labels": {"kind": %q}}, "spec": {%s, "terminationGracePeriodSeconds": 1, "restartPolicy": "Never", "dnsPolicy": "Default", "automountServiceAccountToken": false,
			"containers": [{"name": "main", "image": %q, "imagePullPolicy": "Never", "command": ["/probe", "show"], "resources": %s}]}}`,
			name, kind, spec(cpus), containerd.ProbeImage, resources(cpus)))
	}
}

// finished waits until all pods of a kind have ended.
func (m *clusterMachine) finished(kind string) map[string]corev1.Pod {
	m.t.Helper()
	done, before := map[string]corev1.Pod{}, -1
	for len(done) < packed {
		before = len(done)
		m.Eventually(fmt.Sprintf("more than %d pods have ended", before), func() bool {
			var pods corev1.PodList
			if m.Call(m.t.Context(), http.MethodGet, podsPath+"?labelSelector=kind%3D"+kind, "", &pods) != nil {
				return false
			}
			for _, p := range pods.Items {
				if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
					done[p.Name] = p
				}
			}
			return len(done) > before
		})
	}
	return done
}

// misplaced compares what the container of a pod has seen with its claim and with the machine; empty if all fits.
func (m *clusterMachine) misplaced(pod string, cpus int) string {
	m.t.Helper()
	log, err := m.Open(m.t.Context(), http.MethodGet, podsPath+"/"+pod+"/log", "")
	if err != nil {
		return err.Error()
	}
	defer log.Close()
	text, err := io.ReadAll(io.LimitReader(log, 1<<20))
	if err != nil {
		return err.Error()
	}
	seen := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		seen[strings.TrimPrefix(name, "env.")] = value
	}
	near := m.far
	if seen["GPU_NUMA_NODE"] == "0" {
		near = m.all.Minus(m.far)
	}
	set, err := cpuset.Parse(seen["affinity"])
	if err != nil || set.Len() != cpus || !set.IsSubsetOf(near) || seen["BERTH_NUMA_NODES"] != seen["GPU_NUMA_NODE"] || seen["BERTH_CPUS"] != seen["affinity"] || seen["GPU"] == "" {
		return fmt.Sprintf("CPUs %q, claim %q on NUMA node %q, device %q on NUMA node %q; expected %d CPUs of %v: %v", seen["affinity"], seen["BERTH_CPUS"],
			seen["BERTH_NUMA_NODES"], seen["GPU"], seen["GPU_NUMA_NODE"], cpus, near, err)
	}
	return ""
}
