// Package ledger keeps berth's facts: which pod was admitted with what, and
// which CPUs, memory, devices or outside resources each of its containers owns.
// Everything else berth knows (free pools, cgroup values, PodResources answers)
// is computed from these facts, so it cannot disagree with them.
//
// Words:
//
//   - claim: one fact of ownership; immutable once committed.
//   - owner: the container (or the pod as a whole) that holds a claim.
//   - record: one admitted pod, its claims and the trace of its admission.
//   - view: a read-only snapshot at a generation; cheap to take, never changes.
//   - draft: a view plus planned changes; dropped or committed whole.
//   - journal: where committed changes are made durable, one batch a generation.
//   - unknown living pod: one that lives here although its record is lost.
//   - rules: machine and configuration facts that claims are checked against.
//   - finding: something Check has to say about a view.
//   - epoch: one life of the journal's file, named by a random id. Generations are
//     comparable within one epoch.
//   - whole: of a pod, that its record and every claim of it are what was written.
//     The record carries a sum of the claims, so that a claim that is missing, or of
//     another time, shows. A pod that is not whole is lost.
//   - to salvage: to make a sound state out of a damaged one.
//
// Invariants: exclusive CPU sets of different pods are disjoint; inside a pod
// they overlap only where an init container hands its CPUs on; memory blocks fit
// their nodes; a device is in one place; every claim's and every container id's
// pod is known; a commit raises the generation by exactly one and is durable
// before it is visible. The package does no I/O of its own: a Journal does.
//
// Damage hits what it hits. Every stored value has a checksum, so each is judged by
// itself:
//
//	damaged or missing              consequence
//	a trace                         the pod loses its explanation
//	a pod's record, or a claim      the pod is lost (Report.Lost), with what could be read of it
//	a binding, lease, resource or   it is gone
//	provider's registration
//	a note on an unknown living pod the state is uncertain
//	meta: generation                the highest that any record names; revisions begin anew, above
//	meta: epoch                     revisions begin anew, above
//	meta: boot-id, machine, config, not known, so no change is reported
//	memory
//	meta: override                  the configuration holds
//	meta: uncertain                 the state is uncertain
//	meta: schema                    today's version is assumed
//	the count of pods does not fit  the state is uncertain
//	two pods hold one thing         the one whose last change is older is lost: it must have gone
//	                                before the other one came
//
// Open refuses a damaged state and tells all this; Salvage makes a sound state of it,
// in a new epoch and uncertain if a pod is lost or may be missing.
package ledger
