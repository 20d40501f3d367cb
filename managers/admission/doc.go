// Package admission turns a pod into claims: all of it or nothing of it.
//
// Words:
//
//   - verdict: the outcome of an admission; a rejection is one, not an error.
//   - admission lock: held while a plan is confirmed, and while anything is committed.
//   - plan: the claims that the providers would make, on a draft.
//   - remote call: a call that leaves the process: to a device plugin, to a provider
//     outside, to a container runtime.
//   - reservation: what a confirmed plan takes, until it is committed or given back.
//     It is in memory only.
//   - ending: a pod whose removal is under way. It holds what it has until its last
//     process has gone.
//   - prepare: making the outside (plugins, providers, cgroups) ready for a plan that
//     is reserved, before it is committed.
//   - place: a pod's or container's cgroup; Places makes and removes them.
//   - uncertain state: the ledger may not know every pod that lives here, as after a
//     damaged one was set aside; nothing exclusive is given out until the agent
//     has said which pods live.
//   - unknown living pod: one that lives here and is not in the ledger. Nobody else
//     gets what it holds as far as that is known; it is taken over as it runs, and
//     never planned.
//   - claim record: what a pod holds, written where the pod lives before the commit.
//   - holdings: what the containers of a running pod hold, by the caller's word.
//   - failure point: where a plan failed; what was missing there is asked of the
//     providers.
//   - suggestion: one change with which a rejected pod would fit. It is found by
//     what-ifs on the view that the pod was rejected on, and offered only if one
//     of them admitted the pod.
//
// The life of an admission: look whether the pod is known. Under the admission lock,
// on the ledger with all reservations on top of it, plan: for every step of the
// scope ask, merge, plan; validate. A plan that needs a remote call is interrupted:
// the lock is released, the plan is made to the end with its remote calls, and then
// again under the lock with the recorded answers. A call is repeated only if its
// inputs have changed (the free devices offered, the claims sent), at most three
// times. (A dry run plans once, without the lock, with its remote calls, and ends
// here.) Reserve, release the lock; prepare and make the cgroup; take the lock,
// validate, commit; answer. If the rules have changed meanwhile, or an import has
// taken what was reserved, the providers give up what they reserved and the plan is made
// again. If anything fails, what was prepared is undone and the reservation ends. A rejection is explained without any
// lock and without a remote call for what-ifs; the trace keeps the suggestions.
//
// An error is a verdict only if it says something about the pod: a refusal, a value
// that the kernel does not take, or what a provider could not do. A node that fails
// at the moment (no descriptors, a full disk, systemd away) gives an error of class
// Unavailable or Deadline, and the caller repeats the call.
//
// Who waits for whom:
//
//   - Nobody waits for a remote call, the making of a cgroup or the death of a
//     process that is another pod's, unless one of the next lines says so.
//   - Operations on one pod wait for each other (the pod's lock), within the deadline
//     of the one that waits.
//   - Admissions that call the same plugin or provider while they are planned make
//     these calls one after the other, in turns that end with the reservation: each
//     offers what is free then. Who calls two of them takes no turn.
//   - A pod that does not fit, but would fit without the reservations of others and
//     the pods that are ending, waits until one of them ends, and is planned again. At
//     its deadline it is deferred, and the pods that stood in its way are named.
//   - The calls of a user wait for the admission lock in a queue of their own. Root has
//     every second turn, other users share the rest: one call of somebody else goes
//     before a call of root's at most. A user has 64 calls in the queue at most that
//     have not begun; the next one is of class Exhausted.
//   - All else may be overtaken: plans are confirmed in the order in which they get
//     the lock. A pod that waits for a plugin or for another pod is overtaken by
//     pods that need neither; what they take was free for both. Starvation ends with
//     the deadline of the pod that waits, in an answer that says why.
//   - An import waits for the operations on all pods that its file names.
//   - Resize, Reconfigure, Import, Remove and Sync count reservations as taken and
//     wait for none. Sync removes pods side by side: only the removal of a pod waits
//     for an operation on that pod, and a pod that is not in the ledger is left alone
//     while there is one.
//
// Invariants: no remote call is made and no cgroup is made or removed under the
// admission lock; what is reserved is given to nobody else; the ledger changes by at
// most one commit per admission; a pod's place exists before its commit; a pod's
// processes are gone before its claims are free; operations on one pod never
// overlap. The package has no clock, no goroutine and does no I/O: all of that comes
// in through ports.
package admission
