package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/berthd/berth/hack/cluster"
	"github.com/berthd/berth/hack/testing/containerd"
)

// claimsPatch adapts the container of berth-dra, which TestClusterDaemonSet does not have.
const claimsPatch = `- target: {kind: DaemonSet, name: berth}
  patch: |
    apiVersion: apps/v1
    kind: DaemonSet
    metadata: {name: berth, namespace: berth-system}
    spec:
      template:
        spec:
          containers:
          - name: berth-dra
            env:
            - {name: KUBERNETES_SERVICE_HOST, value: "ADDRESS"}
            - {name: KUBERNETES_SERVICE_PORT, value: "6443"}
            resources: {requests: {cpu: "0"}}
`

// TestClusterDaemonSetClaims installs the overlays dra and dra-allocatable as docs/dra.md says: a claim works, the API
// server takes the examples, and the service account writes the slices of its own node and driver only.
func TestClusterDaemonSetClaims(t *testing.T) {
	cluster.Need(t) // before something is built for it
	if runtime.NumCPU() < 2 {
		t.Skipf("needs 2 CPUs, one for the system and one for claims; here are %d", runtime.NumCPU())
	}
	built, err := programs.Dir()
	if err != nil {
		t.Fatal(err)
	}
	last := strconv.Itoa(runtime.NumCPU() - 1)
	for _, row := range []struct {
		overlay, reserved, dra string
		gates                  []string
	}{
		{"dra", "0-" + last, `{cpus: "` + last + `", memory: [{numaNode: 0, limits: {memory: 128Mi}}]}`, nil},
		{"dra-allocatable", "0-" + strconv.Itoa(runtime.NumCPU()-2), "{from: allocatable}", []string{"DRANodeAllocatableResources"}},
	} {
		t.Run(row.overlay, func(t *testing.T) {
			c := cluster.Run(t, cluster.Options{Image: filepath.Join(built, "root", "probe"), FeatureGates: row.gates,
				Kubelet: map[string]any{
					"reservedSystemCPUs": row.reserved, "systemReserved": map[string]string{"memory": "256Mi"},
				}})
			k := &kubernetes{t: t, built: built, Cluster: c, socket: c.Path(runDir, "berth.sock")}
			k.prepareNodes()
			k.loadDRA()
			k.installsClaims(k.overlayOfClaims(row.overlay, row.dra), last)
		})
	}
}

// installsClaims applies and deletes an overlay with claims.
func (k *kubernetes) installsClaims(cdi, last string) {
	k.t.Helper()
	c := k.Cluster
	k.must("apply", "-k", c.Path("overlay"))
	k.must("-n", "berth-system", "rollout", "status", "daemonset/berth", "--timeout=180s")

	k.claimed("first", "1")
	if got := k.affinityOf("first", "main"); got != last {
		k.t.Errorf("the container with the claim runs on %s, want %s", got, last)
	}
	if text := k.must("-n", "berth-system", "exec", "daemonset/berth", "-c", "berthd", "--", "berthctl", "get",
		"claims"); !strings.Contains(text, "default/first/main") {
		k.t.Errorf("berthctl in the pod lists\n%s", text)
	}
	k.must("apply", "--dry-run=server", "-f", c.Path("kubernetes", "examples", "dra"))
	k.writesOwnSlicesOnly()
	k.deleteClaimed("first")
	k.nothingLeft(cdi)
	k.must("delete", "-k", c.Path("overlay"), "--wait=true", "--timeout=120s")
}

// loadDRA makes the image of berth-dra.
func (k *kubernetes) loadDRA() {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), k.Timeout)
	defer cancel()
	if err := k.Containerd.LoadImages(ctx, containerd.Image{
		Names: []string{"localhost/berth/berth-dra:" + tagNewer}, Entrypoint: []string{"/usr/bin/berth-dra"},
		Files: map[string]string{"usr/bin/berth-dra": filepath.Join(k.built, "berth-dra")},
	}); err != nil {
		k.t.Fatal(err)
	}
}

// overlayOfClaims writes the overlay with a configuration for this machine, and returns the runtime's directory of CDI files.
func (k *kubernetes) overlayOfClaims(name, dra string) string {
	k.t.Helper()
	config := k.Path("kubernetes", "overlays", name, "berthd.yaml")
	text, err := os.ReadFile(config)
	if err != nil {
		k.t.Fatal(err)
	}
	head, _, found := strings.Cut(string(text), "memory:\n")
	if !found {
		k.t.Fatalf("%s has no memory", config)
	}
	head += `memory: {policy: Static, reserved: [{numaNode: 0, limits: {memory: 256Mi}}]}
topology: {policy: best-effort}
dra: ` + dra + "\n"
	cdi := filepath.Join(filepath.Dir(k.Containerd.Socket), "cdi")
	k.writeOverlay("kubernetes/overlays/"+name, tagNewer)
	path := k.Path("overlay", "kustomization.yaml")
	overlay, err := os.ReadFile(path)
	if err == nil {
		patched := string(overlay) + strings.ReplaceAll(claimsPatch, "ADDRESS", cluster.Address)
		err = os.WriteFile(path, []byte(strings.ReplaceAll(patched, k.Path("cdi-run"), cdi)), 0o644)
	}
	if err == nil {
		err = os.WriteFile(config, []byte(head), 0o644)
	}
	if err != nil {
		k.t.Fatal(err)
	}
	return cdi
}

// writesOwnSlicesOnly tries to write slices with the account of berth's pod.
func (k *kubernetes) writesOwnSlicesOnly() {
	k.t.Helper()
	pod := strings.TrimSpace(k.must("-n", "berth-system", "get", "pods", "-l", "app.kubernetes.io/name=berth", "-o",
		"jsonpath={.items[0].metadata.name}"))
	token := strings.TrimSpace(k.must("-n", "berth-system", "create", "token", "berth", "--bound-object-kind=Pod",
		"--bound-object-name="+pod))
	for _, c := range []struct{ node, driver, want string }{
		{node: cluster.Node, driver: "dra.berthd.github.io"},
		{node: "another", driver: "dra.berthd.github.io", want: "of its own node only"},
		{node: cluster.Node, driver: "gpu.example.com", want: "of the driver dra.berthd.github.io only"},
	} {
		path := k.Path("slice.json")
		text := fmt.Sprintf(`{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "tried"}, "spec": {"driver": %q, "nodeName": %q,
			"pool": {"name": "tried", "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "tried"}]}}`, c.driver, c.node)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			k.t.Fatal(err)
		}
		out, err := k.Kubectl("--token="+token, "create", "--dry-run=server", "-f", path)
		k.writes("create", err, out, c.node, c.driver, c.want)
		// An administrator has created the slice. The pod may change and delete it under the same conditions.
		k.must("create", "-f", path)
		raw := "--raw=/apis/resource.k8s.io/v1/resourceslices/tried?dryRun=All"
		out, err = k.Kubectl("--token="+token, "replace", raw, "-f", path)
		k.writes("update", err, out, c.node, c.driver, c.want)
		out, err = k.Kubectl("--token="+token, "delete", raw)
		k.writes("delete", err, out, c.node, c.driver, c.want)
		k.must("delete", "resourceslice", "tried")
	}
}

// writes checks an attempt to write a slice; want is the reason for which it is refused.
func (k *kubernetes) writes(verb string, err error, out, node, driver, want string) {
	k.t.Helper()
	if refused := err != nil; refused != (want != "") || refused && !strings.Contains(err.Error()+out, want) {
		k.t.Errorf("the pod may %s a slice of node %s and driver %s: %v: %s, want %q", verb, node, driver, err, out, want)
	}
}
