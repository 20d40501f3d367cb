// Package trust creates directories that berthd and berthlet can rely on: only root and the
// process's own user can change their contents, or replace them by other directories.
//
// Words:
//
//   - trusted: owned by root or by the process's user, and writable only by them. A group
//     may write if it is root's or the process's own.
//   - way: every directory from the root of the file system to a directory, with the
//     links on it and what they lead to. Above the directory itself a directory that
//     all can write to may have the sticky bit, as /tmp has: there only its owner
//     renames a file.
//
// Invariants: a directory is checked after it was created, because another user may have
// created it just before; a refusal names the directory or link, its owner and mode, and
// what to do.
package trust
