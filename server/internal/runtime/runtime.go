// Package runtime says what berthd knows of containers from the machine's container runtime. Package criclient calls the runtime: who
// only needs the words is not linked with its protocol.
package runtime

import (
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/ledger"
)

// Phase tells how far a container is.
type Phase string

const (
	// Created containers have no process yet.
	Created Phase = "created"
	// Running containers have a process. Containers of an unknown state count as running, for
	// example after the runtime was killed, because they may have one.
	Running Phase = "running"
	// Exited containers have none any more, and will not get another.
	Exited Phase = "exited"
)

// Container is a container as the runtime has it.
type Container struct {
	ID string
	// Owner is the pod and container of its labels.
	Owner   ledger.Owner
	Attempt uint32
	Phase   Phase
	// Cgroup is its cgroup; nil for an exited container, and if the runtime does not report it.
	Cgroup cgroup.Name
}

// Sandbox is the sandbox of a pod as the runtime has it.
type Sandbox struct {
	ID, Pod string
	// Ready means that containers can start in it.
	Ready bool
}

// Event is a change of a container or of a sandbox. It has no details; List returns the new
// state.
type Event struct {
	// ID is the container's or the sandbox's id.
	ID string
	// Pod is the uid of the pod; empty if the runtime does not report it.
	Pod string
}
