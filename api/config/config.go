package config

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/berthd/berth/api/access"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/node"
	"github.com/berthd/berth/managers/topology"
)

// APIVersion and Kind of berth's own configuration file.
const (
	APIVersion = "config.berthd.github.io/v1alpha1"
	Kind       = "BerthConfiguration"
)

// ReadyMark is the name of a file in the state directory. It means that berthd has been ready on this node once.
const ReadyMark = "was-ready"

// LockFile is the name of the file in the state directory that a running berthd has locked (flock(2)).
const LockFile = "berthd.lock"

// Config is everything an operator can set. Its JSON form is the file format.
// Names and values of the managers' settings are the kubelet's.
type Config struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	// RootDir is where every path lies that is not set by itself. Empty means the
	// paths that a kubelet's clients expect: /run/berth, /var/lib/berth and
	// /var/lib/kubelet.
	RootDir string `json:"rootDir,omitempty" names:"directory"`
	// Listen is berth's own socket.
	Listen string `json:"listen,omitempty" names:"socket"`
	// ListenMode is the mode of that socket, in octal digits. Empty: 0666 if access
	// grants roles, otherwise 0660.
	ListenMode string `json:"listenMode,omitempty"`
	// ListenGroup is the group, by name or number, of that socket and of one for
	// metrics. Empty: berthd's own.
	ListenGroup string `json:"listenGroup,omitempty"`
	// StateDir holds the ledger.
	StateDir string `json:"stateDir,omitempty" names:"directory"`
	// Beside names another program that manages resources on this node: kubelet, or empty for
	// none. It changes defaults (BesideKubelet).
	Beside string `json:"beside,omitempty"`
	// Observe is the node that berthd only reads.
	Observe Observe `json:"observe,omitzero"`
	// DevicePluginDir is the directory of kubelet.sock, where plugins register, and of the
	// plugins' sockets. For this directory and the next two, an empty path disables the feature,
	// and nil is the default path.
	DevicePluginDir *string `json:"devicePluginDir,omitempty" names:"directory"`
	// PluginRegistryDir is watched for the sockets of plugins that do not register
	// by themselves.
	PluginRegistryDir *string `json:"pluginRegistryDir,omitempty" names:"directory"`
	// PodResourcesDir holds kubelet.sock, where podresources clients read.
	PodResourcesDir *string `json:"podResourcesDir,omitempty" names:"directory"`
	// RuntimeEndpoint is the socket of the container runtime (CRI v1), which then
	// makes the containers' cgroups. Empty: berthd makes them.
	RuntimeEndpoint string `json:"runtimeEndpoint,omitempty" names:"socket"`
	// HTTP is the address for /metrics, /healthz, /readyz and the page, or unix:// and the path of
	// a socket; empty: none.
	HTTP string `json:"http,omitempty" names:"address"`
	// HTTPMode is the mode of such a socket, in octal digits; empty: 0660.
	HTTPMode string `json:"httpMode,omitempty"`
	// HTTPPage serves the page for a browser on an address, too, where every user of the
	// machine can read it. A socket always has it, for users with the role read.
	HTTPPage bool `json:"httpPage"`
	// KubeletMetrics also serves metrics with the kubelet's names. With a kubelet on the node,
	// dashboards that sum over a node's targets would count twice.
	KubeletMetrics bool `json:"kubeletMetrics"`

	// Machine is a snapshot file or a shape such as 2s4n32c2t to use in place of
	// the machine that berthd runs on.
	Machine string `json:"machine,omitempty" names:"fileOrText"`

	Log       Log       `json:"log"`
	Cgroups   Cgroups   `json:"cgroups"`
	CPU       CPU       `json:"cpu"`
	Memory    Memory    `json:"memory"`
	Topology  Topology  `json:"topology"`
	Reserved  Reserved  `json:"reserved"`
	Node      Node      `json:"node"`
	Providers Providers `json:"providers"`
	Devices   Devices   `json:"devices"`
	Limits    Limits    `json:"limits"`
	History   History   `json:"history"`
	Hotplug   Hotplug   `json:"hotplug"`
	Moves     Moves     `json:"moves"`
	DRA       DRA       `json:"dra,omitzero"`
	Verdicts  Verdicts  `json:"verdicts"`
	Features  Features  `json:"features"`
	// Privileges lists the privileges that berthd drops.
	Privileges Privileges `json:"privileges"`
	// Access grants roles; root always has all of them.
	Access []access.Grant `json:"access,omitempty"`
	// StrictState refuses to start on a damaged ledger instead of setting it
	// aside.
	StrictState bool `json:"strictState,omitempty"`
}

// Log configures logging.
type Log struct {
	// Level is debug, info, warn or error.
	Level string `json:"level"`
	// Format is text or json.
	Format string `json:"format"`
}

// Cgroups configures the location and the values of pods' cgroups.
type Cgroups struct {
	// Tree is kernel, or memory for a tree that only exists in berthd.
	Tree string `json:"tree"`
	// Driver is cgroupfs, which creates directories, or systemd, which creates slices of systemd.
	Driver string `json:"driver"`
	// Mount is where the kernel's tree is mounted.
	Mount string `json:"mount" names:"directory"`
	// Root is the cgroup below which everything of berth lies.
	Root string `json:"root"`
	// PerQOS keeps every pod in a cgroup of its own, in the tier of its QoS class.
	// Without it there are neither: CPUs, memory and devices are decided all the same,
	// and what makes the containers has to make their cgroups.
	PerQOS bool `json:"cgroupsPerQOS"`
	// ReconcilePeriod is how often the kernel's values are compared.
	ReconcilePeriod metav1.Duration `json:"reconcilePeriod"`
	// DriftPolicy is the reaction to values that another program has changed: repair writes them
	// again, report only reports them.
	DriftPolicy  string          `json:"driftPolicy"`
	CPUCFSQuota  bool            `json:"cpuCFSQuota"`
	CPUCFSPeriod metav1.Duration `json:"cpuCFSQuotaPeriod"`
	// QuotaWithExclusiveCPUs leaves containers and pods with CPUs of their own their
	// CPU quota.
	QuotaWithExclusiveCPUs bool `json:"quotaWithExclusiveCPUs"`
	// PodPIDsLimit is none unless above 0.
	PodPIDsLimit int64 `json:"podPidsLimit"`
	// QOSReserved holds back memory for higher classes, as {"memory": "50%"}.
	QOSReserved             map[string]string `json:"qosReserved,omitempty"`
	MemoryQoS               bool              `json:"memoryQoS"`
	MemoryReservationPolicy string            `json:"memoryReservationPolicy,omitempty"`
	// MemoryThrottlingFactor is absent for no throttling.
	MemoryThrottlingFactor *float64 `json:"memoryThrottlingFactor,omitempty"`
	SwapBehavior           string   `json:"swapBehavior,omitempty"`
	// SingleProcessOOMKill lets the kernel kill single processes; false, on v2,
	// makes it kill a container whole. Absent: whole on v2, single on v1.
	SingleProcessOOMKill *bool `json:"singleProcessOOMKill,omitempty"`
}

// CPU is the CPU manager's policy.
type CPU struct {
	Policy  string            `json:"policy"`
	Options map[string]string `json:"options,omitempty"`
}

// Topology is the topology manager's policy.
type Topology struct {
	Policy topology.Policy `json:"policy"`
	Scope  string          `json:"scope"`
	// Planning is the order in which a pod's containers are planned: pod (those that run for its life first) or container (as the
	// kubelet, one after the other). With features.asKubelet it is container.
	Planning topology.Planning `json:"planning"`
	Options  map[string]string `json:"options,omitempty"`
	// MaxNodes is the maximum number of NUMA nodes, unless the option max-allowable-numa-nodes is
	// set; 0 is berth's maximum, 64. A kubelet's file sets the kubelet's maximum.
	MaxNodes int `json:"maxNodes,omitempty"`
}

// Reserved lists what pods do not get; amounts are Kubernetes quantities.
type Reserved struct {
	System map[string]string `json:"system,omitempty"`
	Kube   map[string]string `json:"kube,omitempty"`
	// CPUs is an explicit list of reserved CPUs, which replaces the cpu amounts.
	CPUs cpuset.Set `json:"cpus,omitzero"`
	// OneIfNone reserves the core of the lowest CPU, if neither CPUs nor an amount of cpu is reserved and the
	// CPU policy is static, which needs a reservation.
	OneIfNone bool `json:"oneIfNone,omitempty"`
	// IsolatedCPUs also reserves the CPUs that the kernel isolates (isolcpus=).
	IsolatedCPUs bool `json:"isolatedCPUs,omitempty"`
	// NoHZFullCPUs also reserves the CPUs without a periodic tick (nohz_full=).
	NoHZFullCPUs bool `json:"nohzFullCPUs,omitempty"`
	// EvictionHard is how little may be left before pods are evicted, by eviction
	// signal, as {"memory.available": "100Mi"}. Absent: the kubelet's defaults;
	// empty: none.
	EvictionHard map[string]string `json:"evictionHard,omitzero"`
}

// Node configures the amounts for pods and the requirements of the node.
type Node struct {
	// Enforce lists the cgroups with limits from the reservations: pods, system-reserved,
	// kube-reserved, the last two also with -compressible, none.
	Enforce []string `json:"enforceNodeAllocatable"`
	// SystemReservedCgroup and KubeReservedCgroup name cgroups that are there
	// already, as the cgroup driver writes them.
	SystemReservedCgroup string `json:"systemReservedCgroup,omitempty"`
	KubeReservedCgroup   string `json:"kubeReservedCgroup,omitempty"`
	// SystemCgroup receives the processes of the root cgroup except the first one and the
	// kernel's. OwnCgroup receives berthd. Both are paths of plain directories under every
	// driver; empty: no process is moved.
	SystemCgroup string `json:"systemCgroups,omitempty"`
	OwnCgroup    string `json:"kubeletCgroups,omitempty"`
	// RuntimeCgroup receives the container runtime and AgentCgroup the agent, as OwnCgroup
	// receives berthd. The pid files identify the processes. Without one the runtime is the
	// process that serves the socket at runtimeEndpoint.
	RuntimeCgroup  string `json:"runtimeCgroups,omitempty"`
	RuntimePIDFile string `json:"runtimePidFile,omitempty" names:"file"`
	AgentCgroup    string `json:"agentCgroups,omitempty"`
	AgentPIDFile   string `json:"agentPidFile,omitempty" names:"file"`
	// MaxPods and PodsPerCore bound how many pods may be here; 0 is no bound.
	MaxPods     int64 `json:"maxPods"`
	PodsPerCore int64 `json:"podsPerCore,omitempty"`
	// NodeFit rejects pods that request more than the rest of allocatable. An agent whose
	// scheduler checks this can turn it off.
	NodeFit bool `json:"nodeFit"`
	// LocalStorage counts ephemeral storage, and StorageDir lies on the file
	// system that it comes from; empty: the one of the state directory.
	LocalStorage bool   `json:"localStorageCapacityIsolation"`
	StorageDir   string `json:"storageDir,omitempty" names:"directory"`
	// FailSwapOn refuses to start where the machine swaps.
	FailSwapOn bool `json:"failSwapOn"`
	// FailCgroupV1 refuses to start on cgroup v1.
	FailCgroupV1 bool `json:"failCgroupV1"`
	// KernelTunables is the reaction to kernel settings that differ from Kubernetes'
	// requirements: ignore, warn, set, or require, which refuses to start.
	KernelTunables string `json:"kernelTunables"`
	// SetHugePages allows SetHugePages to change the huge pages of the machine.
	SetHugePages bool `json:"setHugePages"`
	// OOMScoreAdj is berthd's own score of the out-of-memory killer, -1000 to 1000. One
	// below 0 is written only where berthd's cgroup has a memory limit. The agent that
	// AgentPIDFile names gets it too, and the runtime the kubelet's, -999, where
	// RuntimeCgroup or RuntimePIDFile names it.
	OOMScoreAdj int `json:"oomScoreAdj"`
}

// What happens to kernel settings.
const (
	TunablesIgnore  = "ignore"
	TunablesWarn    = "warn"
	TunablesSet     = "set"
	TunablesRequire = "require"
)

// Providers is the order of the calls to hint providers, and their time limits.
type Providers struct {
	Order []string `json:"order"`
	// AllocateTimeout bounds a device plugin's Allocate; the kubelet has no bound.
	AllocateTimeout metav1.Duration `json:"allocateTimeout"`
	// PreStartTimeout bounds a device plugin's PreStartContainer.
	PreStartTimeout metav1.Duration `json:"preStartTimeout"`
	// CallTimeout bounds every other call to a plugin, dialling included.
	CallTimeout metav1.Duration `json:"callTimeout"`
	// PluginInfoTimeout bounds the first question to a plugin that is found in the
	// plugin registry (GetInfo).
	PluginInfoTimeout metav1.Duration `json:"pluginInfoTimeout"`
	// External is about hint providers that are separate processes.
	External External `json:"external"`
}

// External limits what external hint providers may cost.
type External struct {
	// Required are providers without which pods are not admitted, even if no provider has
	// registered under the name yet, and independent of its requested mode. No other provider can
	// be required.
	Required []string `json:"required,omitempty"`
	// Allow lists what single providers may do beyond hints and claims.
	Allow []AllowedProvider `json:"allow,omitempty"`
	// Deadline of each call of an admission to a provider that requests none.
	Deadline metav1.Duration `json:"deadline"`
	// Connect is how long a provider that registers may take to answer.
	Connect metav1.Duration `json:"connect"`
	// Lease is how long a provider must hold the reservation of an admission that neither
	// succeeds nor fails.
	Lease metav1.Duration `json:"lease"`
}

// AllowedProvider is a provider that may do more than others.
type AllowedProvider struct {
	// Provider is its name.
	Provider string `json:"provider"`
	// UID is the user who may register under that name; 0 is root.
	UID uint32 `json:"uid,omitempty"`
	// Edits are the kinds of container edits that it may request from the runtime: env, mounts,
	// devices, annotations, cdi.
	Edits []string `json:"edits,omitempty"`
}

// EditKinds are the kinds of container edits.
func EditKinds() []string { return []string{"env", "mounts", "devices", "annotations", "cdi"} }

// Verdicts configures the answers of admissions.
type Verdicts struct {
	// Deferred lets an admission be answered with DEFERRED if its obstacle may be temporary,
	// such as a known device plugin that is disconnected. The agent then repeats it later.
	// Otherwise the pod is rejected, with the kubelet's words, and an admission without a
	// decision fails with UNAVAILABLE. A kubelet's file turns it off.
	Deferred bool `json:"deferred"`
}

// Limits bound what callers can request.
type Limits struct {
	// MessageBytes limits the size of a request. MessageElements limits the messages, items of
	// lists and entries of maps in a request of a user other than root.
	MessageBytes    int `json:"messageBytes"`
	MessageElements int `json:"messageElements"`
	// Containers is how many containers a pod may have.
	Containers int `json:"containers"`
	// Call is the longest that a unary call may take.
	Call metav1.Duration `json:"call"`
	// UserConnections and UserCalls limit the simultaneous connections and calls of a user other
	// than root. UserBytes limits the bytes of its requests, and of the answers that it has not
	// read. Users with their roles by the same group count as one user. All users without a role
	// count as one user, with fewer connections and calls.
	UserConnections int `json:"userConnections"`
	UserCalls       int `json:"userCalls"`
	UserBytes       int `json:"userBytes"`
	// PluginDevices is how many devices a resource of a device plugin may have, and
	// PluginResources how many such resources there may be.
	PluginDevices   int `json:"pluginDevices"`
	PluginResources int `json:"pluginResources"`
	// PodResourcesPerSecond and PodResourcesBurst are the kubelet's rate limit
	// for podresources.
	PodResourcesPerSecond float64 `json:"podResourcesPerSecond"`
	PodResourcesBurst     int     `json:"podResourcesBurst"`
	// PodResourcesWait is how long after a start a reader of the allocatable resources waits for
	// the earlier plugins; 0 waits for none.
	PodResourcesWait metav1.Duration `json:"podResourcesWait"`
	// WatchEvents is how many events are kept for readers of Watch that come back;
	// at most twice as many.
	WatchEvents int `json:"watchEvents"`
}

// History limits what berthd remembers of calls that changed something or were refused.
type History struct {
	// Entries is how many are kept; 0 keeps none.
	Entries int `json:"entries"`
	// Bytes is how large they may be together.
	Bytes int `json:"bytes"`
}

// Hotplug configures what happens when CPUs, memory, huge pages and NUMA nodes come and go while
// berthd runs.
type Hotplug struct {
	// Poll is how often the machine is compared. Events of the kernel cause a comparison at once.
	Poll metav1.Duration `json:"poll"`
	// Debounce is how long something new must stay before it is used. What is gone counts at once.
	Debounce metav1.Duration `json:"debounce"`
	// ReservedCPUs is what becomes of reserved CPUs that follow from an amount: keep or move.
	ReservedCPUs string `json:"reservedCPUs"`
	// OnLost is what becomes of a container whose exclusive CPUs or pinned memory are gone: report or replace.
	OnLost string `json:"onLost"`
}

// The reserved CPUs on a changed machine.
const (
	// ReservedKeep leaves them as they are until the next boot, those that are offline too.
	ReservedKeep = "keep"
	// ReservedMove takes them from the CPUs that are online, as a start on this machine does.
	ReservedMove = "move"
)

// Containers whose exclusive CPUs or pinned memory are gone.
const (
	// LostReport only reports them. They run on their other CPUs, or on the shared ones.
	LostReport = "report"
	// LostReplace also gives them other CPUs and memory, if some are free.
	LostReplace = "replace"
)

// KeptReserved returns the reserved CPUs that stay reserved on a changed machine; empty for those
// that follow from the configuration.
func (c Config) KeptReserved(reserved cpuset.Set) cpuset.Set {
	if c.Hotplug.ReservedCPUs == ReservedMove {
		return cpuset.Set{}
	}
	return reserved
}

// Moves configures moves of running containers to other NUMA nodes.
type Moves struct {
	// BytesPerSecond is how much memory moves in a second, on average; 0 is no limit.
	BytesPerSecond uint64 `json:"bytesPerSecond"`
	// HugePages lets berthd move the huge pages of running containers. It then has a second process, which reads
	// where the huge pages of other processes are.
	HugePages bool `json:"hugePages"`
}

// Features switches what the kubelet has behind feature gates of the same names.
type Features struct {
	PodLevelResources        bool `json:"podLevelResources"`
	PodLevelResourceManagers bool `json:"podLevelResourceManagers"`
	// CPUAlphaOptions and CPUBetaOptions allow CPU policy options of that level.
	CPUAlphaOptions bool `json:"cpuManagerPolicyAlphaOptions"`
	CPUBetaOptions  bool `json:"cpuManagerPolicyBetaOptions"`
	// ExclusiveCPUResize and ExclusiveMemoryResize let a resize in place change the exclusive CPUs
	// and the pinned memory of a container.
	ExclusiveCPUResize    bool `json:"inPlacePodVerticalScalingExclusiveCPUs"`
	ExclusiveMemoryResize bool `json:"inPlacePodVerticalScalingExclusiveMemory"`
	// AsKubelet decides exactly as the kubelet does, also where berth's decision is better.
	AsKubelet bool `json:"asKubelet,omitempty"`
}

// Privileges are dropped at the start if the kernel supports it, so that an exploited berthd
// cannot use them.
type Privileges struct {
	// DropCapabilities leaves berthd the capabilities that this configuration needs.
	DropCapabilities bool `json:"dropCapabilities"`
	// Landlock leaves berthd the files and ports that it needs.
	Landlock bool `json:"landlock"`
	// Seccomp leaves berthd the system calls that it makes.
	Seccomp bool `json:"seccomp"`
}

// Default returns the configuration that no source has touched: the kubelet's
// defaults where it has the setting.
func Default() Config {
	d := func(d time.Duration) metav1.Duration { return metav1.Duration{Duration: d} }
	return Config{
		APIVersion: APIVersion, Kind: Kind,
		Log: Log{Level: "info", Format: "text"}, KubeletMetrics: true,
		Cgroups: Cgroups{
			Tree: TreeKernel, Driver: string(cgroup.Cgroupfs), Mount: "/sys/fs/cgroup", Root: "/", PerQOS: true,
			ReconcilePeriod: d(10 * time.Second), DriftPolicy: DriftRepair,
			CPUCFSQuota: true, CPUCFSPeriod: d(100 * time.Millisecond),
			PodPIDsLimit: -1, MemoryQoS: true,
		},
		Node: Node{
			Enforce: []string{node.EnforcePods}, MaxPods: 110, NodeFit: true,
			LocalStorage: true, FailSwapOn: true, KernelTunables: TunablesWarn, OOMScoreAdj: -999,
		},
		CPU:      CPU{Policy: "none"},
		Memory:   Memory{Policy: memory.PolicyNone, CheckFreeHugePages: PagesIgnore},
		Topology: Topology{Policy: topology.None, Scope: "container", Planning: topology.ByPod},
		Providers: Providers{
			Order:           slices.Clone(hint.DefaultOrder),
			AllocateTimeout: d(30 * time.Second),
			PreStartTimeout: d(30 * time.Second),
			CallTimeout:     d(10 * time.Second),

			PluginInfoTimeout: d(time.Second),
			External:          External{Deadline: d(2 * time.Second), Connect: d(10 * time.Second), Lease: d(time.Minute)},
		},
		Devices:  Devices{Unknown: UnknownDefer, RegistrationGrace: d(time.Minute), ForgetAfter: d(5 * time.Minute)},
		Verdicts: Verdicts{Deferred: true},
		Limits: Limits{
			MessageBytes: 4 << 20, MessageElements: 20_000, Containers: 1000, Call: d(2 * time.Minute),
			UserConnections: 64, UserCalls: 256, UserBytes: 8 << 20,
			PluginDevices: 1 << 17, PluginResources: 256,
			PodResourcesPerSecond: 100, PodResourcesBurst: 10, WatchEvents: 4096, PodResourcesWait: d(15 * time.Second),
		},
		History:    History{Entries: history.DefaultEntries, Bytes: history.DefaultBytes},
		Hotplug:    Hotplug{Poll: d(10 * time.Second), Debounce: d(5 * time.Second), ReservedCPUs: ReservedKeep, OnLost: LostReport},
		Features:   Features{PodLevelResources: true, CPUBetaOptions: true, ExclusiveCPUResize: true, ExclusiveMemoryResize: true},
		Privileges: Privileges{DropCapabilities: true, Landlock: true, Seccomp: true},
	}
}

// The kinds of cgroup tree.
const (
	TreeKernel = "kernel"
	TreeMemory = "memory"
)

// KernelCgroups reports whether cgroups are the kernel's.
func (c Config) KernelCgroups() bool { return c.Cgroups.Tree != TreeMemory }

// What happens to values that another program has changed.
const (
	DriftRepair = "repair"
	DriftReport = "report"
)

// Dump returns the configuration as a file.
func (c Config) Dump() ([]byte, error) {
	b, err := yaml.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("print the configuration: %w", err)
	}
	return b, nil
}

// Digest identifies the part of the configuration that decisions depend on. A setting with its default does not count, so a
// release that adds settings does not change the digest of a configuration.
func (c Config) Digest() (string, error) {
	own, err := c.decisiveChanges()
	if err != nil {
		return "", err
	}
	b, err := json.Marshal(own)
	if err != nil {
		return "", fmt.Errorf("digest the configuration: %w", err)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), nil
}

// decisiveChanges returns what decisions depend on, without the defaults.
func (c Config) decisiveChanges() (settings map[string]any, err error) {
	own, err := c.decisive()
	if err != nil {
		return nil, err
	}
	defaults, err := Default().decisive()
	if err != nil {
		return nil, err
	}
	return withoutDefaults(own, defaults), nil
}

// decisive returns what decisions depend on, as JSON has it. Settings has the same names, so none of it may be secret.
func (c Config) decisive() (settings map[string]any, err error) {
	b, err := json.Marshal(struct {
		CPU       CPU
		Memory    Memory
		Topology  Topology
		Reserved  Reserved
		Providers []string
		Features  Features
		DRA       DRA
	}{c.CPU, c.Memory, c.Topology, c.Reserved, c.Providers.Order, c.Features, c.DRA})
	if err == nil {
		d := json.NewDecoder(bytes.NewReader(b))
		d.UseNumber()
		err = d.Decode(&settings)
	}
	if err != nil {
		return nil, fmt.Errorf("digest the configuration: %w", err)
	}
	return settings, nil
}

// withoutDefaults returns the settings that differ from the defaults. What only the defaults have is null.
func withoutDefaults(settings, defaults map[string]any) map[string]any {
	out := map[string]any{}
	for name, value := range settings {
		group, isGroup := value.(map[string]any)
		byDefault, alsoGroup := defaults[name].(map[string]any)
		switch {
		case isGroup && (alsoGroup || defaults[name] == nil):
			if differ := withoutDefaults(group, byDefault); len(differ) > 0 {
				out[name] = differ
			}
		case !reflect.DeepEqual(value, defaults[name]):
			out[name] = value
		}
	}
	for name := range defaults {
		if _, ok := settings[name]; !ok {
			out[name] = nil
		}
	}
	return out
}
