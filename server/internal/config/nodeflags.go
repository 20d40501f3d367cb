package config

import (
	"strings"

	"github.com/spf13/pflag"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/errdefs"
)

// addNodeFlags declares the flags about the node as a whole, with the kubelet's
// names.
func addNodeFlags(fs *pflag.FlagSet, order *[]func(*config.Config) error) {
	d := config.Default().Node
	given := func(name string, set func(*config.Config) error) {
		*order = append(*order, func(c *config.Config) error {
			if !fs.Changed(name) {
				return nil
			}
			return set(c)
		})
	}
	enforce := fs.StringSlice("enforce-node-allocatable", d.Enforce,
		"cgroups that get limits: pods, system-reserved, kube-reserved, the last two also with -compressible, none")
	given("enforce-node-allocatable", func(c *config.Config) error { c.Node.Enforce = *enforce; return nil })
	for name, to := range map[string]struct {
		usage string
		field func(*config.Config) *string
	}{
		"runtime-cgroups": {"cgroup that the container runtime is kept in",
			func(c *config.Config) *string { return &c.Node.RuntimeCgroup }},
		"runtime-pid-file": {"file with the id of the runtime's process; without one it is who serves --runtime-endpoint",
			func(c *config.Config) *string { return &c.Node.RuntimePIDFile }},
		"agent-cgroups":  {"cgroup that the agent is kept in", func(c *config.Config) *string { return &c.Node.AgentCgroup }},
		"agent-pid-file": {"file with the id of the agent's process", func(c *config.Config) *string { return &c.Node.AgentPIDFile }},
	} {
		value := fs.String(name, "", to.usage)
		given(name, func(c *config.Config) error { *to.field(c) = *value; return nil })
	}
	perQOS := fs.Bool("cgroups-per-qos", config.Default().Cgroups.PerQOS,
		"keep every pod in a cgroup of its own; false: make none, which takes --enforce-node-allocatable=none")
	given("cgroups-per-qos", func(c *config.Config) error { c.Cgroups.PerQOS = *perQOS; return nil })
	system := fs.String("system-reserved-cgroup", d.SystemReservedCgroup, "cgroup of the system, for system-reserved")
	given("system-reserved-cgroup", func(c *config.Config) error { c.Node.SystemReservedCgroup = *system; return nil })
	kube := fs.String("kube-reserved-cgroup", d.KubeReservedCgroup, "cgroup of the node's agents, for kube-reserved")
	given("kube-reserved-cgroup", func(c *config.Config) error { c.Node.KubeReservedCgroup = *kube; return nil })
	pods := fs.Int64("max-pods", d.MaxPods, "how many pods may be here; 0: any number")
	given("max-pods", func(c *config.Config) error { c.Node.MaxPods = *pods; return nil })
	perCore := fs.Int64("pods-per-core", d.PodsPerCore, "how many pods may be here for each CPU; 0: any number")
	given("pods-per-core", func(c *config.Config) error { c.Node.PodsPerCore = *perCore; return nil })
	fit := fs.Bool("node-fit", d.NodeFit, "reject pods that request more than is left of what is allocatable")
	given("node-fit", func(c *config.Config) error { c.Node.NodeFit = *fit; return nil })
	swap := fs.Bool("fail-swap-on", d.FailSwapOn, "refuse to start where the machine swaps")
	given("fail-swap-on", func(c *config.Config) error { c.Node.FailSwapOn = *swap; return nil })
	v1 := fs.Bool("fail-cgroupv1", d.FailCgroupV1, "refuse to start on cgroup v1")
	given("fail-cgroupv1", func(c *config.Config) error { c.Node.FailCgroupV1 = *v1; return nil })
	tunables := fs.String("kernel-tunables", d.KernelTunables,
		"what to do about kernel settings that differ from what Kubernetes expects: ignore, warn, set or require")
	given("kernel-tunables", func(c *config.Config) error { c.Node.KernelTunables = *tunables; return nil })
	score := fs.Int("oom-score-adj", d.OOMScoreAdj, "berthd's own score of the out-of-memory killer, -1000 to 1000")
	given("oom-score-adj", func(c *config.Config) error { c.Node.OOMScoreAdj = *score; return nil })
	rights := config.Default().Privileges
	capabilities := fs.Bool("drop-capabilities", rights.DropCapabilities, "keep only the capabilities that this configuration needs")
	given("drop-capabilities", func(c *config.Config) error { c.Privileges.DropCapabilities = *capabilities; return nil })
	landlock := fs.Bool("landlock", rights.Landlock,
		"keep only the files and ports that this configuration needs, where the kernel has Landlock")
	given("landlock", func(c *config.Config) error { c.Privileges.Landlock = *landlock; return nil })
	seccomp := fs.Bool("seccomp", rights.Seccomp, "keep only the system calls that berthd makes, where the kernel has seccomp")
	given("seccomp", func(c *config.Config) error { c.Privileges.Seccomp = *seccomp; return nil })
	eviction := fs.String("eviction-hard", "", "thresholds that pods do not get, as memory.available<100Mi,nodefs.available<10%")
	given("eviction-hard", func(c *config.Config) (err error) {
		c.Reserved.EvictionHard, err = parseEviction(*eviction)
		return err
	})
}

// parseEviction reads the kubelet's form of thresholds on a command line.
func parseEviction(text string) (map[string]string, error) {
	out := map[string]string{}
	if text == "" {
		return out, nil
	}
	for entry := range strings.SplitSeq(text, ",") {
		signal, value, ok := strings.Cut(entry, "<")
		if !ok || signal == "" || value == "" {
			return nil, errdefs.Invalidf("--eviction-hard: %q: expected a signal and a value as in memory.available<100Mi", entry)
		}
		if _, twice := out[signal]; twice {
			return nil, errdefs.Invalidf("--eviction-hard: %s is listed twice", signal)
		}
		out[signal] = value
	}
	return out, nil
}
