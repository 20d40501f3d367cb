package main

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/berthd/berth/hack/cluster"
	"github.com/berthd/berth/hack/testing/containerd"
)

// TestClusterInstallNodes installs berth on three nodes whose kubelets reserve no CPU while pods come and go on all of them: first without
// berth, to compare how long they take to start, then while it is installed, with it, while the kubelets get a reservation, and beside pods
// with CPUs of their own on each node. No pod is refused.
func TestClusterInstallNodes(t *testing.T) {
	i := newInstaller(t, cluster.Options{Nodes: 3})
	i.comeAndGo("without berth", 30)
	i.configure("")
	i.comeAndGo("while it is installed", 30)
	i.must("-n", "berth-system", "rollout", "status", "daemonset/berth", "--timeout=180s")
	i.condition(reasonReady, "berth places the pods")
	for _, h := range i.Hosts() {
		i.hasEvent("Node", h.Name, "SchedulerCountsMore", "CPUs 0 stay shared (reserved.oneIfNone)")
	}
	i.comeAndGo("after the default installation", 30)

	i.reserve()
	own, all := range1(runtime.NumCPU()-1), range0(runtime.NumCPU()-1)
	var trainers, webs []int
	for _, h := range i.Hosts() {
		i.applyOn(h, "web-"+h.Name)
		webs = append(webs, i.pid("web-"+h.Name))
	}
	for n := range i.Hosts() {
		// The scheduler finds the node: each has room for one.
		i.apply(fmt.Sprintf("trainer%d", n), fmt.Sprintf(`{"limits": {"cpu": "%d", "memory": "64Mi"}}`, runtime.NumCPU()-1))
	}
	for n := range i.Hosts() {
		trainers = append(trainers, i.pid(fmt.Sprintf("trainer%d", n)))
	}
	i.runsOn("with the reservation", own, trainers...)
	i.runsOn("beside them", "0", webs...)
	i.oneOnEach(len(trainers))
	i.comeAndGo("beside exclusive pods", 30)
	i.runsOn("after other pods came and went", own, trainers...)
	i.runsOn("after other pods came and went", "0", webs...)

	i.must("delete", "-k", i.Path("overlay"), "--wait=true", "--timeout=120s")
	if !i.Containerd.CRIO { // its NRI takes no updates at any time, so containers keep their CPUs until their next event
		i.runsOn("after the removal", all, append(trainers, webs...)...)
	}
}

// applyOn creates a pod on the shared CPUs of a node.
func (i *installer) applyOn(h *cluster.Host, name string) {
	i.t.Helper()
	i.create(podsPath, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q}, "spec": {"nodeName": %q, "terminationGracePeriodSeconds": 1, "containers": [
		{"name": "main", "image": %q, "imagePullPolicy": "Never", "command": ["/probe", "wait"]}]}}`, name, h.Name, containerd.ProbeImage))
}

// reserve gives each kubelet the reservation that the default stands in for, as the page says: in its configuration, with a restart of the
// kubelet and of the node's pod of berth, while pods come and go.
func (i *installer) reserve() {
	i.t.Helper()
	allocatable := strconv.Itoa(runtime.NumCPU() - 1)
	for _, h := range i.Hosts() {
		i.kubeletOf(h, map[string]any{"reservedSystemCPUs": "0"})
		i.writeKubeletConfig(h)
		i.must("-n", "berth-system", "delete", "pod", "--field-selector", "spec.nodeName="+h.Name)
		i.comeAndGo("while the kubelet of "+h.Name+" gets a reservation", 10)
		i.Eventually("the scheduler counts what "+h.Name+" has without the reservation", func() bool {
			text, err := i.Kubectl("get", "node", h.Name, "-o", "jsonpath={.status.allocatable.cpu}")
			return err == nil && text == allocatable
		})
	}
	i.must("-n", "berth-system", "rollout", "status", "daemonset/berth", "--timeout=180s")
	i.condition(reasonReady, "berth places the pods")
	for _, h := range i.Hosts() {
		i.socket = i.socketOf(h)
		i.Eventually("berthd of "+h.Name+" counts the same as the scheduler", func() bool {
			text, err := i.berthctl("describe", "node")
			return err == nil && !strings.Contains(text, "Scheduler:")
		})
	}
}

// oneOnEach checks that every node has one of the pods with CPUs of their own, and no room for another.
func (i *installer) oneOnEach(count int) {
	i.t.Helper()
	text := i.must("get", "pods", "-o", `jsonpath={range .items[?(@.spec.containers[0].resources.limits.cpu)]}{.spec.nodeName} {end}`)
	for _, h := range i.Hosts() {
		if n := strings.Count(text+" ", h.Name+" "); n != 1 {
			i.t.Errorf("node %s has %d pods with CPUs of their own of %d: %s", h.Name, n, count, text)
		}
	}
	i.apply("more", fmt.Sprintf(`{"limits": {"cpu": "%d", "memory": "64Mi"}}`, runtime.NumCPU()-1))
	i.unscheduled("more", "Insufficient cpu")
	i.must("delete", "pod", "more")
}
