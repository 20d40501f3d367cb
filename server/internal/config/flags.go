package config

import (
	"github.com/spf13/pflag"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
)

// AddFlags declares the flags of berthd and returns the sources that they make
// up once the set is parsed. A flag that is not given changes nothing.
func AddFlags(fs *pflag.FlagSet) *Sources {
	s := &Sources{KubeletState: "/var/lib/kubelet"}
	fs.StringVar(&s.BerthFile, "config", "", "berth's own configuration file (YAML, "+config.APIVersion+" "+config.Kind+")")
	fs.StringVar(&s.KubeletFile, "kubelet-config", "", "a kubelet's configuration file; berthd reads the fields of the container manager")
	fs.StringVar(&s.KubeletDir, "kubelet-config-dir", "",
		"the directory of the kubelet's drop-ins (its --config-dir), which are merged with --kubelet-config as the kubelet merges them")
	defer markFlags(fs)
	d := config.Default()
	given := &d
	var order []func(*config.Config) error
	str := func(name, usage string, field func(*config.Config) *string) {
		value := fs.String(name, *field(given), usage)
		order = append(order, func(c *config.Config) error {
			if fs.Changed(name) {
				*field(c) = *value
			}
			return nil
		})
	}
	stringMap := func(name, usage string, field func(*config.Config) *map[string]string) {
		value := fs.StringToString(name, nil, usage)
		order = append(order, func(c *config.Config) error {
			if fs.Changed(name) {
				*field(c) = *value
			}
			return nil
		})
	}
	str("root-dir", "directory for every path that is not set by itself", func(c *config.Config) *string { return &c.RootDir })
	str("listen", "berth's own socket", func(c *config.Config) *string { return &c.Listen })
	str("state-dir", "directory of the ledger", func(c *config.Config) *string { return &c.StateDir })
	str("beside", "kubelet: berthd works for berth-nri on a node with a running kubelet. It serves no kubelet's socket, writes no cgroup, and leaves the node's checks and unknown devices to the kubelet",
		func(c *config.Config) *string { return &c.Beside })
	str("observe", "the root directory of a node whose kubelet decides, / for this node: berthd reads that node, and changes nothing",
		func(c *config.Config) *string { return &c.Observe.Root })
	fs.Lookup("observe").NoOptDefVal = "/"
	str("kubelet", "with --observe in a pod, ADDRESS or ADDRESS:PORT of the kubelet's web server, which has the pods if there is no Pods API; needs the right nodes/pods and Kubernetes 1.33",
		func(c *config.Config) *string { return &c.Observe.Kubelet })
	str("node-name", "with --kubelet, the name of the node", func(c *config.Config) *string { return &c.Observe.NodeName })
	str("kubelet-ca", "with --kubelet, a file with the certificate authority of that server, in addition to that of the cluster",
		func(c *config.Config) *string { return &c.Observe.KubeletCA })
	addDirectories(fs, &order)
	str("runtime-endpoint", "socket of the container runtime (CRI v1), which makes the containers' cgroups; empty: berthd makes them",
		func(c *config.Config) *string { return &c.RuntimeEndpoint })
	str("http", "address for /metrics, /healthz and /readyz", func(c *config.Config) *string { return &c.HTTP })
	str("machine", "snapshot file or shape (2s4n32c2t) to use in place of this machine",
		func(c *config.Config) *string { return &c.Machine })
	str("cgroup-root", "cgroup below which everything lies", func(c *config.Config) *string { return &c.Cgroups.Root })
	str("cgroup-driver", "cgroupfs, or systemd for slices", func(c *config.Config) *string { return &c.Cgroups.Driver })
	str("cgroup-mount", "where the cgroup tree is mounted", func(c *config.Config) *string { return &c.Cgroups.Mount })
	str("cgroup-tree", "kernel, or memory for a tree that only exists in berthd", func(c *config.Config) *string { return &c.Cgroups.Tree })
	str("cpu-manager-policy", "none or static", func(c *config.Config) *string { return &c.CPU.Policy })
	str("memory-manager-policy", "None or Static", func(c *config.Config) *string { return &c.Memory.Policy })
	str("topology-manager-policy", "none, best-effort, restricted or single-numa-node",
		func(c *config.Config) *string { return (*string)(&c.Topology.Policy) })
	str("topology-manager-scope", "container or pod", func(c *config.Config) *string { return &c.Topology.Scope })
	str("topology-planning", "which containers of a pod are planned first: pod (those that run for its life) or container (in order, as the kubelet)",
		func(c *config.Config) *string { return (*string)(&c.Topology.Planning) })
	str("log-level", "debug, info, warn or error", func(c *config.Config) *string { return &c.Log.Level })
	str("log-format", "text or json", func(c *config.Config) *string { return &c.Log.Format })
	stringMap("cpu-manager-policy-options", "options of the CPU policy",
		func(c *config.Config) *map[string]string { return &c.CPU.Options })
	stringMap("topology-manager-policy-options", "options of the topology policy",
		func(c *config.Config) *map[string]string { return &c.Topology.Options })
	stringMap("system-reserved", "what the system keeps, as cpu=500m,memory=1Gi",
		func(c *config.Config) *map[string]string { return &c.Reserved.System })
	stringMap("kube-reserved", "what node agents keep, as cpu=500m,memory=1Gi",
		func(c *config.Config) *map[string]string { return &c.Reserved.Kube })

	str("devices-unknown",
		"what to do with pods that request an unknown extended resource: defer, reject or ignore (as the kubelet does, and with --kubelet-config)",
		func(c *config.Config) *string { return &c.Devices.Unknown })
	elsewhere := fs.StringSlice("devices-elsewhere", nil,
		"extended resources that another program serves, by name or domain; * for all unknown ones")

	addNodeFlags(fs, &order)

	addReservedFlags(fs, &order)
	order = append(order, func(c *config.Config) error {
		if fs.Changed("devices-elsewhere") {
			c.Devices.Elsewhere = *elsewhere
		}
		return nil
	})
	s.Flags = func(c *config.Config) error {
		for _, apply := range order {
			if err := apply(c); err != nil {
				return err
			}
		}
		return nil
	}
	return s
}

// addReservedFlags declares what the system keeps, and whether a damaged ledger is refused.
func addReservedFlags(fs *pflag.FlagSet, order *[]func(*config.Config) error) {
	cpus := fs.String("reserved-cpus", "",
		"list of reserved CPUs, in place of the amounts; reserved CPUs are never exclusive to a container")
	one := fs.Bool("reserve-one-if-none", false,
		"if no CPU is reserved by any source, and the CPU policy is static: CPU 0 and the other threads of its core stay shared")
	reserved := fs.StringArray("reserved-memory", nil,
		"what the system keeps of each NUMA node, as 0:memory=1Gi,hugepages-1Gi=2Gi;1:memory=1124Mi; may be repeated; memory must add up to what is reserved")
	strict := fs.Bool("strict-state", false, "refuse to start on a damaged ledger")
	*order = append(*order, func(c *config.Config) error {
		if fs.Changed("reserved-cpus") {
			set, err := cpuset.Parse(*cpus)
			if err != nil {
				return errdefs.Invalidf("--reserved-cpus: %w", err)
			}
			c.Reserved.CPUs = set
		}
		if fs.Changed("reserve-one-if-none") {
			c.Reserved.OneIfNone = *one
		}
		if fs.Changed("reserved-memory") {
			c.Memory.Reserved = nil
		}
		for _, text := range *reserved {
			if text == "" {
				continue
			}
			entries, err := config.ParseReservedMemory(text)
			if err != nil {
				return errdefs.Invalidf("--reserved-memory: %w", err)
			}
			c.Memory.Reserved = append(c.Memory.Reserved, entries...)
		}
		if fs.Changed("strict-state") {
			c.StrictState = *strict
		}
		return nil
	})
}

// markFlags says what the flags name.
func markFlags(fs *pflag.FlagSet) {
	trust.Mark(fs, trust.File, "config", "kubelet-config", "kubelet-ca", "runtime-pid-file", "agent-pid-file")
	trust.Mark(fs, trust.Directory, "kubelet-config-dir", "observe", "root-dir", "state-dir", "cgroup-mount", "device-plugin-dir",
		"plugin-registry-dir", "pod-resources-dir")
	trust.Mark(fs, trust.Socket, "listen", "runtime-endpoint")
	trust.Mark(fs, trust.Address, "http")
	trust.Mark(fs, trust.FileOrText, "machine")
}

// addDirectories declares the flags of the directories that can be switched off.
func addDirectories(fs *pflag.FlagSet, order *[]func(*config.Config) error) {
	directory := func(name, usage string, field func(*config.Config) **string) {
		value := fs.String(name, "", usage+"; an empty path switches it off")
		*order = append(*order, func(c *config.Config) error {
			if fs.Changed(name) {
				*field(c) = value
			}
			return nil
		})
	}
	directory("device-plugin-dir", "directory of the device plugins' sockets",
		func(c *config.Config) **string { return &c.DevicePluginDir })
	directory("plugin-registry-dir", "directory to watch for plugins that do not register by themselves",
		func(c *config.Config) **string { return &c.PluginRegistryDir })
	directory("pod-resources-dir", "directory of the podresources socket", func(c *config.Config) **string { return &c.PodResourcesDir })
}
