// Package reconcile keeps the cgroup tree equal to the ledger.
//
// Words:
//
//   - pass: observe the tree, compare it with what follows from a view, apply
//     the difference.
//   - following: putting into force what a newer view wants otherwise, and nothing
//     else.
//   - leaving: a pod whose cgroup is being removed while the ledger still
//     knows the pod; a pass must not make it again.
//   - drift: a value that a pass had put in force and that somebody else changed.
//   - finding: what the kernel does otherwise than the ledger says and no pass can
//     change: a cgroup above pods is frozen, a memory limit waits until less is used.
//   - unbound: the cgroup of a container that berth made and no binding tells of; its
//     start was cut off, or is under way.
//   - ending: a cgroup that is being removed. A removal freezes it and takes its
//     processes away, which a pass neither reports nor undoes. It takes from them the
//     CPUs of others all the same.
//   - orphan: the cgroup of a pod that the ledger does not know.
//   - runtime container: a bound container that a runtime has made, with a cgroup of the
//     runtime's.
//   - unlisted: a runtime container that the last two lists do not have. One that has
//     processes all the same cannot be moved by anybody.
//   - key: the name under which the tracker (managers/placement) knows a container: its
//     id if a runtime has made it, else its cgroup.
//   - turn: what is done while mu is held. Turns never overlap.
//
// One loop reads the kernel and the runtime's list, tells the tracker, writes what the
// ledger wants, tells the tracker of that, and reports. Which phase a container is in,
// where it may run and who is in whose way is the tracker's to say.
//
// After the event of one container, or the commit of one pod, the runtime is asked for the
// containers concerned only, and so is the kernel; a pass asks for all.
//
// Invariants: values come from the ledger and from the configuration and from
// nowhere else, so a pass may be repeated at any time and after any crash; a
// container with CPUs of its own starts only when no other container may be on them, and
// one without waits for nobody; own CPUs that somebody may still be on are not written to
// anybody; what the kernel refuses for one pod keeps no other from its values; a turn
// waits for calls of the runtime for no longer than turnWait, for a list only once in an
// outage, and a call that takes longer goes on without holding anybody up who does not need
// its answer; whoever waits for a
// turn waits for no longer than the caller's context lasts; an orphan has at most one
// worker that removes it; nothing is remembered of pods that are gone, nor of their
// containers, but for starts that were never bound, until they have taken too long.
package reconcile
