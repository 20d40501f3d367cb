package memory

import (
	"fmt"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
)

// Problem tells why no node set was found. Its text is the kubelet's; users search
// for it.
type Problem string

const (
	// NoDefault: the affinity has no nodes, and no node set fits.
	NoDefault Problem = "failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
	// NoPreferredDefault: the affinity has no nodes, a preferred set was requested, and
	// only others fit.
	NoPreferredDefault Problem = "failed to find the default preferred hint"
	// NoExtension: the decided nodes do not have enough, and no wider set does.
	NoExtension Problem = "failed to find NUMA nodes to extend the current topology hint"
	// NoPreferredExtension: a preferred set was requested, and the wider sets that
	// have enough are not.
	NoPreferredExtension Problem = "failed to find the extended preferred hint"
	// GroupTaken: the decided nodes have enough, but some are used alone or in
	// another group.
	GroupTaken Problem = "preferred hint violates NUMA node allocation"
)

// prefix begins the messages of the kubelet's memory manager.
const prefix = "[memorymanager] "

// PlacementError means that a request cannot be placed, with what was missing.
type PlacementError struct {
	Problem   Problem
	Shortages []ledger.Shortage
}

// Error words the problem as the kubelet does.
func (e *PlacementError) Error() string { return prefix + string(e.Problem) }

// UnknownPagesError means that no node of the machine has a page size.
type UnknownPagesError struct {
	Resource string
}

func (e *UnknownPagesError) Error() string {
	return prefix + "no NUMA node of this machine has " + e.Resource
}

// EmptyPodPoolError means that the containers of a pod with pod-level resources
// that have memory of their own use up the pod's, and leave none to a container
// that shares it (KEP-5526). Init means that it is an init container.
type EmptyPodPoolError struct {
	Resource string
	Init     bool
}

// Error words it as the kubelet does.
func (e *EmptyPodPoolError) Error() string {
	if e.Init {
		return fmt.Sprintf("pod rejected, pod has shared init containers but no %s available for them", e.Resource)
	}
	return fmt.Sprintf("pod rejected, sum of exclusive container %s requests equals pod budget, leaving no memory for shared containers",
		e.Resource)
}

// UncountedPagesError is the refusal of a pod with pod-level resources of which a
// container requests huge pages that the pod does not. The kubelet takes them from
// an amount of nothing (deviation N10).
type UncountedPagesError struct{ Container, Resource string }

func (e *UncountedPagesError) Error() string {
	return fmt.Sprintf("%scontainer %q requests %s, and the resources of its pod do not: add them to spec.resources.requests and limits",
		prefix, e.Container, e.Resource)
}

// refuse makes a refusal of this provider. Without a reason it counts as an
// unexpected admission error, as in the kubelet.
func refuse(reason errdefs.Reason, resource string, err error) error {
	e := errdefs.Refuse(reason, "%w", err)
	e.Provider, e.Resource = Name, resource
	return e
}
