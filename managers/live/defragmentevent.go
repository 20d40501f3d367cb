package live

import "time"

// DefragmentEvent is an event of a defragmentation; one field is set.
type DefragmentEvent struct {
	Plan     *Defragmentation
	Progress *MoveProgress
	Moved    *PodMoved
	Result   *DefragmentResult
}

// MoveProgress counts the memory of a moving pod's processes on the NUMA nodes that it will have.
type MoveProgress struct {
	UID                    string
	ArrivedBytes, AllBytes uint64
}

// PodMoved tells what a move has cost a pod.
type PodMoved struct {
	UID           string
	Took          time.Duration
	Before, After PodUse
}

// PodUse counts what the containers of a pod have used, as far as it is known.
type PodUse struct {
	// NodeBytes is the memory of processes by NUMA node.
	NodeBytes map[int]uint64
	// Throttled is how long quotas stopped them; CPUPressure and MemoryPressure are how long they waited
	// for a CPU and for memory. nil where the kernel does not count it.
	Throttled, CPUPressure, MemoryPressure *time.Duration
}

// DefragmentResult is the end of a defragmentation.
type DefragmentResult struct {
	// Fits is whether the pod fits now; Why is the reason if not.
	Fits  bool
	Moved int
	Why   string
}
