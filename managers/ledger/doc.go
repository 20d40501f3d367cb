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
//
// Invariants: exclusive CPU sets of different pods are disjoint; inside a pod
// they overlap only where an init container hands its CPUs on; memory blocks fit
// their nodes; a device is in one place; every claim's and every container id's
// pod is known; a commit raises the generation by exactly one and is durable
// before it is visible. The package does no I/O of its own: a Journal does.
package ledger
