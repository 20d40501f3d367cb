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
//   - unknown living pod: a running pod whose record is lost.
//   - rules: properties of the machine and the configuration that claims are checked against.
//   - state: everything that a view has, as plain data. A view is made of it.
//   - committer: what checks a commit and makes it durable, before it is visible.
//   - epoch: one lifetime of the journal's file, identified by a random id. Generations are
//     comparable only within one epoch.
//
// Invariants: exclusive CPU sets of different pods are disjoint; inside a pod they overlap
// only if an init container passes its CPUs on; memory blocks fit their nodes; a device has
// one owner; the pod of every claim and of every container id is known; a commit raises the
// generation by exactly one, and is durable before it is visible. The package does no I/O;
// its Committer does.
//
// Five packages are made on this one: check compares a view with the invariants, journal stores
// and reads commits, history leads back to earlier views, claimrecord keeps the claims of a pod
// at its cgroup, and kubelet reads the state files of a kubelet.
//
// Other modules may import this package, and every release may change it.
package ledger
