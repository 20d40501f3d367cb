package container

import (
	"context"
	"syscall"
	"time"
)

// Runtime makes and ends containers. Errors are of the classes of managers/errdefs:
// NotFound for an id that is not known, Invalid for a spec that can never work.
// All methods may be called from several goroutines, for different pods.
type Runtime interface {
	// Open makes what the containers of a pod share; again for a pod that is open
	// it makes what is missing.
	Open(ctx context.Context, p Pod) error
	// Close removes what Open made. The pod has no containers any more.
	Close(ctx context.Context, uid string) error
	// Create makes a container and its process, which waits for Start. A container
	// of the same id that is there already is left as it is.
	Create(ctx context.Context, s Spec) error
	// Start lets a created container run. One that runs already is left alone.
	Start(ctx context.Context, id string) error
	// Signal sends a signal to a container's first process; to one that has exited
	// it does nothing.
	Signal(ctx context.Context, id string, s syscall.Signal) error
	// Remove ends a container, if it is alive, and forgets it. Removing one that
	// is not known succeeds.
	Remove(ctx context.Context, id string) error
	// List tells of all containers of a pod; of all pods if the uid is empty.
	List(ctx context.Context, uid string) ([]Status, error)
}

// Pod is what the containers of a pod share.
type Pod struct {
	UID, Namespace, Name string
	// Hostname is the pod's own host name; unused with HostNetwork.
	Hostname string
	// HostNetwork, HostPID and HostIPC leave the pod in the machine's namespace.
	// Without HostNetwork a pod has a loopback device and nothing else.
	HostNetwork, HostPID, HostIPC bool
	// CgroupParent is the pod's cgroup as Allocate names it.
	CgroupParent string
	// SandboxCPUs are those of a process that holds what the pod shares, where the runtime
	// has one; in the kernel's list format, empty for all.
	SandboxCPUs string
	// LogDir is the folder that holds the logs of all containers of the pod.
	LogDir string
	// Groups and StrictGroups are those of its containers.
	Groups       []int64
	StrictGroups bool
	// Sysctls are parameters of the kernel, in the namespaces of the pod.
	Sysctls map[string]string
	// Privileged says that one of its containers is.
	Privileged bool
}

// Spec is a container.
type Spec struct {
	// ID is the container's own: letters, digits, "-", "_" and ".". A runtime that
	// gives out ids by itself leaves it alone; what List tells is what counts.
	ID string
	// PodUID, Name and Attempt say whose container it is; Pause is kept for the
	// caller.
	PodUID, Name string
	Attempt      int
	Pause        time.Duration

	// Image is the root file system: see package image.
	Image string
	// Pull says when a runtime that can fetches the image.
	Pull Pull
	// Command and Args replace the image's entry point and its arguments: without
	// a command the image's holds, and its arguments unless there are any here.
	Command, Args []string
	// Env comes after the image's variables, and a later variable of a name wins.
	Env []Variable
	// Dir is the working directory; empty for the image's.
	Dir string

	// User and Group are nil for the image's.
	User, Group *int64
	// NonRoot is the manifest's field that forbids to run as user 0; empty if none does.
	NonRoot string
	// Groups come in addition to the user's own in the image, or with StrictGroups
	// in their place.
	Groups          []int64
	StrictGroups    bool
	Seccomp         Profile
	AppArmor        Profile
	SELinux         *SELinux
	Sysctls         map[string]string
	Privileged      bool
	ReadOnlyRoot    bool
	NoNewPrivileges bool
	// Add and Drop name capabilities without "CAP_"; "ALL" is all of them.
	Add, Drop []string
	// HostNetwork, HostPID and HostIPC are the pod's.
	HostNetwork, HostPID, HostIPC bool

	Mounts  []Mount
	Devices []Device
	// CDIDevices are device names for a runtime that knows CDI.
	CDIDevices  []string
	Annotations map[string]string

	// CgroupPath is the container's cgroup below the mount point, with the values
	// that berthd gave it or will give it before the start; empty where a runtime
	// makes the cgroup, which then gets the Resources.
	CgroupPath, CgroupParent string
	Resources                Resources
	// StartCPUs are lists of CPUs in the kernel's format. Until Start the container's
	// process runs on the first of them that the pod's cgroup allows: the container's own
	// CPUs may be another's before berthd is called for the start. Without any it runs on
	// all CPUs. Only for a runtime that does not make the cgroup.
	StartCPUs []string
	// OOMScoreAdj is the score for the out-of-memory killer, -1000 to 1000.
	OOMScoreAdj int
	// LogPath is the file to which the output goes, as CRI has it. No link is followed
	// in its path below LogRoot; empty for the file's own directory.
	LogRoot, LogPath string
}

// Profile confines a container.
type Profile struct {
	// Kind is empty for the default, which is RuntimeDefault for seccomp and the
	// runtime's own choice for AppArmor.
	Kind ProfileKind
	// Localhost is the file of a seccomp profile, or the name of an AppArmor profile.
	Localhost string
	// Field is where the manifest requests it.
	Field string
}

// ProfileKind is Kubernetes' word for where a profile comes from.
type ProfileKind string

// Where profiles come from.
const (
	RuntimeDefault ProfileKind = "RuntimeDefault"
	Unconfined     ProfileKind = "Unconfined"
	Localhost      ProfileKind = "Localhost"
)

// SELinux is a label for a container's processes.
type SELinux struct{ User, Role, Type, Level string }

// Features are what only some runtimes, or machines, can enforce.
type Features struct{ AppArmor, SELinux bool }

// Undefaulted are capabilities that no container has unless it requests them: device
// files come from berthd, and raw sockets can forge what others send.
var Undefaulted = []string{"MKNOD", "NET_RAW"}

// Pull says when an image is fetched, in Kubernetes' words.
type Pull string

// When an image is fetched; empty means PullIfNotPresent.
const (
	PullAlways       Pull = "Always"
	PullIfNotPresent Pull = "IfNotPresent"
	PullNever        Pull = "Never"
)

// Resources are the values of a container's cgroup as Allocate gives them; 0 and
// empty for what is not set, -1 for no limit.
type Resources struct {
	// CPUs and Mems are in the kernel's list format.
	CPUs, Mems                         string
	CPUShares, CPUQuotaUS, CPUPeriodUS int64
	MemoryBytes, MemorySwapBytes       int64
	HugePages                          []HugePages
	Unified                            map[string]string
}

// HugePages is a limit for pages of one size, as the kernel spells it: "2MB".
type HugePages struct {
	Size  string
	Bytes uint64
}

// Variable is an environment variable.
type Variable struct{ Name, Value string }

// Mount is a path of the machine that appears in the container.
type Mount struct {
	Path, HostPath string
	ReadOnly       bool
}

// Device is a device file of the machine that appears in the container.
type Device struct {
	Path, HostPath string
	// Permissions are letters of r, w and m.
	Permissions string
}

// Phase is how far a container is.
type Phase string

// The phases.
const (
	Created Phase = "created"
	Running Phase = "running"
	Exited  Phase = "exited"
)

// Why a container ended, where its exit code does not say it.
const (
	OOMKilled = "OOMKilled"
	// Lost is the end of a container whose end nobody saw.
	Lost = "ContainerLost"
)

// Status is a container as it is.
type Status struct {
	ID, PodUID, Name string
	Attempt          int
	Pause            time.Duration
	Phase            Phase
	// PID is the first process as the machine counts; 0 once it has exited, and
	// where the runtime places processes itself.
	PID int
	// Started is zero for a container that was never started, Finished until it
	// has exited.
	Created, Started, Finished time.Time
	// ExitCode is the program's own, or 128 plus the signal that ended it.
	ExitCode int
	// Reason is OOMKilled, Lost, or empty.
	Reason string
}
