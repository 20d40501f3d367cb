package errdefs

// Reason is the short name that a rejected pod gets as its status reason. The kubelet's names are part of the
// contract: controllers, dashboards and tests match on it.
type Reason string

const (
	// TopologyAffinityError: the merged hints do not satisfy the topology policy.
	TopologyAffinityError Reason = "TopologyAffinityError"
	// SMTAlignmentError: the CPU option full-pcpus-only cannot give whole cores.
	SMTAlignmentError Reason = "SMTAlignmentError"
	// EmptyPodSharedPoolError: a pod with pod-level resources would leave nothing to its containers that share.
	EmptyPodSharedPoolError Reason = "EmptyPodSharedPoolError"
	// UnexpectedAdmissionError: any other error of an allocation.
	UnexpectedAdmissionError Reason = "UnexpectedAdmissionError"
	// OutOfCPU: the node's allocatable CPU is too small for the pod.
	OutOfCPU Reason = "OutOfcpu"
	// OutOfMemory: the node's allocatable memory is too small for the pod.
	OutOfMemory Reason = "OutOfmemory"
	// OutOfPods: the node runs as many pods as it may.
	OutOfPods Reason = "OutOfpods"
	// Infeasible: a pod that is here cannot be resized to the request on this node.
	Infeasible Reason = "Infeasible"
	// ResizeDeferred: a pod that is here may be resized to the request later.
	ResizeDeferred Reason = "Deferred"
	// DisruptionNotAllowed: a resize would disturb running containers more than its caller allows.
	DisruptionNotAllowed Reason = "DisruptionNotAllowed"
)

// OutOf gives the reason for a resource, named as in a pod, of which the node has too little: "OutOf" and the name.
func OutOf(resource string) Reason { return Reason("OutOf" + resource) }
