// Package overlap finds out whether a container ran on CPUs that another container holds
// exclusively. Tests run it beside whole nodes.
//
// Words:
//
//   - container: all tasks in cgroups that Config.Container gives the same name.
//   - holder: a container with exclusive CPUs. It holds them from the moment its program
//     is executed to the exit of its last task.
//   - slice: the time in which a task ran on a CPU without a break.
//   - overlap: slices of another container on a CPU of a holder, while it holds the CPU.
//   - planted overlap: one that the package causes itself, with processes and cgroups of
//     its own. It shows that real overlaps of that length are found under the same load.
//
// There are two methods. Trace reads the kernel's events of the scheduler and of the
// lives of tasks from tracefs (kernel documentation, trace/events.rst): it records every
// slice. Sample reads the tasks of all containers from /proc again and again; it counts
// a task that runs on a holder's CPU or may run there (sched_getaffinity(2)).
//
// A run only counts if Report.Valid says so: no event was lost, and each of at least ten
// planted overlaps of five milliseconds was found.
package overlap
