package cgroup

import "context"

// RecordAttribute is the extended attribute of a pod's cgroup that holds the pod's
// claim record. An attribute of the user namespace needs no CAP_SYS_ADMIN; it lies on
// the pod's cgroup, above what a container is delegated.
const RecordAttribute = "user.berth.claims"

// Records keeps the claim record of a pod where the pod lives: on v1 as an attribute
// of its cgroup in the cpuset hierarchy (never in systemd's), on v2 in the one tree,
// and with simulated cgroups as a file. A record is removed with its cgroup.
//
// Names are those of pods' cgroups; one that no driver could write is an error of
// class Invalid. A tree without attributes is an error of class Unsupported.
type Records interface {
	// ReadRecord returns the record of a pod; nil if there is none, or no cgroup.
	// A record that a user other than root could have written is an error of class
	// PermissionDenied that names the owner.
	ReadRecord(ctx context.Context, name Name) ([]byte, error)
	// WriteRecord puts a record in the place of the one before, as a whole or not at
	// all; nil removes it, and what is not there is no error then. A cgroup that is
	// absent is an error of class NotFound.
	WriteRecord(ctx context.Context, name Name, record []byte) error
}

// NamedRecords are Records that are stored outside the cgroups, so that the cgroups of all classes with a uid share one.
type NamedRecords interface {
	// Names lists the records by the base names of pods' cgroups. It is needed if the cgroups
	// are not the kernel's and cannot be listed.
	Names() ([]string, error)
}
