package cpu

import (
	"fmt"

	"github.com/berthd/berth/managers/errdefs"
)

// ShortageError means that a request needs more CPUs than are free. Available
// counts the CPUs of the pool in which the choice failed.
type ShortageError struct {
	Requested, Available int
}

// Error words it as the kubelet does; users search for that text.
func (e *ShortageError) Error() string {
	return fmt.Sprintf("not enough cpus available to satisfy request: requested=%d, available=%d", e.Requested, e.Available)
}

// SMTAlignmentError means that the option full-pcpus-only (KEP-2625) cannot give
// whole cores: because the request is not a multiple of a core's threads, or,
// with NotEnough, because too few whole cores are free.
type SMTAlignmentError struct {
	Requested, PerCore int
	// NotEnough distinguishes the two; AvailablePhysical is set with it.
	NotEnough         bool
	AvailablePhysical int
}

// Error words it as the kubelet does; users search for that text.
func (e *SMTAlignmentError) Error() string {
	if e.NotEnough {
		return fmt.Sprintf("SMT Alignment Error: not enough free physical CPUs: available physical CPUs = %d, requested CPUs = %d, CPUs per core = %d",
			e.AvailablePhysical, e.Requested, e.PerCore)
	}
	return fmt.Sprintf("SMT Alignment Error: requested %d cpus not multiple cpus per core = %d", e.Requested, e.PerCore)
}

// EmptyPodPoolError means that the containers of a pod with pod-level resources
// that have CPUs of their own use up the pod's, and leave none to a container
// that shares them (KEP-5526). Init means that it is an init container.
type EmptyPodPoolError struct {
	Init bool
}

// Error words it as the kubelet does.
func (e *EmptyPodPoolError) Error() string {
	if e.Init {
		return "pod rejected, pod has shared init containers but no cpus available for them"
	}
	return "pod rejected, sum of exclusive container cpu requests equals pod budget, leaving no cpus for shared containers"
}

// EmptyPoolError means that a plan leaves no CPU in the node's shared pool, while
// a container (of the same pod or another) runs there.
type EmptyPoolError struct {
	Pod, Container string
}

func (e *EmptyPoolError) Error() string {
	return fmt.Sprintf("the shared pool would be empty, and container %q of pod %s runs there", e.Container, e.Pod)
}

func shortage(requested, available int) error {
	return refuse("", &ShortageError{Requested: requested, Available: available})
}

// refuse makes a refusal of this provider. Without a reason it counts as an
// unexpected admission error, as in the kubelet.
func refuse(reason errdefs.Reason, err error) error {
	e := errdefs.Refuse(reason, "%w", err)
	e.Provider, e.Resource = Name, Resource
	return e
}
