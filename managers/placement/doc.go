// Package placement tracks which CPUs each container may run on, from what is known
// of it: the agent's calls, the kernel's view, a runtime's list or stream, NRI, and
// time. It says who must leave which CPUs before whom may start, what to write in
// which order, and which CPUs are released. It does nothing itself: a caller feeds
// events and carries the effects out. server/reconcile does so for cgroups and for
// containers of a CRI runtime, clients/nri for containers of an NRI runtime.
//
// Words:
//
//   - assigned CPUs: the set that was written last and confirmed.
//   - possible CPUs: every set on which a process of the container may run now or
//     after a start that is under way. A set counts from the moment when it is sent
//     until it is disproved. Planned and exited containers have none.
//   - own CPUs: those that a container has exclusively, by the ledger. Where the ledger
//     gives another container some of them too, as within a pod, both share those.
//   - in flight: a set that was sent and not answered, or whose write failed so that
//     it may be carried out late. A write that is confirmed later disproves it: writes
//     to one container are carried out one after another.
//   - released: a CPU is released for a container when the possible CPUs of no other
//     container contain it.
//   - blocked: a container whose own CPUs are not all released must not start. A
//     container without CPUs of its own is blocked by nobody.
//
// The transitions. A container that is not known counts as exited. A dot keeps the phase. The marks behind it: + adds the set of the
// event to the possible CPUs; = makes them that set and the sets in flight; ~ keeps
// them, because a start may have read an earlier set; - takes the set out of those in
// flight; 0 makes them none; * makes them all CPUs; ? asks for the kernel's view of the
// container; ! asks for another list before anything follows.
//
//	event           planned    starting   created    idle       running    paused     stopping   exited     unknown
//	plan            .          .          .          planned0   .          .          .          planned0   .
//	restore         .          .          .          .          .          .          .          created*   .
//	allow           starting   starting   created    starting   running    paused     starting   starting   starting
//	withdraw        .          planned0   planned0   .          .          .          starting   .          .
//	sent            .+         .+         .+         .+         .+         .+         .+         .          .+
//	confirmed       .=         .~         .~         .=         .=         .=         .=         .          .~
//	failed          .          .          .          .          .          .          .          .          .
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
// Invariants: no process runs on the own CPUs of another container that was let start,
// from its first instruction on, as long as no start takes longer than the time given
// for it; nobody is blocked by a container whose possible CPUs its own do not contain;
// nothing is remembered of a container that was forgotten.
package placement
