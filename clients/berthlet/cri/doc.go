// Package cri is a container.Runtime on top of a container runtime of the machine,
// as containerd or CRI-O, which it reaches over CRI v1.
//
// Words:
//
//   - sandbox: what the runtime keeps for a pod: its namespaces, its directory of
//     logs, its cgroup. A pod has one that is ready; when that breaks a new one
//     takes its place, with a higher attempt.
//   - owner: a label on everything that is made here, with the name of this
//     berthlet. What others make beside it, as a kubelet, is never seen.
//   - poll: the states of all containers are read every second, which is how the
//     end of one is noticed. Kubelets do the same. One whose state the runtime does not
//     know is ended then.
//
// What differs from the built-in runtime: ids are the runtime's; a created
// container has no process, so there is nothing to place before the start, and
// berthd needs the runtime's endpoint too, to put CPU sets in force; a container that
// is told to end before it has begun counts as exited from then on, although the
// runtime still has it until it is removed.
//
// Invariants: everything that has to outlive the program is in labels and
// annotations, as a kubelet does it; values come from the spec and from nowhere
// else.
package cri
