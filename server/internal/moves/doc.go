// Package moves shows whether the memory of running containers can move to other NUMA nodes, and whether it has arrived.
//
// Words:
//
//   - move: a pod gets other CPUs, memory and devices while its containers run, in steps that the ledger has.
//   - migrating: the memory of a container goes to other nodes, because the memory nodes of its cgroup change.
//   - report: where an agent has seen the memory of a container whose cgroup berthd does not read.
//   - attempt: another change of the memory nodes, which lets the kernel move again what has stayed.
//
// The reconcile loop writes the CPUs and memory nodes. This package compares them with the kernel: where the processes may run, where
// their memory and their huge pages are, and where huge pages are free.
//
// Invariants:
//
//   - A move is refused if the memory would not move, or could not be seen to: the pod would have both sides for ever.
//   - A container leaves nodes only when its memory has left them. What may run elsewhere still, or cannot be read now, has not left them.
//   - A move of memory that only reports show goes on only after a report of its last step.
//   - Nothing waits for a process while the loop's turn is held.
package moves
