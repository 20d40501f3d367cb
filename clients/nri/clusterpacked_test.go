package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthd/berth/hack/cluster"
	"github.com/berthd/berth/hack/testing/containerd"
	"github.com/berthd/berth/managers/cpuset"
)

const (
	// packedVariable is how many pods TestClusterPacked has in each way, if not packed.
	packedVariable = "BERTH_PODS"
	packed         = 50
	// In each step packedStep pods are created; a pod runs for at most packedSteps steps.
	packedStep, packedSteps = 3, 3
	// gpusPerNode are devices of the second driver, and of the device plugin, on each NUMA node.
	gpusPerNode = 2
)

// TestClusterPacked has pods come and go that use CPUs and a device of one NUMA node, more than fit at a time, so that
// often there are enough free CPUs on the node, but not on one NUMA node. With claims, the scheduler knows the NUMA nodes: such a
// pod waits, none is refused on the node, and each has its CPUs beside its device. Then a kubelet with the
// policy restricted gets the same pods as classic requests, and the log says how many it rejects.
func TestClusterPacked(t *testing.T) {
	cluster.Need(t)
	disk := os.Getenv(vmDisk)
	if disk == "" {
		t.Skipf("needs a machine of its own with several NUMA nodes: %s, which names its disk, is empty; hack/cluster/test.sh boots one",
			vmDisk)
	}
	n := packed
	if text := os.Getenv(packedVariable); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 1 {
			t.Fatalf("%s=%q: expected a number of pods", packedVariable, text)
		}
	}
	m := newClusterMachine(t, cluster.Options{Slow: true, Controllers: []string{"serviceaccount-controller", "node-lifecycle-controller",
		"resourceclaim-controller"}}, disk,
		map[string]any{"systemReserved": map[string]string{"memory": "1Gi"}})
	for node, cpus := range m.nodes {
		for i := range gpusPerNode {
			m.gpus = append(m.gpus, fmt.Sprintf("gpu-%d@%d", node*gpusPerNode+i, node))
		}
		m.t.Logf("NUMA node %d has the CPUs %v; CPU 0 is the system's", node, cpus)
	}
	m.withClaims(n)
	m.classic(n)
}

// withClaims packs the pods as claims.
func (m *clusterMachine) withClaims(n int) {
	m.t.Helper()
	m.kubelet(map[string]any{"reservedSystemCPUs": m.all.String()})
	// Together what the kubelet reserves; half of it is for claims.
	var reserved, claims []string
	for node := range m.nodes {
		each := 1024 / len(m.nodes)
		reserved = append(reserved, fmt.Sprintf("{numaNode: %d, limits: {memory: %dMi}}", node, each))
		claims = append(claims, fmt.Sprintf("{numaNode: %d, limits: {memory: %dMi}}", node, each/2))
	}
	config := m.Path("berthd.yaml")
	if err := os.WriteFile(config, []byte(`apiVersion: config.berthd.github.io/v1alpha1
kind: BerthConfiguration
beside: kubelet
cpu: {policy: static}
topology: {policy: best-effort}
memory: {policy: Static, reserved: [`+strings.Join(reserved, ", ")+`]}
dra: {cpus: "`+m.forPods().String()+`", memory: [`+strings.Join(claims, ", ")+`]}
`), 0o600); err != nil {
		m.t.Fatal(err)
	}
	cdi := filepath.Join(filepath.Dir(m.Containerd.Socket), "cdi")
	if err := os.MkdirAll(cdi, 0o755); err != nil {
		m.t.Fatal(err)
	}
	m.policy, m.flags, m.socket = []string{"--config", config}, []string{"--cdi-directories", cdi}, m.Path("berthd", "berth.sock")
	m.startBerthd()
	m.startPlugin()
	m.startDRA(cdi)
	m.startSecondDriver(cdi, m.gpus...)
	m.classes()
	for cpus := 1; cpus <= m.largest(); cpus++ {
		m.create(claimsPath+"/resourceclaimtemplates",
			fmt.Sprintf(`{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "place-%d"}, "spec": {"spec": %s}}`, cpus, besideGPU(cpus)))
	}
	p := &packing{
		clusterMachine: m, kind: "claim", byNode: true,
		spec: func(cpus int) string {
			return fmt.Sprintf(`"resourceClaims": [{"name": "place", "resourceClaimTemplateName": "place-%d"}]`, cpus)
		},
		resources: func(int) string { return `{"claims": [{"name": "place"}]}` },
	}
	p.run(n)
	if p.ends[ended] != n || p.unaligned > 0 {
		m.t.Errorf("pods with claims: %v, %d not aligned; expected all to run aligned", p.ends, p.unaligned)
	}
	m.noneRefused()
	m.usesSeveralNodes()
	m.goesOffline()
	m.logPrepareTimes()
	m.nothingLeft(cdi)
	if text, err := m.berthctl("ledger", "check"); err != nil {
		m.t.Errorf("check of the ledger: %v: %s", err, text)
	}
	for _, program := range []string{"berth-dra", "second", "berth-nri", "berthd"} {
		if err := m.End(program, os.Interrupt); err != nil {
			m.t.Errorf("end %s: %v", program, err)
		}
	}
}

// noneRefused checks that the kubelet has reported no refusal of a pod. A call that took longer than its timeout is none,
// because the machine is emulated.
func (m *clusterMachine) noneRefused() {
	m.t.Helper()
	var events corev1.EventList
	if err := m.Call(m.t.Context(), http.MethodGet, "/api/v1/namespaces/default/events?fieldSelector=type%3DWarning", "",
		&events); err != nil {
		m.t.Fatal(err)
	}
	refused, late := 0, 0
	for _, e := range events.Items {
		if e.Source.Component != "kubelet" || e.InvolvedObject.Kind != "Pod" {
			continue
		}
		m.t.Logf("event of %s, %d times: %s: %.300s", e.InvolvedObject.Name, e.Count, e.Reason, e.Message)
		if text := strings.ToLower(e.Message); strings.Contains(text, "deadline") || strings.Contains(text, "timeout") {
			late++
		} else {
			refused++
		}
	}
	m.t.Logf("pods with claims: %d refusals on the node, %d tries that took too long", refused, late)
	if refused > 0 {
		m.t.Error("the node has refused pods with claims")
	}
}

// classic has a kubelet with the policies static and restricted place the same pods.
func (m *clusterMachine) classic(n int) {
	m.t.Helper()
	m.kubelet(map[string]any{"reservedSystemCPUs": "0", "cpuManagerPolicy": "static", "topologyManagerPolicy": "restricted"})
	m.Start("gpus", exec.Command(filepath.Join(m.built, "plugin"), "-devices", strings.Join(m.gpus, ","), "-env", "GPU"))
	m.Eventually("the node has the devices and the CPUs", func() bool {
		var node corev1.Node
		err := m.Call(m.t.Context(), http.MethodGet, "/api/v1/nodes/"+cluster.Node, "", &node)
		devices := node.Status.Allocatable["example.com/gpu"]
		return err == nil && int(devices.Value()) == len(m.gpus) && int(node.Status.Allocatable.Cpu().Value()) == m.all.Len()-1
	})
	p := &packing{
		clusterMachine: m, kind: "classic",
		spec: func(int) string { return `"hostIPC": false` },
		resources: func(cpus int) string {
			return fmt.Sprintf(`{"limits": {"cpu": "%d", "memory": "32Mi", "example.com/gpu": "1"}}`, cpus)
		},
	}
	p.run(n)
}

// forPods are the CPUs of pods.
func (m *clusterMachine) forPods() cpuset.Set { return m.all.Minus(cpuset.Of(0)) }

// largest is how many CPUs a pod has at most, so that it fits on one NUMA node.
func (m *clusterMachine) largest() (cpus int) {
	for _, node := range m.nodes {
		cpus = max(cpus, node.Len())
	}
	return min(cpus, 3)
}

// packing is a sequence of pods. Both ways have the same one: the same sizes, in the same order, and each pod that runs
// stays for the same number of steps.
type packing struct {
	*clusterMachine
	// kind is the label of the pods.
	kind            string
	spec, resources func(cpus int) string
	// byNode means that the scheduler counts what is free on each NUMA node, not only the sums.
	byNode bool
	pods   []*packedPod

	// ends counts pods by how they ended.
	ends      map[string]int
	unaligned int
}

// packedPod is a pod of a packing.
type packedPod struct {
	name        string
	cpus, steps int
	state       packedState
	// on and gpu are what its container has.
	on  cpuset.Set
	gpu string
}

type packedState string

// A pod waits for the scheduler, runs, is deleted, and is gone.
const (
	waits   packedState = "waits"
	runs    packedState = "runs"
	deleted packedState = "deleted"
	gone    packedState = "gone"
)

// ended counts pods that ran until they were deleted.
const ended = "ran and ended"

// run has the pods come and go, until all have ended.
func (p *packing) run(n int) {
	p.t.Helper()
	began, random := time.Now(), rand.New(rand.NewPCG(1, 1)) //nolint:gosec // the same in every run
	p.ends = map[string]int{}
	for step := 1; step == 1 || len(p.pods) < n || len(p.in(gone)) < n; step++ {
		for range min(packedStep, n-len(p.pods)) {
			pod := &packedPod{name: fmt.Sprintf("%s-%d", p.kind, len(p.pods)), cpus: 1 + random.IntN(p.largest()),
				steps: 1 + random.IntN(packedSteps), state: waits}
			p.pods = append(p.pods, pod)
			p.create(podsPath, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q, "labels": {"kind": %q}}, "spec": {%s, "terminationGracePeriodSeconds": 1, "restartPolicy": "Never", "dnsPolicy": "Default", "enableServiceLinks": false, "automountServiceAccountToken": false,
				"containers": [{"name": "main", "image": %q, "imagePullPolicy": "Never", "command": ["/probe", "show", ",", "wait"], "resources": %s}]}}`,
				pod.name, p.kind, p.spec(pod.cpus), containerd.ProbeImage, p.resources(pod.cpus)))
		}
		p.Eventually(fmt.Sprintf("step %d: pods that fit run", step), p.settled)
		for _, pod := range p.in(runs) {
			if pod.steps--; pod.steps == 0 {
				p.ends[ended]++
				p.delete(pod)
			}
		}
		p.t.Logf("%s, step %d, %v: %d pods run, %d wait; %v", p.kind, step, time.Since(began).Round(time.Second),
			len(p.in(runs))+len(p.in(deleted)), len(p.in(waits)), p.ends)
	}
	p.t.Logf("%d pods (%s) in %v: %v, %d not aligned", n, p.kind, time.Since(began).Round(time.Second), p.ends, p.unaligned)
}

// in lists the pods in a state.
func (p *packing) in(state packedState) (pods []*packedPod) {
	for _, pod := range p.pods {
		if pod.state == state {
			pods = append(pods, pod)
		}
	}
	return pods
}

func (p *packing) delete(pod *packedPod) {
	p.t.Helper()
	if err := p.Call(p.t.Context(), http.MethodDelete, podsPath+"/"+pod.name, "", nil); err != nil {
		p.t.Fatalf("delete pod %s: %v", pod.name, err)
	}
	pod.state = deleted
}

// settled updates the pods. It is true if no pod is about to start or to end: each runs, or the scheduler has
// found no place for it, and there is none by what the scheduler counts.
func (p *packing) settled() bool {
	var list corev1.PodList
	if p.Call(p.t.Context(), http.MethodGet, podsPath+"?labelSelector=kind%3D"+p.kind, "", &list) != nil {
		return false
	}
	all := true
	for _, pod := range p.pods {
		i := slices.IndexFunc(list.Items, func(o corev1.Pod) bool { return o.Name == pod.name })
		switch {
		case pod.state == gone:
		case i < 0:
			if pod.state != deleted {
				p.t.Fatalf("pod %s is gone, and nobody has deleted it", pod.name)
			}
			pod.state, pod.on, pod.gpu = gone, cpuset.Set{}, ""
		default:
			all = p.update(pod, &list.Items[i]) && all
		}
	}
	return all && !slices.ContainsFunc(p.in(waits), p.fits)
}

// update reads a pod's state from the API server's object. It is true if the pod is not about to start or to end.
func (p *packing) update(pod *packedPod, now *corev1.Pod) bool {
	switch {
	case pod.state == deleted:
		return false
	case now.Status.Phase == corev1.PodFailed || now.Status.Phase == corev1.PodSucceeded:
		end := strings.TrimSpace(string(now.Status.Phase) + " " + now.Status.Reason)
		if p.ends[end]++; p.ends[end] == 1 {
			p.t.Logf("pod %s with %d CPUs: %s: %s", pod.name, pod.cpus, end, now.Status.Message)
		}
		p.delete(pod)
		return false
	case pod.state == runs:
		return true
	case now.Spec.NodeName == "":
		return slices.ContainsFunc(now.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse
		})
	case len(now.Status.ContainerStatuses) == 0 || now.Status.ContainerStatuses[0].State.Running == nil:
		return false
	}
	seen := p.seen(pod.name)
	if seen["shown"] != "all" {
		return false
	}
	p.started(pod, seen)
	return true
}

// seen is what the container of a pod has printed; empty if it cannot be read yet.
func (p *packing) seen(pod string) map[string]string {
	seen := map[string]string{}
	log, err := p.Open(p.t.Context(), http.MethodGet, podsPath+"/"+pod+"/log", "")
	if err != nil {
		return seen
	}
	defer log.Close()
	text, err := io.ReadAll(io.LimitReader(log, 1<<20))
	if err != nil {
		return seen
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		seen[strings.TrimPrefix(name, "env.")] = value
	}
	return seen
}

// started compares what a container has with its request, its device and the containers that run.
func (p *packing) started(pod *packedPod, seen map[string]string) {
	p.t.Helper()
	pod.state, pod.gpu = runs, seen["GPU"]
	var err error
	if pod.on, err = cpuset.Parse(seen["affinity"]); err != nil {
		p.t.Fatalf("pod %s has the CPUs %q: %v", pod.name, seen["affinity"], err)
	}
	node := p.nodeOf(pod.gpu)
	if node < 0 {
		p.t.Fatalf("pod %s has the device %q, expected one of %v", pod.name, pod.gpu, p.gpus)
	}
	if pod.on.Len() != pod.cpus || !pod.on.IsSubsetOf(p.nodes[node]) {
		p.unaligned++
		p.t.Logf("pod %s has the CPUs %v beside device %s, expected %d of %v", pod.name, pod.on, pod.gpu, pod.cpus, p.nodes[node])
	}
	if p.byNode && (seen["BERTH_CPUS"] != seen["affinity"] || seen["BERTH_NUMA_NODES"] != strconv.Itoa(node) ||
		seen["GPU_NUMA_NODE"] != strconv.Itoa(node)) {
		p.t.Errorf("pod %s has the CPUs %s, and its claim %s of NUMA node %s beside device %s of node %s", pod.name, seen["affinity"],
			seen["BERTH_CPUS"], seen["BERTH_NUMA_NODES"], pod.gpu, seen["GPU_NUMA_NODE"])
	}
	for _, other := range p.in(runs) {
		if other != pod && (other.on.Overlaps(pod.on) || other.gpu == pod.gpu) {
			p.t.Errorf("pod %s has the CPUs %v and device %s, and pod %s has %v and %s", pod.name, pod.on, pod.gpu, other.name, other.on,
				other.gpu)
		}
	}
}

// nodeOf is the NUMA node of a device, -1 if there is no such device.
func (m *clusterMachine) nodeOf(gpu string) int {
	i := slices.IndexFunc(m.gpus, func(o string) bool { return strings.HasPrefix(o, gpu+"@") })
	if i < 0 {
		return -1
	}
	return i / gpusPerNode
}

// fits reports whether the scheduler counts enough for a pod beside those that run.
func (p *packing) fits(pod *packedPod) bool {
	free, devices, sum := p.forPods(), make([]int, len(p.nodes)), len(p.gpus)
	for node := range devices {
		devices[node] = gpusPerNode
	}
	for _, other := range p.in(runs) {
		free = free.Minus(other.on)
		devices[p.nodeOf(other.gpu)]--
		sum--
	}
	if !p.byNode {
		return free.Len() >= pod.cpus && sum > 0
	}
	for node, cpus := range p.nodes {
		if free.IntersectLen(cpus) >= pod.cpus && devices[node] > 0 {
			return true
		}
	}
	return false
}
