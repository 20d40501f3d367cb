package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthd/berth/hack/cluster"
	"github.com/berthd/berth/hack/testing/containerd"
	"github.com/berthd/berth/managers/cpuset"
)

// The variables that a virtual machine sets for its tests (hack/vm/README.md).
const (
	vmDisk = "BERTH_VM_DISK"
	vmBoot = "BERTH_VM_BOOT"
	vmLast = "BERTH_VM_LAST"
)

// TestClusterMachine runs a cluster on a machine of its own with two NUMA nodes, which is turned off without a
// warning and booted again. The first boot installs berth with kubectl apply -k, aligns pods with a device and
// refuses one that does not fit. In the last one the pods come back, and kubectl delete -k gives the node back.
func TestClusterMachine(t *testing.T) {
	cluster.Need(t)
	disk, last := os.Getenv(vmDisk), os.Getenv(vmLast) != ""
	if disk == "" {
		t.Skipf("needs a machine that is turned off: %s, which names its disk, is empty; hack/cluster/test.sh boots one", vmDisk)
	}
	boot, err := strconv.Atoi(os.Getenv(vmBoot))
	if err != nil || boot == 0 && last {
		t.Skipf("needs a machine that is booted at least twice: %s=%q, %s=%q", vmBoot, os.Getenv(vmBoot), vmLast, os.Getenv(vmLast))
	}
	m := newClusterMachine(t, cluster.Options{}, disk, nil)
	if len(m.nodes) != 2 || m.nodes[1].Len() != 2 {
		t.Fatalf("the machine has NUMA nodes with the CPUs %v, expected 2 nodes, and 2 CPUs on the second", m.nodes)
	}
	m.Start("plugin", exec.Command(filepath.Join(m.built, "plugin"), "-devices", "gpu0@1,gpu1@1"))
	if boot == 0 {
		m.install()
		m.placeOnNodes()
	} else {
		m.comeBack()
	}
	if text, err := m.berthctl("ledger", "check"); err != nil {
		t.Errorf("check of the ledger: %v: %s", err, text)
	}
	if last {
		m.remove()
	}
}

// clusterMachine is a cluster on a machine of several NUMA nodes.
type clusterMachine struct {
	*kubernetes
	// all are the machine's CPUs, nodes those of each NUMA node.
	all   cpuset.Set
	nodes []cpuset.Set
	// gpus are devices, each with @ and its NUMA node.
	gpus []string
}

// newClusterMachine starts a cluster whose files are on the disk. The kubelet gets more values in its configuration.
func newClusterMachine(t *testing.T, o cluster.Options, disk string, more map[string]any) *clusterMachine {
	t.Helper()
	m := &clusterMachine{}
	for {
		text, err := os.ReadFile(fmt.Sprintf("/sys/devices/system/node/node%d/cpulist", len(m.nodes)))
		if errors.Is(err, fs.ErrNotExist) && len(m.nodes) > 1 {
			break
		}
		var cpus cpuset.Set
		if err == nil {
			cpus, err = cpuset.Parse(strings.TrimSpace(string(text)))
		}
		if err != nil {
			t.Skipf("needs a machine of two NUMA nodes or more: %v", err)
		}
		m.nodes, m.all = append(m.nodes, cpus), m.all.Union(cpus)
	}
	built, err := programs.Dir()
	if err != nil {
		t.Fatal(err)
	}
	const dir = "/disk"
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount(disk, dir, "ext4", 0, ""); err != nil {
		t.Fatalf("mount %s: %v", disk, err)
	}
	node := filepath.Join(dir, "node")
	if err := os.MkdirAll(node, 0o755); err != nil {
		t.Fatal(err)
	}
	// A machine has an empty /run after its boot.
	if err := os.RemoveAll(filepath.Join(node, runDir)); err != nil {
		t.Fatal(err)
	}
	// The machine is emulated. Each step has a deadline, and hack/vm bounds the whole.
	o.Kubelet = map[string]any{"reservedSystemCPUs": "0", "nodeStatusUpdateFrequency": "10s", "runtimeRequestTimeout": "15m"}
	maps.Copy(o.Kubelet, more)
	o.Image, o.Systemd, o.Dir, o.Timeout = filepath.Join(built, "root", "probe"), true, node, 15*time.Minute
	c := cluster.Run(t, o)
	m.kubernetes = &kubernetes{t: t, built: built, Cluster: c, socket: c.Path(runDir, "berth.sock")}
	return m
}

// install applies the manifests with the policy that has everything of a pod on one node.
func (m *clusterMachine) install() {
	m.t.Helper()
	m.t.Log("the cluster runs; next: install berth")
	m.prepareNodes()
	m.writeOverlay("kubernetes/overlays/single-numa-node", tagNewer)
	m.must("apply", "-k", m.Path("overlay"))
	m.must("-n", "berth-system", "rollout", "status", "daemonset/berth", "--timeout=15m")
	m.Eventually("the node has the devices", func() bool {
		var node corev1.Node
		err := m.Call(m.t.Context(), http.MethodGet, "/api/v1/nodes/"+cluster.Node, "", &node)
		devices := node.Status.Allocatable["example.com/gpu"]
		return err == nil && devices.Value() == 2
	})
}

// set makes a replica set of one pod: after a boot the kubelet fails pods whose devices are not there yet, and
// the set replaces them.
func (m *clusterMachine) set(name string, cpus int) {
	m.t.Helper()
	m.Apply(fmt.Sprintf(`{"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": %[1]q}, "spec": {"replicas": 1, "selector": {"matchLabels": {"app": %[1]q}},
		"template": {"metadata": {"labels": {"app": %[1]q}}, "spec": {"terminationGracePeriodSeconds": 1, "containers": [
		{"name": "main", "image": %[2]q, "imagePullPolicy": "Never", "command": ["/probe", "show", ",", "wait"],
		"resources": {"limits": {"cpu": "%[3]d", "memory": "64Mi", "example.com/gpu": "1"}}}]}}}}`, name, containerd.ProbeImage, cpus))
}

// running waits until a replica set's pod runs, and returns the process of its container.
func (m *clusterMachine) running(set string) (pid int) {
	m.t.Helper()
	m.Eventually("the pod of "+set+" runs", func() bool {
		var pods corev1.PodList
		err := m.Call(m.t.Context(), http.MethodGet, podsPath+"?labelSelector=app%3D"+set, "", &pods)
		if err != nil {
			return false
		}
		for _, p := range pods.Items { // one that has failed is still there
			if pid = m.process(p); pid != 0 {
				return true
			}
		}
		return false
	})
	return pid
}

// placeOnNodes has a pod with two CPUs and a device, and another one for which the device's node has too few CPUs: it is
// refused until the first one has gone.
func (m *clusterMachine) placeOnNodes() {
	m.t.Helper()
	m.t.Log("berth is installed; next: a pod beside its device")
	m.apply("web", `{}`)
	m.set("trainer", 2)
	m.pid("web")
	m.exclusive(m.running("trainer"), 2, m.nodes[1])

	m.t.Log("next: a pod that does not fit")
	m.set("rival", 1)
	var event string
	m.Eventually("the pod that does not fit has an event", func() bool {
		var events corev1.EventList
		err := m.Call(m.t.Context(), http.MethodGet, "/api/v1/namespaces/default/events?fieldSelector=reason%3DFailedCreatePodSandBox",
			"", &events)
		if err != nil {
			return false
		}
		for _, e := range events.Items {
			if strings.Contains(e.Message, "TopologyAffinityError") {
				event = e.Message
			}
		}
		return event != ""
	})
	for _, want := range []string{"cpu on NUMA node 1: 1 needed, 0 free", "on NUMA node 1"} {
		if !strings.Contains(event, want) {
			m.t.Errorf("the event lacks %q:\n%s", want, event)
		}
	}
	m.t.Logf("next: it fits; before, its event was: %s", event)
	m.must("delete", "replicaset", "trainer", "--cascade=foreground", "--timeout=15m")
	m.exclusive(m.running("rival"), 1, m.nodes[1])

	m.apply("keeper", `{"limits": {"cpu": "1", "memory": "64Mi"}}`)
	m.exclusive(m.pid("keeper"), 1, m.all)
}

// comeBack checks the pods after a boot: each runs again, and has CPUs of its own if it had.
func (m *clusterMachine) comeBack() {
	m.t.Helper()
	m.t.Log("the cluster runs after a boot; next: the pods are back")
	m.must("-n", "berth-system", "rollout", "status", "daemonset/berth", "--timeout=15m")
	m.pid("web")
	m.exclusive(m.running("rival"), 1, m.nodes[1])
	m.exclusive(m.pid("keeper"), 1, m.all)
}

// exclusive waits until the process of a container has so many CPUs of a set, no process of another pod may run on them, and
// the pod has no quota, by what the kernel says.
func (m *clusterMachine) exclusive(pid, n int, of cpuset.Set) {
	m.t.Helper()
	own := filepath.Dir(cgroupFile(m.t, pid, "cpuset", "cpuset.cpus", "cpuset.cpus.effective"))
	why := ""
	defer func() {
		if m.t.Failed() {
			m.t.Log(why)
		}
	}()
	m.Eventually(fmt.Sprintf("process %d has %d CPUs of %v alone", pid, n, of), func() bool {
		text, err := os.ReadFile(filepath.Join(own, "cpuset.cpus.effective"))
		if err != nil {
			why = err.Error()
			return false
		}
		cpus, err := cpuset.Parse(strings.TrimSpace(string(text)))
		if err != nil || cpus.Len() != n || !cpus.IsSubsetOf(of) || allowed(pid) != cpus.String() {
			why = fmt.Sprintf("cpuset %q, the process may run on %s, %v", text, allowed(pid), err)
			return false
		}
		if quota, err := os.ReadFile(filepath.Join(filepath.Dir(own), "cpu.max")); err != nil || !strings.HasPrefix(string(quota), "max ") {
			why = fmt.Sprintf("the pod has the quota %q, %v", quota, err)
			return false
		}
		why = othersOn(own, cpus)
		return why == ""
	})
}

// othersOn names a process of a pod, but for those of one container, that may run on some CPUs; empty if there is none.
func othersOn(container string, cpus cpuset.Set) string {
	const pods = "/sys/fs/cgroup/kubepods.slice"
	found := ""
	err := filepath.WalkDir(pods, func(path string, d os.DirEntry, err error) error {
		if err != nil || filepath.Base(path) != "cgroup.procs" || filepath.Dir(path) == container {
			return nil // a cgroup that has gone
		}
		text, _ := os.ReadFile(path)
		for field := range strings.FieldsSeq(string(text)) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				return err
			}
			if may, err := cpusOf(pid); err == nil && may.Overlaps(cpus) {
				found = fmt.Sprintf("process %d of %s may run on %v", pid, path, may)
			}
		}
		return nil
	})
	if err != nil {
		return err.Error()
	}
	return found
}

// remove deletes the manifests: every container may run on all CPUs, and has the quota that the kubelet set.
func (m *clusterMachine) remove() {
	m.t.Helper()
	m.t.Log("next: berth is removed")
	web, keeper, rival := m.pid("web"), m.pid("keeper"), m.running("rival")
	m.must("delete", "-k", m.Path("overlay"), "--wait=true", "--timeout=15m")
	m.runsOn("after the removal", m.all.String(), web, keeper, rival)
	if quota := quotaOf(m.t, keeper); quota != "100000" {
		m.t.Errorf("after the removal the container has the quota %q, want 100000", quota)
	}
	if quota := quotaOf(m.t, rival); quota != "100000" {
		m.t.Errorf("after the removal the container has the quota %q, want 100000", quota)
	}
}
