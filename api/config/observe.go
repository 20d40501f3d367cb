package config

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/topology"
)

// Observe says that berthd reads a node whose kubelet decides, and changes nothing.
type Observe struct {
	// Root is a directory with the files of the node: / for the one that berthd runs on, or where a container has the node's root
	// directory. Empty: berthd decides.
	Root string `json:"root,omitempty" names:"directory"`
	// Kubelet is ADDRESS or ADDRESS:PORT of the kubelet's web server, which has the pods where the kubelet has no Pods API (before
	// Kubernetes 1.37). NodeName is the node's name, for which its certificate has to be. Both are empty, or none.
	Kubelet  string `json:"kubelet,omitempty"`
	NodeName string `json:"nodeName,omitempty"`
	// KubeletCA is a file with the certificate authority of that server, in addition to that of the cluster, and ServiceAccount the
	// directory with the token and the authority of the cluster; empty: where pods have it.
	KubeletCA      string `json:"kubeletCA,omitempty" names:"file"`
	ServiceAccount string `json:"serviceAccount,omitempty" names:"directory"`
}

// Accounts is the directory of the service account.
func (o Observe) Accounts() string {
	return cmp.Or(o.ServiceAccount, "/var/run/secrets/kubernetes.io/serviceaccount")
}

// served are the fields of a berthd that observes, and the beginnings of such fields that end with a dot. The kubelet has all others.
var served = []string{
	"apiVersion", "kind", "observe.", "rootDir", "listen", "listenMode", "listenGroup", "http", "httpMode", "httpPage", "kubeletMetrics",
	"log.", "limits.", "history.", "privileges.", "access",
}

// CheckObserve refuses fields that decide, because the kubelet decides (observe.root).
func (c Config) CheckObserve() error {
	own, err := c.Fields()
	if err != nil {
		return err
	}
	defaults, err := Default().Fields()
	if err != nil {
		return err
	}
	d := Default()
	d.Observed()
	same, err := d.Fields() // a dump has these
	if err != nil {
		return err
	}
	var vs errdefs.Violations
	for _, name := range slices.Sorted(maps.Keys(own)) {
		if own[name] != defaults[name] && own[name] != same[name] && !slices.ContainsFunc(served, func(s string) bool {
			return name == s || strings.HasSuffix(s, ".") && strings.HasPrefix(name, s)
		}) {
			vs.Addf(name, "expected nothing: berthd decides nothing where it observes (observe.root, --observe)")
		}
	}
	if o := c.Observe; (o.Kubelet == "") != (o.NodeName == "") {
		vs.Addf("observe.nodeName", "expected a name with observe.kubelet, and nothing without (--kubelet, --node-name)")
	}
	return vs.Err("the configuration of a berthd that observes")
}

// validateObserve refuses what is only for a berthd that observes.
func (c Config) validateObserve(vs *errdefs.Violations) {
	if c.Observe.Root == "" && c.Observe != (Observe{}) {
		vs.Addf("observe.root", "expected a directory, such as / (--observe), with the other fields of observe (--kubelet, --node-name, --kubelet-ca)")
	}
}

// Observed changes a configuration to one of a node whose kubelet decides: nothing is kept, and no cgroup, socket or directory of the
// kubelet's is berthd's.
func (c *Config) Observed() {
	c.Machine, c.Cgroups.Tree = "the kubelet's", TreeMemory
	c.Topology.Planning = topology.ByContainer
	c.DevicePluginDir, c.PluginRegistryDir, c.PodResourcesDir = new(""), new(""), new("")
	// Cgroups decide nothing, and a kubelet takes names that berthd would refuse.
	c.Node.SystemReservedCgroup, c.Node.KubeReservedCgroup, c.Node.Enforce = "", "", nil
	c.Node.KernelTunables, c.Node.FailSwapOn, c.Node.FailCgroupV1 = TunablesIgnore, false, false
}

// Serving takes the fields of a berthd that observes from its own configuration.
func (c *Config) Serving(own Config) {
	c.Observe, c.RootDir, c.StateDir = own.Observe, own.RootDir, own.StateDir
	c.Listen, c.ListenMode, c.ListenGroup = own.Listen, own.ListenMode, own.ListenGroup
	c.HTTP, c.HTTPMode, c.HTTPPage, c.KubeletMetrics = own.HTTP, own.HTTPMode, own.HTTPPage, own.KubeletMetrics
	c.Log, c.Limits, c.History, c.Privileges, c.Access = own.Log, own.Limits, own.History, own.Privileges, own.Access
}

// Fields returns the values of a configuration as JSON, by the names of their fields.
func (c Config) Fields() (map[string]string, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	var tree map[string]json.RawMessage
	if err := json.Unmarshal(text, &tree); err != nil {
		return nil, err
	}
	out := map[string]string{}
	spread(out, "", tree)
	return out, nil
}

func spread(out map[string]string, prefix string, tree map[string]json.RawMessage) {
	for name, text := range tree {
		var below map[string]json.RawMessage
		if json.Unmarshal(text, &below) == nil && len(below) > 0 {
			spread(out, prefix+name+".", below)
			continue
		}
		out[prefix+name] = string(text)
	}
}
