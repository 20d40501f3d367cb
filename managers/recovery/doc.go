// Package recovery decides at a start, pod by pod, what is true: the ledger, the claim
// record that lies where the pod lives, and the kernel may each be damaged, older than
// the others, or gone.
//
// Words:
//
//   - ledger record: a pod with its claims in the ledger. Whole, damaged (Report.Lost:
//     something is left of it, or its name alone) or missing.
//   - claim record: ledger.ClaimRecord. Whole, damaged or missing; one of another boot
//     counts as missing, since nothing of that boot lives.
//   - processes: running (a cgroup of the pod holds one), empty (there is a cgroup
//     without any), gone (there is no cgroup), unseen (the cgroups are not the kernel's:
//     there is a claim record, and processes are not visible).
//   - living: with processes that run or are unseen.
//   - older copy: a ledger that lacks a commit that was acknowledged. The mark of the last
//     commit shows it by its revision, or where that is lost claim records that are ahead by
//     more than the one change that a crash can leave without an acknowledgement. Where the
//     mark is of another epoch, one change is too many: the last process was in that epoch,
//     and left none of this one.
//
// The cases:
//
//	ledger   claim record               processes      kept
//	whole    same claims                any            ledger record
//	whole    older, same epoch          any            ledger record
//	whole    newer, same epoch          any            ledger record, where the specification is the same and the mark is
//	                                                   of the ledger's last commit (a move that did not begin)
//	whole    newer, same epoch          any            else union of both (an unacknowledged change)
//	whole    newer, older copy          any            claim record
//	whole    other epoch                living         claim record
//	whole    other epoch                empty          ledger record
//	whole    damaged or missing         any            ledger record
//	whole    -                          gone           ledger record, until Sync or Remove
//	damaged  whole                      living, empty  ledger record with the claims of the claim record, where
//	                                                   the ledger's part is whole and of the same specification
//	damaged  whole                      living, empty  else claim record, as an unknown living pod
//	damaged  damaged or missing         living         what the ledger and the kernel show, as an unknown living pod
//	                                                   (a left claim on other CPUs than the kernel's is out of date)
//	damaged  damaged or missing         empty          nothing; the cgroup goes
//	damaged  -                          gone           nothing
//	missing  whole                      running        claim record, as an unknown living pod
//	missing  whole, same epoch          empty, unseen  nothing: an unacknowledged admission; the cgroup goes
//	missing  whole, other or older      empty, unseen  claim record, as an unknown living pod until the agent's SyncPods:
//	                                                   the agent may have the answer, and be about to start it
//	missing  damaged or missing         living         what the kernel shows, as an unknown living pod
//	missing  damaged or missing         empty          nothing; the cgroup goes
//
// Another boot changes no more than that there are no claim records: what runs then was
// started since. Where a claim record is kept whose specification is not that of the
// ledger record, the pod becomes an unknown living one: what it runs with is known, its
// specification is not.
//
// If what two pods would keep contradicts each other, a living pod keeps what it has, and the
// pod without processes is lost. Of two living ones the one whose source is weaker loses
// what both have: the kernel is weaker than a ledger record, that is weaker than a claim
// record, and that weaker than both together. Where what one pod would keep contradicts
// itself, as a union can, it is kept as an unknown living pod.
//
// Invariants: a living pod loses nothing to a pod that does not live; no process is
// ended, and no cgroup removed that holds one; a decision is a function of its input, and
// every pod that is known, lost or observed has exactly one.
//
// Other modules may import this package, and every release may change it.
package recovery
