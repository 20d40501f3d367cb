// Package trust makes directories that berthd and berthlet can rely on: nobody but root and
// the user they run as can change what is in them, or put another directory in their place.
//
// Words:
//
//   - trusted: belongs to root or to the user of this process, and only they can write to it. A
//     group may write that is root's or that of this process.
//   - way: every directory from the root of the file system to a directory, with the
//     links on it and what they lead to. Above the directory itself a directory that
//     all can write to may have the sticky bit, as /tmp has: there only its owner
//     renames a file.
//
// Invariants: a directory is looked at after it was made, since somebody else may have
// made it a moment before; a refusal names the directory or link, its owner and mode,
// and what to do.
package trust
