// Package disk measures the file system that pods get ephemeral storage from.
//
// Invariant: it only asks; nothing is written.
package disk
