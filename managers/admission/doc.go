// Package admission decides about pods. A pod is admitted as a whole or not at all.
//
// Words:
//
//   - verdict: the result of an admission. A rejection is a verdict, not an error.
//   - admission lock: held while a plan is confirmed, and during every commit.
//   - basis: a view with the managers that decide on it.
//   - plan: the claims that the providers would make, on a draft.
//   - remote call: a call to another process: a device plugin, an external provider, a
//     container runtime.
//   - reservation: the claims of a confirmed plan, until they are committed or released.
//     Reservations are only in memory.
//   - ending: a pod that is being removed. It keeps its claims until its last process has
//     exited.
//   - prepare: get the agreement of plugins and providers, and create the cgroups, for a
//     reserved plan before its commit.
//   - place: the cgroup of a pod or container; CgroupManager creates and removes it.
//   - uncertain state: the ledger may lack running pods, for example after a damaged ledger
//     was set aside. Nothing exclusive is allocated until the agent has listed the running
//     pods.
//   - unknown living pod: a running pod without a ledger record. No other pod gets its known
//     claims. It is admitted with what it has, and never planned.
//   - claim record: a copy of a pod's claims, written with the pod's cgroup before the
//     commit.
//   - running allocations: the allocations of a running pod's containers, as stated by the caller.
//   - failure point: where a plan failed. The providers are called there for the shortage.
//   - suggestion: one change with which a rejected pod would fit. Trials on the rejected
//     view find it. It is suggested only if such a trial admits the pod.
//
// An admission has these steps:
//
//  1. Look the pod up in the ledger.
//  2. Under the admission lock, plan on the ledger with all reservations: for each round get hints, merge, and plan; then validate.
//  3. If the plan needs a remote call, release the lock, complete the plan with its remote calls, and repeat it under the
//     lock with the recorded answers. A call is repeated only if its inputs have changed (the free devices offered, the
//     claims sent), at most three times. A dry run plans once with its remote calls, without the lock, and ends here.
//  4. Reserve the plan and release the lock. Prepare, and create the cgroup.
//  5. Take the lock, validate, commit, and answer.
//
// A plan and the managers that make it are of one view, the basis. If the policy or the machine
// has changed since a view was taken, no managers decide on it, and another view is taken.
//
// If the rules have changed before step 5, or an import has taken reserved resources, the
// providers release their reservations and the plan is repeated. After any failure, the
// prepared steps are undone and the reservation ends. A rejection is explained without a
// lock. The explanation's trials make no remote calls. The trace stores the suggestions.
//
// An error becomes a verdict only if it concerns the pod: a refusal, a value that the
// kernel does not accept, or a failure of a provider. A temporary failure of the node (no
// descriptors, a full disk, systemd unreachable) is an error of class Unavailable or
// Deadline, and the caller repeats the call.
//
// Order of operations:
//
//   - No operation waits for another pod's remote calls, cgroups or processes, except as
//     listed here.
//   - Operations on one pod wait for each other (the pod's lock), until their own deadline.
//   - Admissions that call the same plugin or provider during planning make these calls one
//     after another. A turn ends with the reservation, so each call offers what is free then.
//     An admission that calls two of them takes no turn.
//   - A pod that would fit without the reservations of other pods and without ending pods
//     waits until one of them ends, and is planned again. At its deadline it is deferred; the
//     verdict names the blocking pods.
//   - Each user has a queue for the admission lock. Root has every second turn, other users
//     share the rest. So at most one call of another user goes before a call of root. A user
//     may have 64 calls that have not begun; the next one fails with class Exhausted.
//   - Otherwise plans are confirmed in the order in which they get the lock. A pod that waits
//     for a plugin or another pod is overtaken by pods that need neither; their resources
//     were free for both. The wait ends with the pod's deadline, and the answer names the
//     reason.
//   - Adopt waits for the operations on all of its pods.
//   - Resize, Reconfigure, Adopt, Remove and Sync count reservations as allocated and do not
//     wait for them. Sync removes pods concurrently. Each removal waits for the operation on
//     its pod; if the pod is not in the ledger, it waits a second at most, and then counts as
//     not removed.
//
// Invariants:
//
//   - Under the admission lock no remote call is made, and no cgroup is created or removed.
//   - Reserved resources are given to no other pod.
//   - An admission makes at most one commit.
//   - A pod's cgroup exists before its commit; its processes have ended before its claims are
//     freed.
//   - Operations on one pod never overlap.
//
// What a loop skips is not done. These loops go on after a pod that is busy or fails; the
// result says so, and what depends on completeness waits:
//
//	loop                          skips                     result                        waits
//	Sync, pods of the ledger      a removal that fails      an error about the pod        the pod keeps its claims
//	Sync, unknown pods to remove  busy, or a failure        Unavailable, or the error     noted, uncertain, Synced
//	Sync, unknown pods that run   busy, not being admitted  Unavailable                   noted if older, Synced
//	Sync, a list of cgroups       all, if the list fails    the error                     noted, uncertain, Synced
//	ReconcileBindings             new ids of an old list    none: the next list has them  nothing
//
// Their tests are TestSyncGoesOn; TestSyncBesideARemoval and TestSyncForgetsTheRemoved;
// TestSyncOfABusyPod and TestSyncBesideAnAdmission; TestSyncWithoutTheTree and
// TestSyncWithoutASecondLook; TestReconcileBindingsOfYesterday.
//
// The package has no clock and no goroutines, and does no I/O; its ports provide them.
//
// Other modules may import this package, and every release may change it.
package admission
