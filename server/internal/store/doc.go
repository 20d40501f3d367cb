// Package store keeps the ledger in a file: it is the ledger.Journal on bbolt,
// and the only package that uses bbolt.
//
// Words:
//
//   - state directory: where the file lives, with the lock and what was set
//     aside. It belongs to one daemon at a time.
//   - lock: the file berthd.lock, held with flock(2) for as long as a store is
//     open for writing; it holds the owner's pid. The lock counts, not the file:
//     a file that a crash leaves behind has no effect.
//   - damage: a file whose pages, or whose values, are not what was written.
//   - set aside: kept as NAME.damaged-TIME next to NAME.damaged-TIME.json, the report
//     that says why, what is lost, and what could not be read.
//   - to salvage: to make a sound file of what is whole in a damaged one.
//   - in place: under its name, where the next start looks.
//
// Package ledger documents the content of the buckets, at its schema. Every bucket is a top-level
// bucket of the file, and keys and values are stored unchanged.
//
// Invariants:
//
//   - A commit that returned nil is on the disk. A commit that failed has no effect, or its
//     result is unknown and the store is closed for further commits.
//   - A damaged file is never written to and never deleted.
//   - Before bbolt maps a file, every page of it is checked, because bbolt does not check
//     its pages and a bad one can end the process.
//   - Only regular files are opened.
//
// A damaged file is read page by page. The pages that the newest meta page leads to are the
// state. A page that is in use according to the freelist, but that no readable page leads to,
// belongs to the state if the state then has at most as many records as the last commit left.
// All other pages may hold removed records. Records that only they have are reported as perhaps
// stale, and become no pod. One flipped bit in a meta page is repaired, and swapped pages are put
// back. If the newest meta page is damaged, the root with the highest generation is used. The
// sound file is written under another name. The damaged file gets a second name, and then the
// sound one takes the first name, so that a crash leaves one of the two under it.
//
// Changes of the file while a store is open are detected at the next commit, before it is
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
