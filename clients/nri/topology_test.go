package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/berthd/berth/clients/nri/publish"
	"github.com/berthd/berth/hack/cluster"
)

// publish has berth-nri publish the node's object, with the rights of the manifests' service account.
func (k *kubernetes) publish() {
	k.t.Helper()
	const deploy = "../../deploy/kubernetes"
	k.must("apply", "-k", deploy+"/crd")
	k.must("wait", "--for=condition=Established", "--timeout=60s", "crd/noderesourcetopologies.topology.node.k8s.io")
	k.must("apply", "-f", deploy+"/base/namespace.yaml", "-f", deploy+"/base/rbac.yaml", "-f",
		deploy+"/overlays/node-resource-topology/rbac.yaml")
	account := k.Path("account")
	authority, err := os.ReadFile(k.Path("certificates", "apiserver.crt"))
	if err == nil {
		err = os.Mkdir(account, 0o700)
	}
	for name, text := range map[string]string{"token": k.must("-n", "berth-system", "create", "token", "berth", "--duration=2h"),
		"ca.crt": string(authority)} {
		if err == nil {
			err = os.WriteFile(filepath.Join(account, name), []byte(text), 0o600)
		}
	}
	if err == nil {
		err = k.End("berth-nri", os.Interrupt)
	}
	if err != nil {
		k.t.Fatal(err)
	}
	k.flags = append(k.flags, "--publish", "--publish-spread=1s", "--service-account", account)
	k.env = append(k.env, "KUBERNETES_SERVICE_HOST="+cluster.Address, "KUBERNETES_SERVICE_PORT=6443")
	k.startPlugin()
}

// available is what a NodeResourceTopology object says that its zones have left of a resource.
func available(o *publish.Object, resource string) (out []string) {
	for _, z := range o.Zones {
		for _, r := range z.Resources {
			if r.Name == resource {
				out = append(out, z.Name+"="+string(r.Available))
			}
		}
	}
	return out
}

// published waits until the object of the node has an amount left in its only zone.
func (k *kubernetes) published(resource, amount string) *publish.Object {
	k.t.Helper()
	var o publish.Object
	k.Eventually(fmt.Sprintf("the NodeResourceTopology object has %s of %s left", amount, resource), func() bool {
		o = publish.Object{}
		return k.Get(&o, "noderesourcetopology", cluster.Node) == nil && strings.Join(available(&o, resource), " ") == "node-0="+amount
	})
	return &o
}

// checkTopology: the object has what the pod trainer leaves, which has all CPUs that are not reserved.
func (k *kubernetes) checkTopology() {
	k.t.Helper()
	o := k.published("cpu", "0")
	attributes := map[string]string{}
	for _, a := range o.Attributes {
		attributes[a.Name] = a.Value
	}
	// The digest of default/trainer, the only pod with exclusive resources.
	if attributes["topologyManagerPolicy"] != "best-effort" ||
		attributes["nodeTopologyPodsFingerprintMethod"] != "with-exclusive-resources" ||
		attributes["nodeTopologyPodsFingerprint"] != "pfp0v0018e4fd649bc246fb0" {
		k.t.Errorf("the attributes are %v", attributes)
	}
	if refs := o.Metadata.OwnerReferences; len(refs) != 1 || refs[0].Kind != "Namespace" || refs[0].Name != "berth-system" {
		k.t.Errorf("the object belongs to %v", refs)
	}
}

// writesOwnTopologyOnly: the token of berth's pod is good for the object of its own node only.
func (k *kubernetes) writesOwnTopologyOnly() {
	k.t.Helper()
	pod := strings.TrimSpace(k.must("-n", "berth-system", "get", "pods", "-l", "app.kubernetes.io/name=berth", "-o",
		"jsonpath={.items[0].metadata.name}"))
	token := strings.TrimSpace(k.must("-n", "berth-system", "create", "token", "berth", "--bound-object-kind=Pod",
		"--bound-object-name="+pod))
	for _, c := range []struct {
		node string
		want string
	}{{cluster.Node, ""}, {"another", "of its own node only"}} {
		path := k.Path("object.json")
		text := fmt.Sprintf(`{"apiVersion": %q, "kind": %q, "metadata": {"name": %q}, "zones": []}`, publish.APIVersion, publish.Kind,
			c.node)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			k.t.Fatal(err)
		}
		out, err := k.Kubectl("--token="+token, "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", path)
		if refused := err != nil; refused != (c.want != "") || refused && !strings.Contains(err.Error(), c.want) {
			k.t.Errorf("the pod writes the object of node %s: %v: %s", c.node, err, out)
		}
	}
}
