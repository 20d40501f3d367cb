// Package ledger stores berth's state: the admitted pods, and the CPUs, memory, devices and
// external resources of each container. All other data (free CPUs, cgroup values,
// PodResources answers) is computed from it.
//
// Words:
//
//   - claim: one allocation; immutable after its commit.
//   - owner: the container (or the whole pod) that has a claim.
//   - record: one admitted pod, its claims and the trace of its admission.
//   - view: an immutable snapshot at a generation; cheap to create.
//   - draft: a view with planned changes; discarded or committed as a whole.
//   - journal: the storage of committed changes, one batch for each generation.
//   - unknown living pod: a running pod whose record is lost.
//   - rules: properties of the machine and the configuration that claims are checked against.
//   - history: the calls that changed the ledger or were refused, each with the earlier values
//     of what it changed. It leads back from the current view to earlier ones. It is bounded
//     and is not part of the state.
//   - finding: a problem that Check reports about a view.
//   - epoch: one lifetime of the journal's file, identified by a random id. Generations are
//     comparable only within one epoch.
//   - whole: a pod is whole if its record and all its claims are as they were written. The
//     record has a checksum over the claims, so a missing or older claim is detected. A pod
//     that is not whole is lost.
//   - to salvage: to build a sound state from a damaged one.
//
// Invariants: exclusive CPU sets of different pods are disjoint; inside a pod they overlap
// only if an init container passes its CPUs on; memory blocks fit their nodes; a device has
// one owner; the pod of every claim and of every container id is known; a commit raises the
// generation by exactly one, and is durable before it is visible. The package does no I/O;
// the Journal does.
//
// Damage has local effects. Every stored value has its own checksum:
//
//	damaged or missing              consequence
//	a trace                         the pod loses its explanation
//	a pod's record, or a claim      the pod is lost; Report.Lost has its readable parts
//	a binding, lease, resource or   it is dropped
//	provider's registration
//	a note on an unknown living pod the state is uncertain
//	meta: generation                the highest in any record; new revisions are above all old ones
//	meta: epoch                     new revisions are above all old ones
//	meta: boot-id, machine,         what it says of the last commit is not known (metaFacts); no damage of the
//	topology, config, memory,       state, so the ledger continues in its epoch, and the next commit writes
//	reservation                     it again. The machine's fingerprint follows from the topology
//	meta: an absent machine or      the same, but in a new epoch: what may be absent may have gone with it
//	config
//	meta: override                  the configuration's policy is used
//	meta: uncertain                 the state is uncertain
//	meta: schema                    the current version is assumed
//	an entry of the history          older states cannot be computed; nothing else
//	the count of pods is wrong      the state is uncertain
//	two pods hold the same thing    the pod with the older last change is lost: it must have been
//	                                removed before the other one was admitted
//
// Open refuses a damaged state and reports the damage. Salvage builds a sound state in a new
// epoch; it is uncertain if a pod is lost or may be missing.
//
// Other modules may import this package, and every release may change it.
package ledger
