package main

import (
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

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
	i.asked()
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

// asked asks all nodes with the plugin of kubectl: one table has the pods of all, a pod is explained by its own node, and a pod for which
// there is no room fits nowhere.
func (i *installer) asked() {
	i.t.Helper()
	began := time.Now()
	text, err := i.Plugin(i.built, "berth", "get", "pods", "--all-nodes", "--namespace", "default")
	i.t.Logf("kubectl berth get pods of %d nodes took %v:\n%s", len(i.Hosts()), time.Since(began).Round(time.Millisecond), text)
	if err != nil || !strings.HasPrefix(text, "NODE ") {
		i.t.Errorf("kubectl berth get pods: %v\n%s", err, text)
	}
	for _, h := range i.Hosts() {
		if !regexp.MustCompile(`(?m)^` + h.Name + ` +default +trainer\d `).MatchString(text) {
			i.t.Errorf("kubectl berth get pods has no trainer on %s:\n%s", h.Name, text)
		}
	}
	for _, row := range []struct{ args, want string }{
		{"berth explain trainer1", "default/trainer1 admitted"}, {"berth map " + i.Hosts()[0].Name, "default/trainer"},
		{"berth check " + i.Hosts()[1].Name, "the ledger is sound"},
	} {
		if text, err := i.Plugin(i.built, strings.Fields(row.args)...); err != nil || !strings.Contains(text, row.want) {
			i.t.Errorf("kubectl %s: %v\n%s", row.args, err, text)
		}
	}
	file := i.Path("more.yaml")
	pod := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: more}\nspec: {containers: [{name: main, image: x, "+
		"resources: {limits: {cpu: %d, memory: 64Mi}}}]}\n", runtime.NumCPU()-1)
	if err := os.WriteFile(file, []byte(pod), 0o600); err != nil {
		i.t.Fatal(err)
	}
	text, err = i.Plugin(i.built, "berth", "fit", "-f", file)
	if err == nil || !strings.Contains(text, "default/more fits now on 0 of 3 nodes") {
		i.t.Errorf("kubectl berth fit: %v\n%s", err, text)
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
