// Package reconcile keeps the cgroup tree equal to the ledger.
//
// Words:
//
//   - pass: observe the tree, compare it with what follows from a view, apply
//     the difference.
//   - following: putting into force what a newer view wants otherwise, and nothing
//     else.
//   - settled: a view is settled when a pass for it, for a later one, or for one
//     with the same pods and claims has put every container where that view allows;
//     then nobody runs where it forbids.
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
//   - guest: a bound container that a runtime has made, with a cgroup of the
//     runtime's.
//   - lost: a guest that the runtime does not list any more, and that has processes all
//     the same, or may have. Nobody can move it.
//   - stray: a guest that the runtime runs outside of its pod's cgroup; one at home does
//     not, or has ended.
//   - start: what is known of a guest that does not run yet. One that was told to start
//     may be on its way since then, though it is asked for once more.
//
// Invariants: values come from the ledger and from the configuration and from
// nowhere else, so a pass may be repeated at any time and after any crash; a
// container with CPUs of its own starts only when its view is settled; turns, which
// passes take and whoever has one pod's places made, never overlap; what the kernel
// refuses for one pod keeps no other from its values; a runtime that does not answer
// holds a turn up for no longer than patience, in all that the turn asks it; whoever
// waits for his turn waits for no longer than he wants; an orphan has at most one
// worker that removes it; nothing is remembered of pods that are gone, nor of their
// containers, but for starts that were young a moment ago.
package reconcile
