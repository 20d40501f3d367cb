package config

import (
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/node"
	"github.com/berthd/berth/managers/topology"
)

// Try is a berthd that leaves nothing behind (--try). All that it makes is in a directory and a cgroup of its own.
type Try struct {
	// Dir is the root directory.
	Dir string
	// Cgroup is the cgroup below which everything lies. Empty leaves the configured root, below which that cgroup will be.
	Cgroup string
	// Memory keeps cgroups in berthd's memory, whatever is configured.
	Memory bool
}

// outsideFlags are the flags that lead out of a try: to paths, cgroups and programs that its end does not remove, or that belong to
// a kubelet or a runtime of this node.
var outsideFlags = []string{
	"root-dir", "listen", "state-dir", "device-plugin-dir", "plugin-registry-dir", "pod-resources-dir", "runtime-endpoint", "beside",
	"observe", "runtime-cgroups", "runtime-pid-file", "agent-cgroups", "agent-pid-file", "system-reserved-cgroup",
	"kube-reserved-cgroup",
}

// CheckTryFlags refuses flags that lead out of a try.
func CheckTryFlags(fs *pflag.FlagSet) error {
	var vs errdefs.Violations
	for _, name := range outsideFlags {
		if f := fs.Lookup(name); f.Changed && f.Value.String() != "" {
			vs.Addf("--"+name, "expected nothing with --try, which has a directory and a cgroup of its own; leave out one of the two")
		}
	}
	if strings.HasPrefix(fs.Lookup("http").Value.String(), "unix://") {
		vs.Addf("--http", "expected HOST:PORT with --try, such as localhost:10470: a socket lies outside of its directory")
	}
	if fs.Lookup("kernel-tunables").Value.String() == config.TunablesSet {
		vs.Addf("--kernel-tunables", "expected ignore, warn or require with --try: settings of the kernel would stay")
	}
	return vs.Err("the command line")
}

// defaults are those of a try: the policies that show most.
func (t *Try) defaults(c *config.Config) {
	if t == nil {
		return
	}
	c.CPU.Policy, c.Topology.Policy = cpu.PolicyStatic, topology.BestEffort
	c.Log.Level = "warn" // the terminal is for what to type next
}

// contain takes out of a configuration from files what leads out of a try. The notes name these settings.
func (t *Try) contain(c *config.Config) (notes []string, err error) {
	if t == nil {
		return nil, nil
	}
	// What a node must be like is not what is tried.
	c.Node.FailSwapOn, c.Node.FailCgroupV1, c.Node.KernelTunables, c.Node.OOMScoreAdj = false, false, config.TunablesIgnore, 0
	before, err := c.Fields()
	if err != nil {
		return nil, err
	}
	c.RootDir, c.Listen, c.StateDir, c.HTTP = "", "", "", ""
	for _, dir := range []**string{&c.DevicePluginDir, &c.PluginRegistryDir, &c.PodResourcesDir} {
		if *dir != nil && **dir != "" {
			*dir = nil
		}
	}
	c.RuntimeEndpoint, c.Beside, c.Observe = "", "", config.Observe{}
	n := &c.Node
	n.SystemReservedCgroup, n.KubeReservedCgroup, n.SystemCgroup, n.OwnCgroup = "", "", "", ""
	n.RuntimeCgroup, n.RuntimePIDFile, n.AgentCgroup, n.AgentPIDFile = "", "", "", ""
	n.SetHugePages = false
	n.Enforce = slices.DeleteFunc(slices.Clone(n.Enforce), func(name string) bool { return name != node.EnforcePods })
	after, err := c.Fields()
	if err != nil {
		return nil, err
	}
	for name, value := range before {
		if after[name] != value {
			notes = append(notes, name+": has no effect with --try")
		}
	}
	return notes, nil
}

// apply sets what no source of a try can.
func (t *Try) apply(c *config.Config) {
	if t == nil {
		return
	}
	c.RootDir = t.Dir
	if t.Cgroup != "" {
		c.Cgroups.Root = t.Cgroup
	}
	if t.Memory {
		c.Cgroups.Tree = config.TreeMemory
	}
	r := &c.Reserved
	if c.CPU.Policy == cpu.PolicyStatic && r.CPUs.IsEmpty() && !r.OneIfNone && r.System["cpu"] == "" && r.Kube["cpu"] == "" {
		r.CPUs = cpuset.Of(0)
	}
}
