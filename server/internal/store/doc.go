// Package store keeps the ledger in a file: it is the ledger.Journal on bbolt,
// and the only package that knows bbolt.
//
// Words:
//
//   - state directory: where the file lives, with the lock and what was set
//     aside. It belongs to one daemon at a time.
//   - lock: the file berthd.lock, held with flock(2) for as long as a store is
//     open for writing; it holds the owner's pid. The lock counts, not the file:
//     what a crash leaves behind locks nobody out.
//   - damage: a file whose pages, or whose values, are not what was written.
//   - set aside: kept as NAME.damaged-TIME beside NAME.damaged-TIME.json, the report
//     that says why, what is lost, and what could not be read.
//   - to salvage: to make a sound file of what is whole in a damaged one.
//   - in place: under its name, where the next start looks.
//
// What the buckets hold is written in package ledger, at its schema; every
// bucket is a top-level bucket of the file, and keys and values go in as they
// come.
//
// Invariants: a commit that returned nil is on the disk; one that failed has
// left nothing, or it has closed the store for further commits because nobody
// can know; a damaged file is never written to and never deleted. Before bbolt
// maps a file, every page of it is checked, because bbolt trusts its pages and a
// bad one can end the process. Nothing but a regular file is ever opened.
//
// A damaged file is read page by page. A page that the newest meta page leads to holds
// the state. One that is in use by the list of free pages, but that nothing readable
// leads to, is believed as long as the state then holds no more than the last commit
// left. All others may hold what was removed: what only they have is told as perhaps
// stale, and makes no pod. One flipped bit in a meta page is repaired, pages that were
// swapped are put back, and where the newest meta page is gone the root is looked for
// by the highest generation. The sound file is written beside, the damaged one gets a
// second name, and then the sound one takes the first, so that a crash leaves one of
// the two under it.
//
// What happens to the file while a store is open is seen at the next commit, before it is
// acknowledged:
//
//	removed, renamed or replaced, or its    the whole state is written to a new file, with a new
//	directory                               directory and lock, in a new epoch; a file at the path
//	                                        is kept as NAME.replaced-GENERATION
//	written over or truncated               the same
//	the lock alone is removed               it is acquired again
//	another process has the lock then       no commit succeeds any more, and Watch returns
//	it cannot be written                    the commit is not acknowledged, the next one tries again
package store
