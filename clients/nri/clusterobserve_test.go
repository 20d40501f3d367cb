package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthd/berth/hack/cluster"
	"github.com/berthd/berth/hack/testing/containerd"
)

// observeOverlay adapts the overlay observe to a cluster whose kubelet has its configuration elsewhere.
const observeOverlay = `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../kubernetes/overlays/observe]
images:
- {name: localhost/berth/berthd, newTag: TAG}
patches:
- target: {kind: DaemonSet, name: berth-observe}
  patch: |
    - op: add
      path: /spec/template/spec/containers/0/volumeMounts/-
      value: {name: configuration-of-kubelet, mountPath: /hostDIR/kubelet.json, readOnly: true}
    - op: add
      path: /spec/template/spec/volumes/-
      value: {name: configuration-of-kubelet, hostPath: {path: DIR/kubelet.json, type: File}}
    - {op: replace, path: /spec/template/spec/containers/0/resources, value: {limits: {memory: 256Mi}, requests: {cpu: "0"}}}
MORE`

// trustsKubelet is for a kubelet that has made its certificate itself.
const trustsKubelet = `    - op: add
      path: /spec/template/spec/containers/0/args/-
      value: --kubelet-ca=/host/var/lib/kubelet/pki/kubelet.crt
    - {op: add, path: /spec/template/spec/hostNetwork, value: true} # these pods have no network
`

// TestClusterObserve: a DaemonSet reads a node whose kubelet assigns CPUs, with its Pods API and without: it has what the kubelet has
// given, explains what the kubelet has rejected, finds nothing wrong, and changes nothing.
func TestClusterObserve(t *testing.T) {
	for name, more := range map[string]string{"Pods API": "", "web server": trustsKubelet} {
		t.Run(name, func(t *testing.T) {
			config := map[string]any{
				"cpuManagerPolicy": "static", "reservedSystemCPUs": "0", "topologyManagerPolicy": "single-numa-node",
			}
			if more != "" {
				config["featureGates"] = map[string]bool{"PodsAPI": false}
				for name, value := range kubeadmAccess {
					config[name] = value
				}
			}
			o := &observed{newInstaller(t, cluster.Options{Kubelet: config})}
			o.observe(more)
			o.reads()
		})
	}
}

// observed is a node that berth observes.
type observed struct{ *installer }

// observe installs berth.
func (o *observed) observe(more string) {
	o.t.Helper()
	text := strings.NewReplacer("TAG", tagOlder, "DIR", o.Path(), "MORE", more).Replace(observeOverlay)
	if err := os.WriteFile(o.Path("overlay", "kustomization.yaml"), []byte(text), 0o644); err != nil {
		o.t.Fatal(err)
	}
	o.must("apply", "-k", o.Path("overlay"))
	defer func() {
		if o.t.Failed() {
			text, _ := o.Kubectl("-n", "berth-observe", "get", "pods", "-o", "jsonpath={.items[*].status.containerStatuses}")
			log, _ := o.Kubectl("-n", "berth-observe", "logs", "daemonset/berth-observe")
			o.t.Logf("the pod's containers: %s\n%s", text, log)
		}
	}()
	o.must("-n", "berth-observe", "rollout", "status", "daemonset/berth-observe", "--timeout=90s")
}

// files are those of the DaemonSet's pod; empty if there is none. A kubelet that has its callers reviewed lets nobody run programs there.
func (o *observed) files() string {
	o.t.Helper()
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		o.t.Fatal(err)
	}
	for _, file := range commands {
		text, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(text), "berthd\x00--config=/etc/berth/berthd.yaml\x00--kubelet=") {
			return filepath.Join(filepath.Dir(file), "root")
		}
	}
	return ""
}

// ask runs berthctl. While berthd begins anew there is nobody to ask.
func (o *observed) ask(args ...string) (string, error) {
	o.t.Helper()
	if o.files() == "" {
		return "", errors.New("there is no berthd")
	}
	args = append(args, "--endpoint", filepath.Join(o.files(), "run", "berth", "berth.sock"))
	out, err := exec.Command(filepath.Join(o.built, "berthctl"), args...).CombinedOutput()
	return string(out), err
}

// exclusive creates a pod with one CPU of its own, past the scheduler.
func (o *observed) exclusive(name string) {
	o.t.Helper()
	o.Apply(fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q}, "spec": {"nodeName": %q,
		"terminationGracePeriodSeconds": 0, "containers": [
			{"name": "main", "image": %q, "imagePullPolicy": "Never", "command": ["/probe", "show", ",", "wait"],
			"resources": {"limits": {"cpu": "1", "memory": "64Mi"}}}]}}`, name, cluster.Node, containerd.ProbeImage))
}

// holds waits until berth has a pod with CPUs; with none if it has no such pod.
func (o *observed) holds(pod, cpus string) {
	o.t.Helper()
	have := ""
	defer func() {
		if o.t.Failed() {
			o.t.Logf("berth says %s", have)
		}
	}()
	o.Eventually(fmt.Sprintf("berth has pod %s on CPUs %q", pod, cpus), func() bool {
		text, err := o.ask("get", "pods", "-o", "json")
		if err != nil {
			have = text + err.Error()
			return false
		}
		have = text
		var list struct {
			Items []struct {
				Name       string
				Containers []struct{ CPUs string }
			}
		}
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			o.t.Fatal(err)
		}
		for _, p := range list.Items {
			if p.Name == pod {
				return len(p.Containers) == 1 && p.Containers[0].CPUs == cpus
			}
		}
		return cpus == ""
	})
}

func (o *observed) reads() {
	o.t.Helper()
	o.exclusive("trainer")
	o.runsOn("a pod of the kubelet's", "1", o.pid("trainer"))
	o.holds("trainer", "1")

	o.Eventually("the usage of the pod is read", func() bool {
		text, err := o.ask("top", "--once", "--interval=500ms", "-o", "jsonpath={.containers[?(@.pod=='default/trainer')].memoryBytes}")
		return err == nil && text != "" && text != "0"
	})
	o.exclusive("second")
	reason := ""
	o.Eventually("the kubelet rejects the second pod", func() bool {
		var err error
		reason, err = o.Kubectl("get", "pod", "second", "-o", "jsonpath={.status.reason}")
		return err == nil && reason != ""
	})
	text := ""
	defer func() {
		if o.t.Failed() {
			o.t.Logf("explained so: %s", text)
		}
	}()
	o.Eventually("the rejection is explained", func() bool {
		text, _ = o.ask("explain", "default/second")
		return strings.Contains(text, "the kubelet rejected it with "+reason) && strings.Contains(text, "default/trainer")
	})
	if text, err := o.ask("remove", "default/trainer"); err == nil || !strings.Contains(text+err.Error(), "berth only reads it") {
		o.t.Errorf("a removal: %s, %v", text, err)
	}
	check := exec.Command(filepath.Join(o.built, "berthctl"), "check", "--kubelet="+filepath.Join(o.files(), "host"))
	if text, err := check.CombinedOutput(); err != nil {
		o.t.Errorf("check: %v: %s", err, text)
	}

	o.must("delete", "pod", "trainer", "second", "--grace-period=0", "--wait")
	o.holds("trainer", "")
	o.exclusive("later")
	o.holds("later", "1")

	// The kubelet restarts: nothing is lost, and what comes then is seen.
	o.kubelet(nil)
	o.holds("later", "1")
	o.must("delete", "pod", "later", "--grace-period=0", "--wait")
	o.holds("later", "")
	o.kubelet(map[string]any{"topologyManagerPolicy": "best-effort"})
	o.Eventually("berth has the kubelet's other policy", func() bool {
		text, err := o.ask("policy", "get")
		return err == nil && strings.Contains(text, "best-effort")
	})
	o.must("delete", "-k", o.Path("overlay"), "--wait=true", "--timeout=120s")
}
