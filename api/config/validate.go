package config

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/berthd/berth/api/access"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/qos"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// Validate checks everything that can be checked without the machine and its
// files; the managers' constructors check the rest.
func (c Config) Validate() error {
	var vs errdefs.Violations
	oneOf := func(field, got string, allowed ...string) {
		if !slices.Contains(allowed, got) {
			vs.Addf(field, "expected one of %s, got %q", strings.Join(allowed, ", "), got)
		}
	}
	oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	oneOf("log.format", c.Log.Format, "text", "json")
	oneOf("cgroups.tree", c.Cgroups.Tree, TreeKernel, TreeMemory)
	oneOf("cgroups.driver", c.Cgroups.Driver, string(cgroup.Cgroupfs), string(cgroup.Systemd))
	oneOf("cgroups.driftPolicy", c.Cgroups.DriftPolicy, DriftRepair, DriftReport)
	oneOf("cpu.policy", c.CPU.Policy, cpu.PolicyNone, cpu.PolicyStatic)
	c.validateMemory(&vs, oneOf)
	oneOf("topology.policy", string(c.Topology.Policy), string(topology.None), string(topology.BestEffort), string(topology.Restricted),
		string(topology.SingleNUMANode))
	oneOf("topology.scope", c.Topology.Scope, string(hint.ContainerScope), string(hint.PodScope))
	oneOf("topology.planning", string(c.Topology.Planning), string(topology.ByPod), string(topology.ByContainer))
	if !slices.ContainsFunc(vs, func(v errdefs.Violation) bool { return strings.HasPrefix(v.Field, "topology.") }) {
		if _, err := topology.New(c.TopologyConfig(), 0, numa.Distances{}); err != nil {
			vs.Addf("topology.options", "%v", err)
		}
	}
	if err := access.Validate("access", c.Access); err != nil {
		vs.Addf("access", "%v", err)
	}
	for field, mode := range map[string]string{"listenMode": c.ListenMode, "httpMode": c.HTTPMode} {
		if _, err := Mode(mode, 0); err != nil {
			vs.Addf(field, "%v", err)
		}
	}
	c.validateBeside(&vs)
	c.validateObserve(&vs)
	if e := c.RuntimeEndpoint; e != "" && !path.IsAbs(strings.TrimPrefix(e, "unix://")) {
		vs.Addf("runtimeEndpoint", "%q: expected the absolute path of a socket, as unix:///run/containerd/containerd.sock", e)
	}
	c.validateLimits(&vs)
	durations := map[string]int64{
		"limits.call":                 int64(c.Limits.Call.Duration),
		"providers.allocateTimeout":   int64(c.Providers.AllocateTimeout.Duration),
		"providers.preStartTimeout":   int64(c.Providers.PreStartTimeout.Duration),
		"providers.callTimeout":       int64(c.Providers.CallTimeout.Duration),
		"providers.pluginInfoTimeout": int64(c.Providers.PluginInfoTimeout.Duration),
		"providers.external.deadline": int64(c.Providers.External.Deadline.Duration),
		"providers.external.connect":  int64(c.Providers.External.Connect.Duration),
		"providers.external.lease":    int64(c.Providers.External.Lease.Duration),
	}
	c.validatePeriods(&vs)
	c.validateHotplug(&vs, oneOf)
	if rate := c.Moves.BytesPerSecond; rate > 0 && rate < live.LeastMoveRate {
		vs.Addf("moves.bytesPerSecond", "%d: expected at least %d, or 0 for no limit", rate, live.LeastMoveRate)
	}
	c.validateDRA(&vs)
	for _, field := range slices.Sorted(maps.Keys(durations)) {
		if durations[field] <= 0 {
			vs.Addf(field, "expected a positive duration such as 10s")
		}
	}
	c.validateOrder(&vs)
	c.validateDevices(&vs, oneOf)
	if score := c.Node.OOMScoreAdj; score < -1000 || score > 1000 {
		vs.Addf("node.oomScoreAdj", "expected -1000 to 1000, got %d", score)
	}
	placeOf("node.systemCgroups", c.Node.SystemCgroup, &vs)
	placeOf("node.kubeletCgroups", c.Node.OwnCgroup, &vs)
	c.validateKept(&vs)
	oneOf("node.kernelTunables", c.Node.KernelTunables, TunablesIgnore, TunablesWarn, TunablesSet, TunablesRequire)
	n, err := c.NodeConfig()
	if err == nil {
		err = n.Validate()
	}
	include(&vs, "node", err)
	c.validateCgroups(&vs)
	slices.SortStableFunc(vs, func(a, b errdefs.Violation) int { return strings.Compare(a.Field, b.Field) })
	return vs.Err("configuration")
}

func (c Config) validateLimits(vs *errdefs.Violations) {
	numbers := map[string]struct{ is, most int }{ // the most that a daemon with a few GiB of memory can serve
		"limits.messageBytes":      {c.Limits.MessageBytes, 64 << 20},
		"limits.watchEvents":       {c.Limits.WatchEvents, 1 << 20},
		"limits.containers":        {c.Limits.Containers, 10_000},
		"limits.userConnections":   {c.Limits.UserConnections, 1024},
		"limits.userCalls":         {c.Limits.UserCalls, 10_000},
		"limits.userBytes":         {c.Limits.UserBytes, 256 << 20},
		"limits.pluginDevices":     {c.Limits.PluginDevices, 1 << 20},
		"limits.pluginResources":   {c.Limits.PluginResources, 4096},
		"limits.messageElements":   {c.Limits.MessageElements, 1 << 20},
		"limits.podResourcesBurst": {c.Limits.PodResourcesBurst, 10_000},
	}
	if n := c.History.Entries; n < 0 || n > MostHistoryEntries {
		vs.Addf("history.entries", "expected 0, which keeps no history, to %d, got %d", MostHistoryEntries, n)
	}
	if n := c.History.Bytes; n < leastHistoryBytes || n > mostHistoryBytes {
		vs.Addf("history.bytes", "expected %d to %d, got %d", leastHistoryBytes, mostHistoryBytes, n)
	}
	for _, field := range slices.Sorted(maps.Keys(numbers)) {
		switch n := numbers[field]; {
		case n.is <= 0:
			vs.Addf(field, "expected a positive number, got %d", n.is)
		case n.is > n.most:
			vs.Addf(field, "expected at most %d, got %d", n.most, n.is)
		}
	}
	if n := c.Limits.PodResourcesPerSecond; n <= 0 || n > mostPerSecond {
		vs.Addf("limits.podResourcesPerSecond", "expected a positive number of at most %d, got %v", mostPerSecond, n)
	}
	if d := c.Limits.Call.Duration; d > mostOfACall {
		vs.Addf("limits.call", "expected at most %s, got %s", mostOfACall, d)
	}
	if c.Limits.PodResourcesWait.Duration < 0 {
		vs.Addf("limits.podResourcesWait", "expected a duration such as 15s, or 0 for none")
	}
}

// leastPeriod is the shortest time between two rounds of work that berthd repeats. A shorter one would
// only use up a CPU.
const leastPeriod = 10 * time.Millisecond

func (c Config) validatePeriods(vs *errdefs.Violations) {
	for field, period := range map[string]time.Duration{"cgroups.reconcilePeriod": c.Cgroups.ReconcilePeriod.Duration,
		"hotplug.poll": c.Hotplug.Poll.Duration} {
		if period < leastPeriod {
			vs.Addf(field, "%s: expected at least %s, such as 10s", period, leastPeriod)
		}
	}
}

func (c Config) validateHotplug(vs *errdefs.Violations, oneOf func(field, got string, allowed ...string)) {
	if c.Hotplug.Debounce.Duration < 0 {
		vs.Addf("hotplug.debounce", "expected a duration such as 5s, or 0 for none")
	}
	oneOf("hotplug.reservedCPUs", c.Hotplug.ReservedCPUs, ReservedKeep, ReservedMove)
	oneOf("hotplug.onLost", c.Hotplug.OnLost, LostReport, LostReplace)
}

// oldThrottlingFactor was the kubelet's default before 1.37. Like the kubelet, berth accepts it without memory QoS.
const oldThrottlingFactor = 0.9

// validateCgroups checks the rules for every kernel. A v2 tree supports every configuration.
func (c Config) validateCgroups(vs *errdefs.Violations) {
	driver := cgroup.Driver(c.Cgroups.Driver)
	if _, err := cgroup.NewLayout(c.Cgroups.Root, driver); err != nil {
		include(vs, "cgroups.root", err)
	}
	if _, err := qos.ParseReserved(c.Cgroups.QOSReserved); err != nil {
		include(vs, "cgroups.qosReserved", err)
		return
	}
	switch factor := c.Cgroups.MemoryThrottlingFactor; {
	case factor == nil:
	case !(*factor > 0 && *factor <= 1):
		vs.Addf("cgroups.memoryThrottlingFactor", "is %v, expected more than 0 and at most 1", *factor)
		return
	case !c.Cgroups.MemoryQoS && *factor != oldThrottlingFactor:
		vs.Addf("cgroups.memoryThrottlingFactor", "is %v, and cgroups.memoryQoS is off: leave one of them out", *factor)
	}
	_, err := c.QoSConfig(cgroup.Facts{Version: cgroup.V2, Driver: driver}, 0)
	include(vs, "cgroups", err)
}

// configFields maps a field of a KubeletConfiguration, as managers name it, to the field of
// this document.
var configFields = map[string]string{
	"systemReserved":          "reserved.system",
	"kubeReserved":            "reserved.kube",
	"evictionHard":            "reserved.evictionHard",
	"reservedSystemCPUs":      "reserved.cpus",
	"enforceNodeAllocatable":  "node.enforceNodeAllocatable",
	"cgroupsPerQOS":           "cgroups.cgroupsPerQOS",
	"systemReservedCgroup":    "node.systemReservedCgroup",
	"kubeReservedCgroup":      "node.kubeReservedCgroup",
	"maxPods":                 "node.maxPods",
	"podsPerCore":             "node.podsPerCore",
	"cpuCFSQuotaPeriod":       "cgroups.cpuCFSQuotaPeriod",
	"memoryReservationPolicy": "cgroups.memoryReservationPolicy",
	"memoryThrottlingFactor":  "cgroups.memoryThrottlingFactor",
	"memorySwap.swapBehavior": "cgroups.swapBehavior",
}

// include adds a manager's error about its part. field is the path if the manager gives none.
func include(vs *errdefs.Violations, field string, err error) {
	var wrong *errdefs.Error
	switch {
	case err == nil:
	case errors.As(err, &wrong) && len(wrong.Fields) > 0:
		for _, v := range wrong.Fields {
			name, rest, indexed := strings.Cut(v.Field, "[")
			if place, ok := configFields[name]; ok {
				name = place
			}
			if indexed {
				name += "[" + rest
			}
			vs.Addf(name, "%s", v.Description)
		}
	default:
		vs.Addf(field, "%v", err)
	}
}

// validateOrder insists on every built-in provider once.
func (c Config) validateOrder(vs *errdefs.Violations) {
	builtIn := Default().Providers.Order
	got := slices.Sorted(slices.Values(c.Providers.Order))
	want := slices.Sorted(slices.Values(builtIn))
	if !slices.Equal(got, want) {
		vs.Addf("providers.order", "expected each of %s once, got %q", strings.Join(builtIn, ", "), c.Providers.Order)
	}
	for i, name := range c.Providers.External.Required {
		if name == "" || slices.Contains(builtIn, name) || slices.Contains(c.Providers.External.Required[:i], name) {
			vs.Addf(fmt.Sprintf("providers.external.required[%d]", i), "%q: expected the name of a provider outside berthd, once", name)
		}
	}
	for i, a := range c.Providers.External.Allow {
		at := fmt.Sprintf("providers.external.allow[%d]", i)
		before := c.Providers.External.Allow[:i]
		if a.Provider == "" || slices.Contains(builtIn, a.Provider) ||
			slices.ContainsFunc(before, func(b AllowedProvider) bool { return b.Provider == a.Provider }) {
			vs.Addf(at+".provider", "%q: expected the name of a provider outside berthd, once", a.Provider)
		}
		for j, kind := range a.Edits {
			if !slices.Contains(EditKinds(), kind) {
				vs.Addf(fmt.Sprintf("%s.edits[%d]", at, j), "%q: expected one of %s", kind, strings.Join(EditKinds(), ", "))
			}
		}
	}
}

// DevicePluginSocket returns the socket on which device plugins register; empty: nowhere.
func (c Config) DevicePluginSocket() string { return kubeletSocket(c.DevicePluginDir) }

// PodResourcesSocket returns the socket that podresources clients read; empty: nowhere.
func (c Config) PodResourcesSocket() string { return kubeletSocket(c.PodResourcesDir) }

func kubeletSocket(dir *string) string {
	if Path(dir) == "" {
		return ""
	}
	return path.Join(*dir, "kubelet.sock")
}

// Path is the path of a directory that may be switched off, and then empty.
func Path(dir *string) string {
	if dir == nil {
		return ""
	}
	return *dir
}

// CPUConfig is the CPU manager's part.
func (c Config) CPUConfig() (cpu.Config, error) {
	reserved := int64(0)
	if c.Reserved.CPUs.IsEmpty() {
		n, err := c.NodeConfig()
		if err != nil {
			return cpu.Config{}, err
		}
		reserved = n.Reserved(workload.CPU)
	}
	return cpu.Config{
		Policy: c.CPU.Policy, Options: maps.Clone(c.CPU.Options),
		ReservedCPUs: c.Reserved.CPUs, ReservedMilliCPU: reserved,
		TopologyPolicy: string(c.Topology.Policy), AsKubelet: c.Features.AsKubelet,
		Features: cpu.Features{
			AlphaOptions: c.Features.CPUAlphaOptions, BetaOptions: c.Features.CPUBetaOptions,
			Features: c.WorkloadFeatures(), ResizeExclusiveCPUs: c.Features.ExclusiveCPUResize,
		},
	}, nil
}

// ManagerSet returns what configures the managers that decide on a machine.
func (c Config) ManagerSet(m *machine.Topology) (managerset.Config, error) {
	digest, err := c.Digest()
	if err != nil {
		return managerset.Config{}, err
	}
	settings, err := c.Settings()
	if err != nil {
		return managerset.Config{}, err
	}
	whole, err := c.nodeOn(m)
	if err != nil {
		return managerset.Config{}, err
	}
	cpus, err := c.CPUConfig()
	if err != nil {
		return managerset.Config{}, err
	}
	cpus.ReservedCPUs = whole.ReservedCPUs
	if c.Reserved.IsolatedCPUs {
		cpus.AlsoReserved = m.Isolated()
	}
	if c.Reserved.NoHZFullCPUs {
		cpus.AlsoReserved = cpus.AlsoReserved.Union(m.NoHZFull())
	}
	mem, err := c.MemoryConfig(m)
	if err != nil {
		return managerset.Config{}, err
	}
	claims, err := c.claims()
	if err != nil {
		return managerset.Config{}, err
	}
	return managerset.Config{
		Claims: claims,
		CPU:    cpus, Memory: mem, Topology: c.TopologyConfig(), Node: whole, Fit: c.Node.NodeFit,
		Order: c.Providers.Order, Digest: digest, Settings: settings,
	}, nil
}

// TopologyConfig is the topology manager's part.
func (c Config) TopologyConfig() topology.Config {
	planning := c.Topology.Planning
	if c.Features.AsKubelet {
		planning = topology.ByContainer
	}
	return topology.Config{Policy: c.Topology.Policy, Scope: hint.Scope(c.Topology.Scope), Planning: planning,
		Options: c.Topology.Options, MaxNodes: c.Topology.MaxNodes}
}

// WorkloadFeatures are the features that pods' classes and totals depend on.
func (c Config) WorkloadFeatures() workload.Features {
	return workload.Features{
		PodLevelResources:        c.Features.PodLevelResources,
		PodLevelResourceManagers: c.Features.PodLevelResourceManagers,
	}
}

// validateKept checks the settings of the runtime's and the agent's processes.
func (c Config) validateKept(vs *errdefs.Violations) {
	placeOf("node.runtimeCgroups", c.Node.RuntimeCgroup, vs)
	placeOf("node.agentCgroups", c.Node.AgentCgroup, vs)
	for field, file := range map[string]string{"node.runtimePidFile": c.Node.RuntimePIDFile, "node.agentPidFile": c.Node.AgentPIDFile} {
		if file != "" && !path.IsAbs(file) {
			vs.Addf(field, "%q: expected the absolute path of a file with the id of a process", file)
		}
	}
	if c.Node.RuntimeCgroup != "" && c.Node.RuntimePIDFile == "" && c.RuntimeEndpoint == "" {
		vs.Addf("node.runtimeCgroups",
			"needs node.runtimePidFile or runtimeEndpoint (--runtime-endpoint), which identify the runtime's process")
	}
	if c.Node.AgentCgroup != "" && c.Node.AgentPIDFile == "" {
		vs.Addf("node.agentCgroups", "needs node.agentPidFile, which identifies the agent's process")
	}
}

// placeOf checks the name of a cgroup that processes are moved to.
func placeOf(field, name string, vs *errdefs.Violations) {
	path := cgroup.ParseCgroupfs(name)
	switch err := path.Check(); {
	case name == "":
	case path.IsRoot():
		vs.Addf(field, "is the root cgroup, expected one below it")
	case err != nil:
		vs.Addf(field, "%v", err)
	}
}

// QoSConfig returns what configures the values of cgroups, for a tree on a machine
// with that much memory.
func (c Config) QoSConfig(facts cgroup.Facts, memoryBytes int64) (qos.Config, error) {
	reserved, err := qos.ParseReserved(c.Cgroups.QOSReserved)
	if err != nil {
		return qos.Config{}, err
	}
	cg := cgroup.DefaultConfig(facts)
	cg.Features = c.WorkloadFeatures()
	cg.CFSQuota = c.Cgroups.CPUCFSQuota
	cg.PeriodUS = uint64(c.Cgroups.CPUCFSPeriod.Microseconds())
	cg.QuotaWithExclusiveCPUs = c.Cgroups.QuotaWithExclusiveCPUs
	cg.PodPIDsLimit = c.Cgroups.PodPIDsLimit
	cg.MemoryQoS = c.Cgroups.MemoryQoS
	cg.ReservationPolicy = cgroup.ReservationPolicy(c.Cgroups.MemoryReservationPolicy)
	if factor := c.Cgroups.MemoryThrottlingFactor; factor != nil {
		cg.ThrottlingFactor = *factor
	}
	cg.SwapBehavior = cgroup.SwapBehavior(c.Cgroups.SwapBehavior)
	if c.Cgroups.SingleProcessOOMKill != nil {
		cg.SingleProcessOOMKill = *c.Cgroups.SingleProcessOOMKill
	}
	cg.MemoryBytes = memoryBytes
	if err := cg.Validate(); err != nil {
		return qos.Config{}, err
	}
	return qos.Config{Cgroup: cg, ReservedMemory: reserved}, nil
}

// MostHistoryEntries limits the entries of the history, of which berthd keeps the sizes in memory.
// leastHistoryBytes is the size of the largest entry. With mostHistoryBytes, bundles take the whole
// history, and berthctl reads the ledger's file.
const (
	MostHistoryEntries = 1_000_000
	leastHistoryBytes  = 1 << 20
	mostHistoryBytes   = 256 << 20
)

const (
	// mostPerSecond is the highest rate of calls of podresources, and mostOfACall the longest time of a call.
	mostPerSecond = 10_000
	mostOfACall   = time.Hour
)
