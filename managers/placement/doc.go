// Package placement tracks on which CPUs each container may run. Its inputs are the agent's
// calls, the kernel's cgroups, a runtime's list or stream, NRI events, and time. It
// computes which containers block a start, which CPU sets to write in which order, and
// which CPUs are released. It has no effects itself: a caller applies events and carries
// out the effects. server/internal/reconcile is the caller for cgroups and for containers of a CRI
// runtime, clients/nri for containers of an NRI runtime.
//
// Words:
//
//   - assigned CPUs: the set that was written last and confirmed. If a start may have read
//     another one, it is the first set that the kernel shows of the process.
//   - possible CPUs: every set on which a process of the container may run now, or after a
//     start in progress. A set counts from the moment it is sent until it is disproved.
//     Planned and exited containers have none.
//   - own CPUs: a container's exclusive CPUs in the ledger. If the ledger gives some of them
//     to another container too, as within a pod, both containers share these.
//   - in flight: a set that was sent and not answered, or whose write failed but may still be
//     carried out. A later confirmed write disproves it, because the writes to one container
//     are carried out in order.
//   - released: a CPU is released for a container when the possible CPUs of no other
//     container contain it.
//   - blocked: a container must not start until all its own CPUs are released. A container
//     without own CPUs is never blocked.
//
// The transitions are below. An unknown container counts as exited. A dot keeps the phase.
// The marks after the phase: + adds the set of the event to the possible CPUs; = replaces
// them by that set and the sets in flight; ~ keeps them, because a start may have read an
// earlier set; - removes the set from those in flight; 0 replaces them by no CPUs; *
// replaces them by all CPUs; ? requests the kernel's view of the container; ! requests
// another list before anything else happens.
//
//	event           planned    starting   created    idle       running    paused     stopping   exited     unknown
//	plan            .          .          .          planned0   .          .          .          planned0   .
//	restore         .          .          .          .          .          .          .          created*   .
//	allow           starting   starting   created    starting   running    paused     starting   starting   starting
//	withdraw        .          planned0   planned0   .          .          .          starting   .          .
//	sent            .+         .+         .+         .+         .+         .+         .+         .          .+
//	confirmed       .=         .~         .~         .=         .=         .=         .=         .          .~
//	refused         .-         .-         .-         .-         .-         .-         .-         .          .-
//	shown-created   .          created    .          .          .          .          .          created*   created
//	shown-running   running*?  running?   running?   running?   .?         running?   .?         running*?  running?
//	shown-paused    paused*?   paused?    paused?    paused?    paused?    .?         .?         paused*?   paused?
//	ended           exited0    exited0    exited0    exited0    exited0    exited0    exited0    .          exited0
//	unlisted        .          .          unknown!   unknown!   unknown!   unknown!   unknown!   .          .?
//	kernel-runs     created+   .+         .+         created+   .=         .=         .=         .          .=
//	kernel-empty    .          .          .          .          idle       idle       exited0    .          exited0
//	stop            .          stopping   stopping   stopping   stopping   stopping   .          .          stopping
//	start-overdue   .          idle       idle       .          .          .          .          .          .
//
// Invariants:
//
//   - From the first instruction of a started container, no process of another container runs
//     on its own CPUs, if no start takes longer than StartTime.
//   - A container is blocked only by containers whose possible CPUs include some of its own
//     CPUs.
//   - Nothing is stored for a forgotten container.
//
// Other modules may import this package, and every release may change it.
package placement
