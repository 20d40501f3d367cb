// Package live changes what admitted pods have: their amounts, and where their CPUs and memory are.
//
// Words:
//
//   - resize: other amounts of an admitted pod, in place if possible, else as a move.
//   - move: other CPUs or NUMA nodes of a pod, in steps. Each step is a commit, so a move goes on after a crash.
//   - relocation: a move of a pod whose amounts stay, planned and not begun.
//   - loss: what a pod has and the machine has not any more; a replacement is a relocation for it.
//   - defragmentation: relocations of pods after which another pod fits.
//   - disruption: how much a change disturbs the running containers of a pod.
//
// Plans are made on a basis (package admission) and change nothing. What begins a change holds the pod's lock, decides again
// under the admission lock, reserves what the pod has and gets, and ends in one commit. Package transition plans the steps of a
// move; a mover outside of managers/ carries them out.
//
// Invariants:
//
//   - A pod that changes holds what it has and what it gets, until its containers have left the old place.
//   - A refused change leaves the pod as it is. A change is refused if an unknown pod may have what is free.
//   - Devices stay. CPUs and memory do not leave the NUMA nodes of a container's devices.
//   - No plugin is called.
//
// The package has no clock and no goroutines, and does no I/O; the ports of the admission engine and the Mover provide them.
//
// Other modules may import this package, and every release may change it.
package live
