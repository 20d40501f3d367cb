package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
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

// overlay adapts deploy/kubernetes to a cluster that shares its machine with others: sockets and
// directories of the node are elsewhere, and services have no addresses. The test's pod needs all CPUs but
// one, so berth requests none.
const overlay = `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../RESOURCES]
images:
- {name: localhost/berth/berthd, newTag: TAG}
- {name: localhost/berth/berth-nri, newTag: TAG}
- {name: localhost/berth/berth-dra, newTag: TAG}
patches:
- target: {kind: DaemonSet, name: berth}
  patch: |
    - {op: test, path: /spec/template/spec/containers/1/name, value: berth-nri}
    - {op: add, path: /spec/template/spec/containers/1/args/-, value: --nri-socket=/var/run/nri/SOCKET}
    - {op: add, path: /spec/template/spec/containers/1/args/-, value: --log-level=debug}
MORE- target: {kind: DaemonSet, name: berth}
  patch: |
    apiVersion: apps/v1
    kind: DaemonSet
    metadata: {name: berth, namespace: berth-system}
    spec:
      minReadySeconds: 1
      template:
        spec:
          initContainers:
          - {name: check-berthd, resources: {requests: {cpu: "0"}}}
          - {name: check-node, resources: {requests: {cpu: "0"}}}
          containers:
          - name: berthd
            resources: {requests: {cpu: "0"}}
          - name: berth-nri
            env:
            - {name: KUBERNETES_SERVICE_HOST, value: "ADDRESS"}
            - {name: KUBERNETES_SERVICE_PORT, value: "6443"}
            resources: {requests: {cpu: "0"}}
          volumes:
          - {name: run, hostPath: {path: RUN, type: DirectoryOrCreate}}
          - {name: nri, hostPath: {path: NRI, type: Directory}}
          - {name: cdi, hostPath: {path: DIR/cdi, type: DirectoryOrCreate}}
          - {name: cdi-run, hostPath: {path: DIR/cdi-run, type: DirectoryOrCreate}}
`

// initContainers are those of the overlay. Older manifests have none.
const initContainers = `          initContainers:
          - {name: check-berthd, resources: {requests: {cpu: "0"}}}
          - {name: check-node, resources: {requests: {cpu: "0"}}}
`

// TestClusterDaemonSet installs berth as docs/kubernetes.md says, upgrades it and removes it again.
// Pods that run are placed; the upgrade moves nothing; after the removal each container runs on all
// CPUs, with the quota that the kubelet has set.
func TestClusterDaemonSet(t *testing.T) {
	cluster.Need(t) // before something is built for it
	if runtime.NumCPU() < 2 {
		t.Skipf("needs 2 CPUs, one of them for the system; here are %d", runtime.NumCPU())
	}
	built, err := programs.Dir()
	if err != nil {
		t.Fatal(err)
	}
	c := cluster.Run(t, cluster.Options{Image: filepath.Join(built, "root", "probe"), Kubelet: map[string]any{"reservedSystemCPUs": "0"}})
	k := &kubernetes{t: t, built: built, Cluster: c, socket: c.Path(runDir, "berth.sock")}
	all, milli := "0-"+strconv.Itoa(runtime.NumCPU()-1), (runtime.NumCPU()-1)*1000
	older := os.Getenv(olderVariable)
	k.prepareNodes()
	if older == "" {
		k.writeOverlay(publishing, tagOlder)
	} else {
		k.load(c.Host, older, tagOlder)
		if err := os.CopyFS(k.Path("older"), os.DirFS(filepath.Join(older, "kubernetes"))); err != nil {
			t.Fatal(err)
		}
		k.writeOverlay("older/base", tagOlder)
	}
	k.apply("web", `{}`)
	k.apply("trainer", fmt.Sprintf(`{"limits": {"cpu": "%dm", "memory": "64Mi"}}`, milli))
	web, trainer := k.pid("web"), k.pid("trainer")
	k.runsOn("before the installation", all, web, trainer)

	k.must("apply", "-k", c.Path("kubernetes", "crd"))
	k.must("wait", "--for=condition=Established", "--timeout=60s", "crd/noderesourcetopologies.topology.node.k8s.io")
	k.must("apply", "-k", c.Path("overlay"))
	k.must("-n", "berth-system", "rollout", "status", "daemonset/berth", "--timeout=180s")
	k.runsOn("after the installation", range1(runtime.NumCPU()-1), trainer)
	k.runsOn("after the installation", "0", web)
	if older == "" {
		k.Eventually("the pod has no quota", func() bool { return podQuotaOf(t, trainer) == "-1" })
	}
	if text := k.must("-n", "berth-system", "exec", "daemonset/berth", "-c", "berthd", "--", "berthctl", "get",
		"pods"); !strings.Contains(text, "trainer") {
		t.Errorf("berthctl in the pod lists\n%s", text)
	}
	if text, err := k.berthctl("describe", "node"); err != nil || strings.Contains(text, "Scheduler:") {
		t.Errorf("the scheduler and berthd do not count the same: %v:\n%s", err, text)
	}

	// An upgrade: no container moves, and the new programs continue. So does the way back.
	moved := k.watch(trainer)
	tags := []string{tagNewer, tagOlder, tagNewer}
	if older != "" {
		tags = tags[:1] // the older one may not read the newer one's ledger
	}
	for _, tag := range tags {
		resources := publishing
		if tag == tagOlder && older != "" {
			resources = "older/base"
		}
		k.writeOverlay(resources, tag)
		k.must("apply", "-k", c.Path("overlay"))
		k.must("-n", "berth-system", "rollout", "status", "daemonset/berth", "--timeout=180s")
		if images := k.must("-n", "berth-system", "get", "pods", "-o",
			"jsonpath={.items[*].spec.containers[*].image}"); images != "localhost/berth/berthd:"+tag+" localhost/berth/berth-nri:"+tag {
			t.Errorf("the upgrade to %s has the images %s", tag, images)
		}
	}
	// So is a pod that is deleted by force: its account ends before it does.
	k.must("-n", "berth-system", "delete", "pods", "--all", "--force", "--grace-period=0")
	k.must("-n", "berth-system", "rollout", "status", "daemonset/berth", "--timeout=180s")
	if where := moved(); len(where) > 0 {
		t.Errorf("during the upgrades and a forced deletion the container of its own ran on %v", where)
	}
	k.apply("later", `{}`)
	if got := k.said("later", "affinity"); got != "0" {
		t.Errorf("after the upgrade a container on the shared CPUs runs on %s", got)
	}

	k.checkTopology()
	k.writesOwnTopologyOnly()

	k.must("delete", "-k", c.Path("overlay"), "--wait=true", "--timeout=120s")
	k.Eventually("the NodeResourceTopology object is removed", func() bool {
		text, err := k.Kubectl("get", "noderesourcetopologies", "-o", "name")
		return err == nil && text == ""
	})
	k.runsOn("after the removal", all, web, trainer, k.pid("later"))
	if quota := quotaOf(t, trainer); quota != strconv.Itoa(milli*100) {
		t.Errorf("after the removal the container has the quota %q, want %d", quota, milli*100)
	}
	if quota := podQuotaOf(t, trainer); quota != strconv.Itoa(milli*100) {
		t.Errorf("after the removal the pod has the quota %q, want %d", quota, milli*100)
	}
}

// olderVariable names the directory of the programs of an older build, and its deploy/kubernetes as kubernetes: the
// upgrade is from those. hack/cluster/test.sh builds it.
const olderVariable = "BERTH_OLDER"

// publishing is the overlay with NodeResourceTopology objects, and spread what makes them appear at once.
const (
	publishing = "kubernetes/overlays/node-resource-topology"
	spread     = "    - {op: add, path: /spec/template/spec/containers/1/args/-, value: --publish-spread=1s}\n"
)

// Tags of the images.
const tagOlder, tagNewer = "older", "newer"

// What stands in place of /run/berth on a node: a directory of the cluster. On several nodes, which have the same manifest, it is below
// /var/lib, which each node has for itself, and so is the directory of the runtime's socket.
const (
	runDir                 = "run-berth"
	nodesRunDir, nodesNRIs = "/var/lib/run-berth", "/var/lib/nri"
)

// socketOf is berthd's socket on a node.
func (k *kubernetes) socketOf(h *cluster.Host) string {
	if len(k.Others) > 0 {
		return h.Path(nodesRunDir, "berth.sock")
	}
	return h.Path(runDir, "berth.sock")
}

// prepareNodes loads the images, writes what each node has, and the manifests.
func (k *kubernetes) prepareNodes() {
	k.t.Helper()
	for _, h := range k.Hosts() {
		k.load(h, k.built, tagOlder, tagNewer)
		k.writeKubeletConfig(h)
		if len(k.Others) > 0 {
			k.mount(h, filepath.Dir(h.Containerd.NRI), nodesNRIs)
		}
	}
	err := os.CopyFS(k.Path("kubernetes"), os.DirFS("../../deploy/kubernetes"))
	if err == nil {
		err = os.Mkdir(k.Path("overlay"), 0o755)
	}
	if err != nil {
		k.t.Fatal(err)
	}
}

// writeKubeletConfig copies the configuration of a kubelet to where berthd reads it. The node's /var/lib is below its directory.
func (k *kubernetes) writeKubeletConfig(h *cluster.Host) {
	k.t.Helper()
	config, err := os.ReadFile(h.Path("kubelet.json"))
	if err == nil {
		err = os.WriteFile(h.Path("var", "lib", "kubelet", "config.yaml"), config, 0o600)
	}
	if err != nil {
		k.t.Fatal(err)
	}
}

// mount mounts a directory of the machine at a directory of a node below /var/lib.
func (k *kubernetes) mount(h *cluster.Host, source, at string) {
	k.t.Helper()
	err := os.MkdirAll(h.Path(at), 0o755)
	cmd := exec.Command("mount", "--bind", source, at)
	if err == nil {
		err = h.Spawn(cmd)
	}
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		k.t.Fatalf("mount %s at %s of node %s: %v", source, at, h.Name, err)
	}
}

// load makes images of the programs in a directory on a node, with some tags.
func (k *kubernetes) load(h *cluster.Host, dir string, tags ...string) {
	k.t.Helper()
	names := func(program string) (all []string) {
		for _, tag := range tags {
			all = append(all, "localhost/berth/"+program+":"+tag)
		}
		return all
	}
	ctx, cancel := context.WithTimeout(k.t.Context(), k.Timeout)
	defer cancel()
	if err := h.Containerd.LoadImages(ctx,
		containerd.Image{Names: names("berthd"), Entrypoint: []string{"/usr/bin/berthd"}, Files: map[string]string{
			"usr/bin/berthd": filepath.Join(dir, "berthd"), "usr/bin/berthctl": filepath.Join(dir, "berthctl"),
		}},
		containerd.Image{Names: names("berth-nri"), Entrypoint: []string{"/usr/bin/berth-nri"}, Files: map[string]string{
			"usr/bin/berth-nri": filepath.Join(dir, "berth-nri"),
		}},
	); err != nil {
		k.t.Fatal(err)
	}
}

// writeOverlay writes the kustomization that is applied: manifests below the cluster's directory with the images of a tag.
func (k *kubernetes) writeOverlay(resources, tag string) {
	k.t.Helper()
	more := ""
	if resources == publishing {
		more = spread
	}
	base := overlay
	if !strings.HasPrefix(resources, "older/") {
		more += "    - {op: add, path: /spec/template/spec/initContainers/1/args/-, value: --nri-socket=/var/run/nri/SOCKET}\n"
	} else {
		base = strings.Replace(base, initContainers, "", 1)
	}
	more = strings.ReplaceAll(more, "SOCKET", filepath.Base(k.Containerd.NRI))
	run, nri := k.Path(runDir), filepath.Dir(k.Containerd.NRI)
	if len(k.Others) > 0 {
		run, nri = nodesRunDir, nodesNRIs
	}
	text := strings.NewReplacer("RESOURCES", resources, "MORE", more, "TAG", tag, "ADDRESS", cluster.Address, "DIR", k.Path(), "NRI", nri,
		"RUN", run, "SOCKET", filepath.Base(k.Containerd.NRI)).Replace(base)
	if err := os.WriteFile(k.Path("overlay", "kustomization.yaml"), []byte(text), 0o644); err != nil {
		k.t.Fatal(err)
	}
}

// must calls the API server as an administrator.
func (k *kubernetes) must(args ...string) string {
	k.t.Helper()
	text, err := k.Kubectl(args...)
	if err != nil {
		for _, name := range []string{"berthd", "berth-nri"} {
			log, _ := k.Kubectl("-n", "berth-system", "logs", "daemonset/berth", "-c", name, "--tail=40")
			k.t.Logf("%s:\n%s", name, log)
		}
		described, _ := k.Kubectl("-n", "berth-system", "describe", "pods")
		k.t.Fatalf("%v: %s\n%s", err, text, described)
	}
	return text
}

// pid waits until a pod's container runs, and returns its process.
func (k *kubernetes) pid(pod string) (pid int) {
	k.t.Helper()
	k.Eventually("the container of "+pod+" runs", func() bool {
		var p corev1.Pod
		if err := k.Call(k.t.Context(), http.MethodGet, podsPath+"/"+pod, "", &p); err != nil {
			return false
		}
		pid = k.process(p)
		return pid != 0
	})
	return pid
}

// process returns the process of a pod's container, or 0 if it does not run. After a boot the API server and the runtime have
// processes of the boot before.
func (k *kubernetes) process(p corev1.Pod) int {
	if s := p.Status.ContainerStatuses; len(s) != 1 || s[0].State.Running == nil {
		return 0
	}
	_, id, _ := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
	at := slices.IndexFunc(k.Hosts(), func(h *cluster.Host) bool { return h.Name == p.Spec.NodeName })
	if at < 0 {
		return 0
	}
	pid, err := k.Hosts()[at].Containerd.Process(k.t.Context(), id)
	if err != nil {
		return 0
	}
	if in, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid)); err != nil || !strings.Contains(string(in), id) {
		return 0
	}
	return pid
}

// runsOn waits until processes run on CPUs, by what the kernel says.
func (k *kubernetes) runsOn(when, cpus string, pids ...int) {
	k.t.Helper()
	for _, pid := range pids {
		k.Eventually(fmt.Sprintf("%s, process %d runs on CPUs %s", when, pid, cpus), func() bool { return allowed(pid) == cpus })
	}
}

// watch reads again and again where a process runs, and returns the CPUs of any other set than the
// first.
func (k *kubernetes) watch(pid int) (stop func() []string) {
	first, ended, done := allowed(pid), make(chan struct{}), make(chan []string)
	go func() {
		var others []string
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			if now := allowed(pid); now != first {
				others = append(others, now)
			}
			select {
			case <-ended:
				done <- others
				return
			case <-tick.C:
			}
		}
	}()
	return func() []string { close(ended); return <-done }
}
