package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthd/berth/hack/cluster"
	"github.com/berthd/berth/hack/testing/containerd"
)

// installer is a node on which berth is installed while pods come and go.
type installer struct {
	*kubernetes
	pods int
	// manifests are what is applied; "kubernetes" is the default installation.
	manifests string
}

// newInstaller starts a cluster whose nodes have the images and the files of an installation.
func newInstaller(t *testing.T, o cluster.Options) *installer {
	t.Helper()
	cluster.Need(t) // before something is built for it
	if runtime.NumCPU() < 2 {
		t.Skipf("needs 2 CPUs, one of them for the system; here are %d", runtime.NumCPU())
	}
	built, err := programs.Dir()
	if err != nil {
		t.Fatal(err)
	}
	o.Image = filepath.Join(built, "root", "probe")
	c := cluster.Run(t, o)
	i := &installer{kubernetes: &kubernetes{t: t, built: built, Cluster: c}, manifests: "kubernetes"}
	i.socket = i.socketOf(c.Host)
	i.prepareNodes()
	return i
}

// comeAndGo starts pods one after the other, each of which ends when the next ones run, and returns the times of their starts.
// A pod that berth refuses is an error.
func (i *installer) comeAndGo(when string, count int) []time.Duration {
	i.t.Helper()
	var took []time.Duration
	for range count {
		i.pods++
		took = append(took, i.start(fmt.Sprintf("p%d", i.pods)))
	}
	i.noneRefused(when)
	slices.Sort(took)
	i.t.Logf("%s: %d pods, started within %s at the median, %s at most", when, count, took[len(took)/2].Round(time.Millisecond),
		took[len(took)-1].Round(time.Millisecond))
	return took
}

// start creates a pod with shared CPUs, waits until it runs, and deletes it. Its end is not waited for.
func (i *installer) start(name string) time.Duration {
	i.t.Helper()
	began := time.Now()
	i.create(podsPath, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q}, "spec": {"terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false, "containers": [
		{"name": "main", "image": %q, "imagePullPolicy": "Never", "command": ["/probe", "wait"], "resources": %s}]}}`, name, containerd.ProbeImage, `{"requests": {"memory": "16Mi"}, "limits": {"memory": "64Mi"}}`))
	i.Eventually("the container of "+name+" runs", func() bool {
		var p corev1.Pod
		err := i.Call(i.t.Context(), http.MethodGet, podsPath+"/"+name, "", &p)
		return err == nil && len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Running != nil
	})
	took := time.Since(began)
	if err := i.Call(i.t.Context(), http.MethodDelete, podsPath+"/"+name, "", nil); err != nil {
		i.t.Fatal(err)
	}
	return took
}

// noneRefused checks the events of all pods.
func (i *installer) noneRefused(when string) {
	i.t.Helper()
	for _, e := range i.events("Pod") {
		if e.Source.Component == "kubelet" && strings.Contains(e.Message, "berth: ") {
			i.t.Errorf("%s, a pod was refused: %s: %s", when, e.InvolvedObject.Name, e.Message)
		}
	}
}

// events are those of a kind of object, in all namespaces.
func (i *installer) events(kind string) []corev1.Event {
	i.t.Helper()
	var list corev1.EventList
	if err := i.Call(i.t.Context(), http.MethodGet, "/api/v1/events?fieldSelector=involvedObject.kind%3D"+kind, "", &list); err != nil {
		i.t.Fatal(err)
	}
	return list.Items
}

// hasEvent waits for an event about an object, with a text in its message.
func (i *installer) hasEvent(kind, name, reason, text string) {
	i.t.Helper()
	i.Eventually(fmt.Sprintf("%s %s has the event %s with %q", kind, name, reason, text), func() bool {
		return slices.ContainsFunc(i.events(kind), func(e corev1.Event) bool {
			return e.InvolvedObject.Name == name && e.Reason == reason && strings.Contains(e.Message, text)
		})
	})
}

// condition waits until every node has the condition BerthReady with a reason, and a text in its message.
func (i *installer) condition(reason, text string) {
	i.t.Helper()
	for _, h := range i.Hosts() {
		i.conditionOf(h, reason, text)
	}
}

func (i *installer) conditionOf(h *cluster.Host, reason, text string) {
	i.t.Helper()
	have := ""
	defer func() {
		if i.t.Failed() {
			i.t.Logf("the condition is %s", have)
		}
	}()
	i.Eventually("the condition of node "+h.Name+" is "+reason+" with "+text, func() bool {
		var n corev1.Node
		if err := i.Call(i.t.Context(), http.MethodGet, "/api/v1/nodes/"+h.Name, "", &n); err != nil {
			return false
		}
		for _, c := range n.Status.Conditions {
			if c.Type == conditionType {
				have = fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
				return c.Reason == reason && (c.Status == corev1.ConditionTrue) == nodeState{reason: reason}.ready() &&
					strings.Contains(c.Message, text)
			}
		}
		return false
	})
}

// configure applies the installation with a configuration of berthd; empty for the default.
func (i *installer) configure(configuration string) {
	i.t.Helper()
	i.writeOverlay(i.manifests, tagOlder)
	if configuration != "" {
		path := i.Path("overlay", "kustomization.yaml")
		text, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(path,
				append(text, "configMapGenerator:\n- {name: berthd, namespace: berth-system, behavior: replace, files: [berthd.yaml]}\n"...), 0o644)
		}
		if err == nil {
			err = os.WriteFile(i.Path("overlay", "berthd.yaml"),
				[]byte("apiVersion: config.berthd.github.io/v1alpha1\nkind: BerthConfiguration\nbeside: kubelet\n"+configuration), 0o644)
		}
		if err != nil {
			i.t.Fatal(err)
		}
	}
	i.must("apply", "-k", i.Path("overlay"))
}

const wrongConfiguration, rightConfiguration = "cpu: {policy: statik}\n",
	"http: 127.0.0.1:10470\nkubeletMetrics: false\ncpu: {policy: static}\ntopology: {policy: best-effort}\n"

// TestClusterInstall installs berth on a node whose kubelet reserves no CPU, which is kubeadm's default, while pods come and go. A
// configuration that berthd does not start with refuses no pod there, and is said in the condition of the node, in an event, and in
// the status of the DaemonSet's pod. When berthd is ready for the first time, what runs is placed. From then on, no container starts
// without its place. Beside a kubelet that assigns CPUs itself, nothing is placed.
func TestClusterInstall(t *testing.T) {
	i := newInstaller(t, cluster.Options{})
	all, own, milli := "0-"+strconv.Itoa(runtime.NumCPU()-1), range1(runtime.NumCPU()-1), (runtime.NumCPU()-1)*1000
	i.comeAndGo("without berth", 30)

	i.configure(wrongConfiguration)
	i.comeAndGo("while it is installed", 30)
	i.condition(reasonNeverReady, "failed: ")
	i.condition(reasonNeverReady, "cpu.policy: expected one of none, static")
	i.hasEvent("Node", cluster.Node, "BerthNeverReady", "cpu.policy: expected one of none, static")
	i.Eventually("the status of the DaemonSet's pod says it", func() bool {
		text, err := i.Kubectl("-n", "berth-system", "get", "pods", "-o",
			`jsonpath={.items[*].status.initContainerStatuses[0].state.terminated.message}`)
		return err == nil && strings.HasPrefix(text, "failed: ") && strings.Contains(text, "cpu.policy")
	})
	i.comeAndGo("while berthd has never been ready", 30)
	i.apply("trainer", fmt.Sprintf(`{"limits": {"cpu": "%dm", "memory": "64Mi"}}`, milli))
	trainer := i.pid("trainer")
	i.apply("late", fmt.Sprintf(`{"limits": {"cpu": "%dm", "memory": "64Mi"}, "requests": {"cpu": "%dm", "memory": "64Mi"}}`, 1000, 1000))
	late := i.pid("late")

	i.configure("")
	i.comeAndGo("while berthd is ready for the first time", 30)
	i.must("-n", "berth-system", "rollout", "status", "daemonset/berth", "--timeout=180s")
	i.condition(reasonReady, "berth places the pods")
	i.runsOn("after the first start of berthd", own, trainer)
	i.hasEvent("Pod", "trainer", "Placed", "its memory stays where it is")
	i.hasEvent("Pod", "late", "NotPlaced", "is on the shared CPUs until berthd has a place")
	i.runsOn("after the first start of berthd", "0", late)
	i.hasEvent("Node", cluster.Node, "SchedulerCountsMore", "CPUs 0 stay shared (reserved.oneIfNone)")
	i.must("delete", "pod", "late", "--grace-period=1")
	i.comeAndGo("after the default installation", 30)
	i.writesOwnConditionOnly()

	i.configure(wrongConfiguration)
	i.condition(reasonBerthdNotReady, "cpu.policy: expected one of none, static")
	i.apply("refused", `{}`)
	i.Eventually("a pod is refused without berthd, which was ready before", func() bool {
		return slices.ContainsFunc(i.events("Pod"), func(e corev1.Event) bool {
			return e.InvolvedObject.Name == "refused" && strings.Contains(e.Message, "berth: ")
		})
	})
	i.configure(rightConfiguration)
	i.pid("refused")
	i.condition(reasonReady, "berth places the pods")
	i.runsOn("after another configuration", own, trainer)
	i.must("delete", "pod", "refused", "--grace-period=1")

	i.kubelet(map[string]any{"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"})
	i.condition(reasonKubeletStatic, "CPU manager has the policy static")
	i.hasEvent("Node", cluster.Node, "BerthKubeletStaticPolicy", "CPU manager has the policy static")
	i.apply("static", `{}`)
	i.pid("static")
	i.kubelet(map[string]any{"cpuManagerPolicy": "none", "reservedSystemCPUs": ""})
	i.condition(reasonReady, "berth places the pods")

	i.must("delete", "-k", i.Path("overlay"), "--wait=true", "--timeout=120s")
	i.runsOn("after the removal", all, trainer)
	i.Eventually("the node has lost the condition, or the line of the page removes it", func() bool {
		_, err := i.Kubectl("patch", "node", cluster.Node, "--subresource=status", "-p",
			`{"status":{"conditions":[{"type":"BerthReady","$patch":"delete"}]}}`)
		text, getErr := i.Kubectl("get", "node", cluster.Node, "-o", "jsonpath={.status.conditions[*].type}")
		return err == nil && getErr == nil && !strings.Contains(text, conditionType) && strings.Contains(text, "Ready")
	})
}

// writesOwnConditionOnly: the token of berth's pod is good for the condition BerthReady of its own node only.
func (i *installer) writesOwnConditionOnly() {
	i.t.Helper()
	ctx, cancel := context.WithTimeout(i.t.Context(), i.Timeout)
	defer cancel()
	if err := i.Call(ctx, http.MethodPost, "/api/v1/nodes", `{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "another"}}`,
		nil); err != nil {
		i.t.Fatal(err)
	}
	defer i.must("delete", "node", "another")
	pod := strings.TrimSpace(i.must("-n", "berth-system", "get", "pods", "-l", "app.kubernetes.io/name=berth", "-o",
		"jsonpath={.items[0].metadata.name}"))
	bound := strings.TrimSpace(i.must("-n", "berth-system", "create", "token", "berth", "--bound-object-kind=Pod",
		"--bound-object-name="+pod))
	unbound := strings.TrimSpace(i.must("-n", "berth-system", "create", "token", "berth"))
	const ours = `{"status": {"conditions": [{"type": "BerthReady", "status": "True", "reason": "Try"}]}}`
	for _, c := range []struct{ token, node, body, want string }{
		{bound, cluster.Node, ours, ""},
		{bound, "another", ours, "of its own node only"},
		{unbound, cluster.Node, ours, "of its own node only"},
		{bound, cluster.Node, `{"status": {"conditions": [{"type": "Ready", "status": "False"}]}}`, "than the condition BerthReady"},
		{bound, cluster.Node, `{"status": {"conditions": [{"type": "Ready", "$patch": "delete"}]}}`, "than the condition BerthReady"},
		{bound, cluster.Node, `{"status": {"conditions": [{"type": "Another", "status": "True"}]}}`, "than the condition BerthReady"},
		{bound, cluster.Node, `{"status": {"capacity": {"example.com/gpu": "8"}}}`, "than the condition BerthReady"},
		{bound, cluster.Node, `{"status": {"addresses": null}}`, "than the condition BerthReady"},
		{bound, cluster.Node, `{"metadata": {"labels": {"a": "b"}}}`, "nothing of its node but the condition"},
		{bound, cluster.Node, `{"metadata": {"annotations": {"a": "b"}}}`, "nothing of its node but the condition"},
	} {
		answer := i.patchStatus(ctx, c.token, c.node, c.body)
		if refused := answer != ""; refused != (c.want != "") || refused && !strings.Contains(answer, c.want) {
			i.t.Errorf("the pod writes %s of node %s: %q, want %q", c.body, c.node, answer, c.want)
		}
	}
}

// patchStatus tries a change of a node's status with a token. The answer is empty if it is allowed.
func (i *installer) patchStatus(ctx context.Context, token, node, body string) string {
	i.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPatch, cluster.APIServer+"/api/v1/nodes/"+node+"/status?dryRun=All",
		strings.NewReader(body))
	if err != nil {
		i.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/strategic-merge-patch+json")
	answer, err := i.HTTP().Do(req)
	if err != nil {
		i.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		i.t.Fatal(err)
	}
	if answer.StatusCode < http.StatusMultipleChoices {
		return ""
	}
	return string(text)
}
