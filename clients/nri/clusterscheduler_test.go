package main

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthd/berth/hack/cluster"
	"github.com/berthd/berth/hack/testing/containerd"
)

// schedulerVariable names the program of scheduler-plugins. It is not of this repository; hack/cluster/scheduler.sh builds it.
const schedulerVariable = "BERTH_SCHEDULER"

// readsTopology lets the scheduler read the objects, as the installation of scheduler-plugins does.
const readsTopology = `{"apiVersion": "v1", "kind": "List", "items": [
	{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "reads-topology"}, "rules": [
		{"apiGroups": ["topology.node.k8s.io"], "resources": ["noderesourcetopologies"], "verbs": ["get", "list", "watch"]}]},
	{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "reads-topology"},
		"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reads-topology"},
		"subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:kube-scheduler"}]}]}`

// schedulerOfThePage is the scheduler's configuration on docs/kubernetes.md.
func schedulerOfThePage(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		if strings.Contains(block[1], "kind: KubeSchedulerConfiguration") {
			return block[1]
		}
	}
	t.Fatal("docs/kubernetes.md has no configuration of the scheduler")
	return ""
}

// TestClusterScheduler: the plugin NodeResourceTopologyMatch, configured as the page says, and the objects of two nodes. Pods that have
// ended stay, and the plugin and berth-nri still agree which pods count: others get their CPUs.
func TestClusterScheduler(t *testing.T) {
	program := os.Getenv(schedulerVariable)
	if program == "" {
		t.Skipf("needs the scheduler with the plugin: %s names the program that hack/cluster/scheduler.sh builds", schedulerVariable)
	}
	i := newInstaller(t, cluster.Options{Nodes: 2, Timeout: 2 * time.Minute, Kubelet: map[string]any{"reservedSystemCPUs": "0"}})
	i.manifests = publishing
	i.must("apply", "-k", i.Path("kubernetes", "crd"))
	i.must("wait", "--for=condition=Established", "--timeout=60s", "crd/noderesourcetopologies.topology.node.k8s.io")
	i.configure("cpu: {policy: static}\ntopology: {policy: single-numa-node}\n")
	i.must("-n", "berth-system", "rollout", "status", "daemonset/berth", "--timeout=180s")
	for _, h := range i.Hosts() {
		i.Eventually("node "+h.Name+" has an object", func() bool {
			_, err := i.Kubectl("get", "noderesourcetopology", h.Name)
			return err == nil
		})
	}
	i.Apply(readsTopology)
	_ = i.End("kube-scheduler", os.Kill) // the error is that it was killed
	config := strings.Replace(schedulerOfThePage(t), "profiles:\n", "clientConnection: {kubeconfig: "+i.Path("scheduler.kubeconfig")+
		"}\nleaderElection: {leaderElect: false}\npodMaxBackoffSeconds: 1\nprofiles:\n", 1)
	if err := os.WriteFile(i.Path("numa-scheduler.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	i.Start("numa-scheduler", exec.Command(program, "--config", i.Path("numa-scheduler.yaml"), "--secure-port", "0", "-v", "4"))
	defer func() {
		if !t.Failed() {
			return
		}
		var of strings.Builder // what the plugin says of its copies of the objects
		for line := range strings.Lines(i.Log("numa-scheduler").String()) {
			if strings.Contains(line, "nrtcache") {
				of.WriteString(line)
			}
		}
		objects, _ := i.Kubectl("get", "noderesourcetopologies", "-o", "yaml")
		t.Logf("numa-scheduler:\n%s\n%s", of.String()[max(0, of.Len()-8000):], objects)
	}()

	i.exclusive("done0", `"exit", "0"`, corev1.PodSucceeded)
	i.exclusive("done1", `"exit", "0"`, corev1.PodSucceeded)
	// The plugin counts on what the pods that have ended held, until its fingerprint is that of the object.
	i.exclusive("trainer0", `"wait"`, corev1.PodRunning)
	i.exclusive("trainer1", `"wait"`, corev1.PodRunning)
	i.must("delete", "pod", "trainer0", "--grace-period=1", "--wait=true", "--timeout=120s")
	i.exclusive("late", `"wait"`, corev1.PodRunning)
	if text := i.Log("numa-scheduler").String(); !strings.Contains(text, "flushing") {
		t.Error("the plugin never took over an object: it was not asked")
	}
	i.noneRefused("with the plugin")
	i.must("delete", "-k", i.Path("overlay"), "--wait=true", "--timeout=120s")
}

// quiet is how long the plugin is left alone until it has taken over an object. It looks for such objects every five seconds, but not
// for one whose node got a pod meanwhile.
const quiet = 12 * time.Second

// exclusive creates a pod with all CPUs of a node that pods can have alone, and waits for its phase. Now and then another pod comes and
// goes: the plugin wakes no pod when it takes over an object, so one that it has refused is tried again at the next event.
func (i *installer) exclusive(name, command string, phase corev1.PodPhase) {
	i.t.Helper()
	i.create(podsPath, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q}, "spec": {"restartPolicy": "Never",
		"terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false, "containers": [{"name": "main", "image": %q,
		"imagePullPolicy": "Never", "command": ["/probe", %s], "resources": {"limits": {"cpu": "%d", "memory": "64Mi"}}}]}}`,
		name, containerd.ProbeImage, command, runtime.NumCPU()-1))
	last := time.Now()
	i.Eventually(name+" is "+string(phase), func() bool {
		if time.Since(last) > quiet {
			i.pods++
			i.start(fmt.Sprintf("p%d", i.pods))
			last = time.Now()
		}
		var p corev1.Pod
		err := i.Call(i.t.Context(), http.MethodGet, podsPath+"/"+name, "", &p)
		return err == nil && p.Status.Phase == phase
	})
}
