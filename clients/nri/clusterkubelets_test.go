package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	kubeletapi "github.com/berthd/berth/api/kubelet"
	"github.com/berthd/berth/hack/cluster"
	"github.com/berthd/berth/hack/testing/containerd"
)

// kubeadmAccess is who may call a kubelet by kubeadm's default: callers whose token the API server knows, each with its rights.
var kubeadmAccess = map[string]any{
	"authentication": map[string]any{"anonymous": map[string]any{"enabled": false}, "webhook": map[string]any{"enabled": true}},
	"authorization":  map[string]any{"mode": "Webhook"},
}

// TestClusterKubelets installs berth beside kubelets without the Pods API: the one of the cluster's version with the API switched
// off, and older ones, which never had it. Their certificates are those that they have made themselves. With the default installation,
// pods are placed container by container. With the overlay kubelet-certificate, they are placed as a whole, by what the web server of the
// kubelet gives to a token with the right nodes/pods only.
func TestClusterKubelets(t *testing.T) {
	for _, row := range []struct{ name, version string }{{"off", ""}, {"v1.34", "v1.34"}, {"v1.36", "v1.36"}} {
		t.Run(row.name, func(t *testing.T) {
			config := map[string]any{}
			for name, value := range kubeadmAccess {
				config[name] = value
			}
			if row.version == "" {
				config["featureGates"] = map[string]bool{"PodsAPI": false}
			} else {
				cluster.NeedKubelet(t, row.version)
			}
			k := &oldKubelet{newInstaller(t, cluster.Options{KubeletVersion: row.version, Kubelet: config})}
			k.hasNoPodsAPI(row.version)
			k.placesByContainer()
			k.placesByServer()
		})
	}
}

// oldKubelet is a node whose kubelet has no Pods API.
type oldKubelet struct{ *installer }

// hasNoPodsAPI checks that the test tries what it says.
func (k *oldKubelet) hasNoPodsAPI(version string) {
	k.t.Helper()
	var n corev1.Node
	if err := k.Call(k.t.Context(), http.MethodGet, "/api/v1/nodes/"+cluster.Node, "", &n); err != nil {
		k.t.Fatal(err)
	}
	if has := n.Status.NodeInfo.KubeletVersion; version != "" && !strings.HasPrefix(has, version+".") {
		k.t.Fatalf("the kubelet has the version %s, expected %s", has, version)
	}
	k.t.Logf("kubelet %s", n.Status.NodeInfo.KubeletVersion)
	if _, err := os.Stat(k.Path("var", "lib", "kubelet", "pods-api", "pods-api.sock")); err == nil {
		k.t.Fatal("the kubelet has a Pods API")
	}
}

// pair creates a pod of two Guaranteed containers, which together have one CPU more than berthd gives: a fits alone.
func (k *oldKubelet) pair(name string) {
	k.t.Helper()
	container := func(name string, cpus int) string {
		return fmt.Sprintf(`{"name": %q, "image": %q, "imagePullPolicy": "Never", "command": ["/probe", "wait"], "resources": {"limits": {"cpu": "%d", "memory": "64Mi"}}}`,
			name, containerd.ProbeImage, cpus)
	}
	k.create(podsPath, fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q}, "spec": {"terminationGracePeriodSeconds": 0, "containers": [%s, %s]}}`,
		name, container("a", runtime.NumCPU()-1), container("b", 1)))
}

// hasPodEvent waits for an event of the kubelet about a pod.
func (k *oldKubelet) hasPodEvent(pod, reason string, texts ...string) {
	k.t.Helper()
	k.Eventually(fmt.Sprintf("pod %s has the event %s with %q", pod, reason, texts), func() bool {
		return slices.ContainsFunc(k.events("Pod"), func(e corev1.Event) bool {
			return e.InvolvedObject.Name == pod && e.Reason == reason &&
				!slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(e.Message, text) })
		})
	})
}

// placesByContainer installs berth as it is: it does not trust the certificate of the kubelet, and the condition says so.
func (k *oldKubelet) placesByContainer() {
	k.t.Helper()
	k.configure("")
	k.must("-n", "berth-system", "rollout", "status", "daemonset/berth", "--timeout=180s")
	k.apply("first", fmt.Sprintf(`{"limits": {"cpu": "%d", "memory": "64Mi"}}`, runtime.NumCPU()-1))
	k.runsOn("container by container", range1(runtime.NumCPU()-1), k.pid("first"))
	k.condition(reasonByContainer, "certificate signed by unknown authority")
	k.must("delete", "pod", "first", "--grace-period=1")

	// The pod is too large. Its first container starts all the same.
	k.pair("parts")
	k.hasPodEvent("parts", "Failed", "berth: ")
	k.must("delete", "pod", "parts", "--grace-period=0")
}

// placesByServer installs the overlay, under which berth trusts the certificate.
func (k *oldKubelet) placesByServer() {
	k.t.Helper()
	k.manifests = "kubernetes/overlays/kubelet-certificate"
	k.configure("")
	k.must("-n", "berth-system", "rollout", "status", "daemonset/berth", "--timeout=180s")
	k.condition(reasonKubeletServer, "because the kubelet has no Pods API")
	k.serves()

	k.pair("whole")
	k.hasPodEvent("whole", "FailedCreatePodSandBox", "berth: admit the pod: ", ": 1 needed, 0 free")
	k.must("delete", "pod", "whole", "--grace-period=0")
	k.comeAndGoUnrefused("with specifications of the web server", 20)

	own, all := range1(runtime.NumCPU()-1), range0(runtime.NumCPU()-1)
	k.apply("trainer", fmt.Sprintf(`{"limits": {"cpu": "%d", "memory": "64Mi"}}`, runtime.NumCPU()-1))
	k.apply("web", `{}`)
	trainer, web := k.pid("trainer"), k.pid("web")
	k.runsOn("as a whole", own, trainer)
	k.runsOn("as a whole", "0", web)

	// The kubelet restarts, and so does berth-nri.
	k.kubelet(nil)
	k.apply("later", `{}`)
	k.runsOn("after a restart of the kubelet", "0", k.pid("later"))
	k.must("-n", "berth-system", "delete", "pods", "--all", "--grace-period=1")
	k.must("-n", "berth-system", "rollout", "status", "daemonset/berth", "--timeout=180s")
	k.condition(reasonKubeletServer, "because the kubelet has no Pods API")
	k.runsOn("after a restart of berth", own, trainer)
	k.runsOn("after a restart of berth", "0", web, k.pid("later"))

	k.must("delete", "-k", k.Path("overlay"), "--wait=true", "--timeout=120s")
	k.runsOn("after the removal", all, trainer, web)
}

// comeAndGoUnrefused starts pods one after the other, none of which berth refuses. The pods before them may have been refused.
func (k *oldKubelet) comeAndGoUnrefused(when string, count int) {
	k.t.Helper()
	k.must("delete", "events", "--all")
	k.comeAndGo(when, count)
}

// serves checks that the kubelet gives its pods for the right that berth has, and nothing else for it.
func (k *oldKubelet) serves() {
	k.t.Helper()
	token := func(namespace, account string) string {
		return strings.TrimSpace(k.must("-n", namespace, "create", "token", account))
	}
	berth, other := token("berth-system", "berth"), token("default", "default")
	for _, c := range []struct {
		token, path string
		want        int
	}{
		{berth, "/pods", http.StatusOK},
		{berth, "/configz", http.StatusForbidden},
		{berth, "/containerLogs/default/web/main", http.StatusForbidden},
		{other, "/pods", http.StatusForbidden},
		{"none", "/pods", http.StatusUnauthorized},
	} {
		req, err := http.NewRequestWithContext(k.t.Context(), http.MethodGet, "https://"+cluster.Address+":"+kubeletapi.WebPort+c.path, nil)
		if err != nil {
			k.t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+c.token)
		answer, err := k.HTTP().Do(req)
		if err != nil {
			k.t.Fatal(err)
		}
		_, err = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
		if err != nil || answer.StatusCode != c.want {
			k.t.Errorf("the kubelet answers %s to GET %s of %s, want %s: %v", answer.Status, c.path,
				map[string]string{berth: "berth", other: "another account"}[c.token], strconv.Itoa(c.want), err)
		}
	}
}
