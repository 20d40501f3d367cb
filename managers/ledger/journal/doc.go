// Package journal stores the ledger: it defines the schema, encodes each commit, decodes what is stored, and salvages what
// is left of damaged data.
//
// Words:
//
//   - journal: the storage of committed changes, one batch for each generation. server/internal/store is one.
//   - entry: one key of a bucket with its value, which has a checksum.
//   - bucket: a group of entries of one kind; see schema.go.
//   - whole: a pod is whole if its record and all its claims are as they were written. The
//     record has a checksum over the claims, so a missing or older claim is detected. A pod
//     that is not whole is lost.
//   - to salvage: to build a sound state from a damaged one.
//   - recorder: what adds the entries of the history to a commit.
//   - fact: what a commit notes of the machine, the configuration and the boot. Each start knows it anew.
//
// Invariants: equal views give equal bytes; a start writes nothing; a commit that violates an invariant of the ledger is not
// written; damage of one value does not affect others. The package does no I/O; the Journal does.
//
// Damage has local effects. Every stored value has its own checksum:
//
//	damaged or missing              consequence
//	a trace                         the pod loses its explanation
//	a pod's record, or a claim      the pod is lost; Report.Lost has its readable parts
//	a binding, lease, resource or   it is dropped
//	provider's registration
//	a note on an unknown living pod the state is uncertain
//	meta: generation                the highest in any record; new revisions are above all old ones
//	meta: epoch                     new revisions are above all old ones
//	meta: boot-id, machine,         what it says of the last commit is not known (metaFacts); no damage of the
//	topology, config, memory,       state, so the ledger continues in its epoch, and the next commit writes
//	reservation                     it again. The machine's fingerprint follows from the topology
//	meta: an absent machine or      the same, but in a new epoch: what may be absent may have gone with it
//	config
//	meta: override                  the configuration's policy is used
//	meta: uncertain                 the state is uncertain
//	meta: schema                    the current version is assumed
//	an entry of the history          older states cannot be computed; nothing else
//	the count of pods is wrong      the state is uncertain
//	two pods hold the same thing    the pod with the older last change is lost: it must have been
//	                                removed before the other one was admitted
//
// Open refuses a damaged state and reports the damage. Salvage builds a sound state in a new
// epoch; it is uncertain if a pod is lost or may be missing.
//
// Other modules may import this package, and every release may change it.
package journal
