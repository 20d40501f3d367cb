// Package trust is about files and directories that decide what a program does: configurations,
// manifests, images, sockets of other programs, and where the program keeps its state. Only root and
// the process's own user may be able to change them, or to replace them by others.
//
// Words:
//
//   - trusted: owned by root or by the process's user, and writable only by them. A group
//     may write if it is root's or the process's own.
//   - way: every directory from the root of the file system to a file or directory, with the
//     links on it and what they lead to. Above a directory itself, a directory that
//     all can write to may have the sticky bit, as /tmp has: there only its owner
//     renames a file.
//   - kind: what a flag or a field of a configuration names (kind.go). Each program checks all its
//     flags with CheckFlags, and berthd its configuration with CheckFields.
//
// Invariants: a directory is checked after it was created, because another user may have
// created it just before; a file is examined again after it was opened, and a file of a
// directory is opened beneath the directory's descriptor; a refusal names the file, directory or
// link, its owner and mode, and the command that repairs it.
//
// One directory may be writable by its mode: that of the volume of a Kubernetes ConfigMap, where it is mounted read-only. Its mode is
// 0777, and on the node only root comes to it.
package trust
