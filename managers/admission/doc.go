// Package admission turns a pod into claims: all of it or nothing of it.
//
// Words:
//
//   - verdict: the outcome of an admission; a rejection is one, not an error.
//   - admission lock: one admission is planned at a time.
//   - plan: the claims that the providers would make, on a draft.
//   - prepare: making the outside (plugins, cgroups) ready for a plan, before
//     it is committed.
//   - place: a pod's or container's cgroup; Places makes and removes them.
//   - uncertain state: the ledger may not know every pod that lives here, as after a
//     damaged one was set aside; nothing exclusive is given out until the agent
//     has said which pods live.
//   - unknown living pod: one that lives here and is not in the ledger;
//     it is let live, and nothing exclusive is given to others until it is known.
//   - failure point: where a plan failed; what was missing there is asked of the providers.
//   - suggestion: one change with which a rejected pod would fit. It is found by
//     dry runs on the view that the pod was rejected on, and offered only if one
//     of them admitted the pod.
//
// The life of an admission: look whether the pod is known; draft; for every step
// of the scope ask, merge, plan; validate; (a dry run ends here) prepare; place;
// commit; answer. If the ledger moved meanwhile the plan is made again, at most
// twice where all that happened is that others have gone. If anything fails the draft is forgotten and what was prepared is undone. A
// rejection is explained after the lock is released, before the answer: it takes
// many dry runs, and they are nobody else's to wait for. Whoever asks gets the
// suggestions with the answer, and the trace keeps them.
//
// An error is a verdict only if it says something about the pod: a refusal, a value
// that the kernel does not take, or what a provider could not do. A node that fails
// at the moment (no descriptors, a full disk, systemd away) gives an error of class
// Unavailable or Deadline, and the caller repeats the call.
//
// Invariants: the ledger changes by at most one commit per admission; a pod's
// place exists before its commit; a pod's processes are gone before its claims
// are free; operations on one pod never overlap. The package has no clock, no
// goroutine and does no I/O: all of that comes in through ports.
package admission
