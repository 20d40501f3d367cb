package container

import (
	"context"
	"syscall"
	"time"
)

// Runtime creates and ends containers. Errors are of the classes of managers/errdefs: NotFound
// for an unknown id, Invalid for a spec that can never work. All methods may be called from
// several goroutines, for different pods.
type Runtime interface {
	// Open creates the shared resources of a pod's containers. For an open pod it creates missing
	// ones.
	Open(ctx context.Context, p Pod) error
	// Close removes what Open made. The pod has no containers any more.
	Close(ctx context.Context, uid string) error
	// Opened lists the uids of the pods of which Close has something to remove.
	Opened(ctx context.Context) ([]string, error)
	// Create creates a container and its process, which waits for Start. An existing container of
	// the same id does not change.
	Create(ctx context.Context, s Spec) error
	// Start starts a created container. It does nothing if the container runs already.
	Start(ctx context.Context, id string) error
	// Signal sends a signal to a container's first process; to one that has exited
	// it does nothing.
	Signal(ctx context.Context, id string, s syscall.Signal) error
	// Remove kills a container, if it is alive, and deletes it. Removing an unknown one succeeds.
	Remove(ctx context.Context, id string) error
	// List lists the containers of a pod; of all pods if the uid is empty.
	List(ctx context.Context, uid string) ([]Status, error)
}

// Pod holds what the containers of a pod share.
type Pod struct {
	UID, Namespace, Name string
	// Hostname is the pod's own host name; unused with HostNetwork.
	Hostname string
	HostNamespaces
	// CgroupParent is the pod's cgroup as Allocate names it.
	CgroupParent string
	// SandboxCPUs are the CPUs of the sandbox's process, if the runtime has one; in the kernel's
	// list format, empty for all.
	SandboxCPUs string
	// LogDir is the folder that holds the logs of all containers of the pod.
	LogDir string
	// Groups and StrictGroups are the settings of its containers.
	Groups       []int64
	StrictGroups bool
	// Sysctls are parameters of the kernel, in the namespaces of the pod.
	Sysctls map[string]string
	// Privileged means that at least one of its containers is privileged.
	Privileged bool
}

// Spec is a container.
type Spec struct {
	// ID is the container's: letters, digits, "-", "_" and ".". A runtime that assigns ids itself
	// ignores it. The id in List is the valid one.
	ID string
	// PodUID, Name and Attempt identify the container. Pause is stored for the caller.
	PodUID, Name string
	Attempt      int
	Pause        time.Duration

	// Image is the root file system: see package image.
	Image string
	// Pull is when a runtime pulls the image, if it can.
	Pull Pull
	// Command and Args replace the image's entry point and its arguments: without
	// a command the image's holds, and its arguments unless there are any here.
	Command, Args []string
	// Env comes after the image's variables, and a later variable of a name wins.
	Env []Variable
	// Dir is the working directory; empty for the image's.
	Dir string

	Security
	HostNamespaces // of the pod

	Mounts  []Mount
	Devices []Device
	// CDIDevices are device names for a runtime that supports CDI.
	CDIDevices  []string
	Annotations map[string]string

	Cgroup
	// LogPath is the file of the output, in CRI's format. No link is followed in its path below
	// LogRoot. An empty LogRoot means the file's own directory.
	LogRoot, LogPath string
}

// HostNamespaces leave a pod in the machine's namespaces.
type HostNamespaces struct {
	// Without HostNetwork a pod has a loopback device and nothing else.
	HostNetwork, HostPID, HostIPC bool
}

// Security is as whom a container runs, and what it may do.
type Security struct {
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
}

// Cgroup is the container's cgroup with its values, and what its process has before the start.
type Cgroup struct {
	// CgroupPath is the container's cgroup below the mount point. Berthd sets its values before
	// the start. It is empty for a runtime that creates the cgroup itself, with the values in
	// Resources.
	CgroupPath, CgroupParent string
	Resources                Resources
	// StartCPUs are lists of CPUs in the kernel's format. Until Start the container's process
	// runs on the first list that the pod's cgroup allows. The container's own CPUs may belong to
	// another container before berthd is called for the start. Without a list the process runs on
	// all CPUs. A runtime that creates the cgroup ignores StartCPUs.
	StartCPUs []string
	// OOMScoreAdj is the score for the out-of-memory killer, -1000 to 1000.
	OOMScoreAdj int
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

// Features lists what only some runtimes, or machines, can enforce.
type Features struct{ AppArmor, SELinux bool }

// Undefaulted are capabilities that no container has unless it requests them: device
// files come from berthd, and raw sockets can forge what others send.
var Undefaulted = []string{"MKNOD", "NET_RAW"}

// Pull tells when an image is pulled, in Kubernetes' words.
type Pull string

// When an image is fetched; empty means PullIfNotPresent.
const (
	PullAlways       Pull = "Always"
	PullIfNotPresent Pull = "IfNotPresent"
	PullNever        Pull = "Never"
)

// Resources are the values of a container's cgroup from Allocate; 0 and empty if not set, -1 for
// no limit.
type Resources struct {
	// CPUs and Mems are in the kernel's list format.
	CPUs, Mems                         string
	CPUShares, CPUQuotaUS, CPUPeriodUS int64
	MemoryBytes, MemorySwapBytes       int64
	HugePages                          []HugePages
	Unified                            map[string]string
}

// HugePages is a limit for pages of one size, as the kernel names it: "2MB".
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

// Phase tells how far a container is.
type Phase string

// The phases.
const (
	Created Phase = "created"
	Running Phase = "running"
	Exited  Phase = "exited"
)

// Reasons of an end that the exit code does not show.
const (
	OOMKilled = "OOMKilled"
	// Lost is the reason of a container whose end was not observed.
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
