package config

import (
	"fmt"
	"strings"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/topology"
)

// Kubelet is the only value of Beside: a kubelet runs on the node.
const Kubelet = "kubelet"

// BesideKubelet sets the defaults of a node with a kubelet. The kubelet serves the sockets of
// device plugins, and its own podresources socket, so berthd's is in a directory of berthd: PodResourcesDir is left unset, and
// its default is below that of berth's socket. The kubelet and the runtime write the cgroups. The kubelet
// checks whether a pod fits and what the machine is like, and it allocates every device that
// berthd does not know. Policies from a kubelet's file are the kubelet's. Those of CPUs and memory must be off, else the kubelet and
// berthd assign the same ones: the error is of class Invalid. The notes name the others that are on.
func (c *Config) BesideKubelet() (notes []string, err error) {
	c.Beside = Kubelet
	d := Default()
	var conflicts errdefs.Violations
	for _, policy := range []struct{ field, now, off string }{
		{"cpuManagerPolicy", c.CPU.Policy, d.CPU.Policy},
		{"memoryManagerPolicy", c.Memory.Policy, d.Memory.Policy},
	} {
		if policy.now != policy.off {
			conflicts.Addf(policy.field,
				"the kubelet's file says %s, so the kubelet and berthd would both assign the same resources; set it to %s, stop the kubelet, remove its cpu_manager_state and memory_manager_state, and start it",
				policy.now, policy.off)
		}
	}
	if now := string(c.Topology.Policy); now != string(topology.None) {
		notes = append(notes,
			fmt.Sprintf("topologyManagerPolicy: the kubelet's file says %s, which can refuse a pod for its devices that berthd has admitted; set it to %s and restart the kubelet", now, topology.None))
	}
	c.CPU, c.Topology = d.CPU, d.Topology
	c.Memory.Policy = d.Memory.Policy
	c.DevicePluginDir, c.PluginRegistryDir, c.PodResourcesDir = new(""), new(""), nil
	c.Cgroups.Tree = TreeMemory
	c.Node.NodeFit, c.Node.FailSwapOn, c.Node.FailCgroupV1 = false, false, false
	c.Node.KernelTunables = TunablesIgnore
	c.Devices.Elsewhere = []string{"*"}
	return notes, conflicts.Err("the kubelet's configuration beside berthd")
}

// kubeletDir is where a kubelet keeps its directories.
const kubeletDir = "/var/lib/kubelet"

// validateBeside refuses what would make berthd and a kubelet manage the same thing.
func (c Config) validateBeside(vs *errdefs.Violations) {
	switch {
	case c.Beside == "":
	case c.Beside != Kubelet:
		vs.Addf("beside", "%q: expected kubelet, or nothing", c.Beside)
	case c.Cgroups.Tree != TreeMemory:
		vs.Addf("cgroups.tree", "%q: expected %s, because the kubelet writes the cgroups (beside: kubelet)", c.Cgroups.Tree, TreeMemory)
	case c.RuntimeEndpoint != "":
		vs.Addf("runtimeEndpoint", "expected nothing, because the kubelet and berth-nri call the runtime (beside: kubelet)")
	}
	// simulated processes have huge pages
	if c.Cgroups.Tree == TreeMemory && c.Moves.HugePages && (c.Beside == Kubelet || c.Machine == "") {
		vs.Addf("moves.hugePages",
			"expected false, because berthd does not see where huge pages are (cgroups.tree: %s), and no agent reports it", TreeMemory)
	}
	for _, d := range []struct {
		field string
		dir   *string
	}{
		{"devicePluginDir", c.DevicePluginDir}, {"pluginRegistryDir", c.PluginRegistryDir}, {"podResourcesDir", c.PodResourcesDir},
	} {
		if c.Beside == Kubelet && d.dir != nil && (*d.dir == kubeletDir || strings.HasPrefix(*d.dir, kubeletDir+"/")) {
			vs.Addf(d.field, "%q: the kubelet works there (beside: kubelet); expected another directory, or nothing", *d.dir)
		}
	}
}
