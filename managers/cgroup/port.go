package cgroup

import "context"

// Tree is a tree of cgroups: the kernel's through a driver, or one in memory.
//
// The life of a cgroup, seen from here: Ensure creates it (and later changes
// it), Move puts processes in, Observe and Procs look at it, Remove ends it with
// everything below. Calls on different cgroups may run at the same time; calls
// on one and the same cgroup may too, but which one comes last is then open.
//
// A name that no driver could write is an error of class Invalid everywhere. An
// error of the kernel names the file, the value written and the kernel's error.
// It is of class Precondition where the kernel refuses the value as such, of class
// Unavailable where the same call may succeed later, or of the class that fits
// better. Package cgrouptest holds the suite that every implementation passes.
type Tree interface {
	// Observe reads the cgroup and depth levels below it; a
	// negative depth reads the whole subtree. An absent cgroup is no error: the
	// snapshot then holds one entry whose State is Absent. Cgroups that vanish
	// during the walk are left out.
	Observe(ctx context.Context, name Name, depth int) (*Snapshot, error)
	// Ensure creates the cgroup, with missing parents, if it is not there or
	// lacks a controller, and writes those values that are present. When a
	// cgroup that this call created cannot get its values, it is removed again,
	// so that a failure leaves no half-made cgroup behind. A parent created on
	// the way stays.
	//
	// A memory limit that would go down below what the cgroup uses is an error that
	// wraps ErrBelowUse, of class Precondition, and nothing is written.
	//
	// CPUs alone may be written although the cgroup lacks other values: they decide when
	// another container may start.
	//
	// created is true if the cgroup existed nowhere before and this call made it
	// in every hierarchy. The result of mkdir or systemd decides, and not
	// a check before. Of concurrent calls at most one creates. It is false
	// after an error.
	Ensure(ctx context.Context, node Node) (created bool, err error)
	// Move puts processes into an existing cgroup. A process that has gone is
	// an error of class NotFound; a cgroup that is absent is one too. On cgroup
	// v2 a cgroup that hands controllers to its children takes no processes:
	// class Precondition.
	Move(ctx context.Context, name Name, pids ...int) error
	// Frozen gives the cgroup whose freezer stops what is in a cgroup: the cgroup
	// itself or the nearest one above it; nil if none does, and for an absent one.
	Frozen(ctx context.Context, name Name) (by Name, err error)
	// Procs lists the processes of the cgroup and of all below it, ascending,
	// each once. An absent cgroup has none.
	Procs(ctx context.Context, name Name) ([]int, error)
	// Remove kills every process in the cgroup and below it, also those that
	// are forked meanwhile and those that are frozen in there, waits until they
	// are gone, and removes the cgroup with its children from every hierarchy. An
	// absent cgroup is no error. One that is cut off may leave cgroups frozen and
	// with a limit of no process; Diff lifts both from what lives. It
	// stops when ctx ends, or after the driver's own deadline, with an error of
	// class Deadline that lists processes which are left.
	Remove(ctx context.Context, name Name) error
}

// Version is the kernel's cgroup interface.
type Version int

const (
	// V1 has a hierarchy for each controller. The hybrid set-up, with an
	// additional unified hierarchy, counts as V1.
	V1 Version = 1
	// V2 has one unified hierarchy.
	V2 Version = 2
)

// Facts are the properties of a tree on which desired values and comparisons depend.
type Facts struct {
	Version Version
	// Driver writes the names.
	Driver Driver
	// PageBytes is the kernel's page size; memory limits are kept in whole pages.
	PageBytes int64
	// HugePageSizes are the page sizes, in bytes and ascending, for which the
	// tree keeps limits. None without the hugetlb controller.
	HugePageSizes []int64
	// Controllers are those available to the tree, sorted.
	Controllers []string
	// Subsystems are all that is mounted, by name: controllers that the tree has no use
	// for too, and on v1 hierarchies without controllers. None where the tree is not the
	// kernel's.
	Subsystems []Subsystem
	// SwapLimits is true if swap can be limited.
	SwapLimits bool
	// MovesMemory is true if the memory of processes moves with the memory nodes of their
	// cgroup.
	MovesMemory bool
}

// Subsystem is a controller, or a hierarchy without one, and where it is mounted.
type Subsystem struct {
	Name, MountPoint string
	// Hierarchy is the kernel's number of it, 0 for the one of v2. Controllers with the
	// same number are mounted together.
	Hierarchy int
	Version   Version
}

// State is whether a cgroup exists and is usable.
type State int

const (
	// Absent cgroups exist in no hierarchy.
	Absent State = iota
	// Invalid cgroups exist but lack a controller or, on v1, a hierarchy. Ensure
	// repairs them.
	Invalid
	// Valid cgroups have everything that berth needs.
	Valid
)

var stateNames = [...]string{Absent: "absent", Invalid: "invalid", Valid: "valid"}

// String gives absent, invalid or valid.
func (s State) String() string {
	if s < 0 || int(s) >= len(stateNames) {
		return "unknown"
	}
	return stateNames[s]
}

// Observed holds what was seen of one cgroup.
type Observed struct {
	Name  Name
	State State
	// Reason is what an Invalid cgroup lacks.
	Reason string
	// Values as read back. A value that could not be read is absent.
	Values Values
	// Effective is what the kernel really grants where that may be less than
	// what is set.
	Effective Cpuset
	// MemoryUsageBytes is what the cgroup uses now, 0 where it is not accounted.
	MemoryUsageBytes int64
	// Populated is true if a process runs in the cgroup itself.
	Populated bool
}

// Snapshot holds what was seen of a subtree.
type Snapshot struct {
	Facts Facts
	// Nodes, parents before children, siblings in order of their names.
	Nodes []Observed
}

// Find returns what was seen of a cgroup; State is Absent if nothing was.
func (s *Snapshot) Find(name Name) Observed {
	for i := range s.Nodes {
		if s.Nodes[i].Name.Equal(name) {
			return s.Nodes[i]
		}
	}
	return Observed{Name: name}
}

// Node is a cgroup with its desired values.
type Node struct {
	Name   Name
	Values Values
	// Lives means that the processes there must run: Diff thaws the cgroup itself, and
	// removes a limit of no process. An interrupted removal may have left both.
	Lives bool
}
