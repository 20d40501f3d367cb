// Package disk measures the file system for the ephemeral storage of pods.
//
// Invariant: it writes nothing.
package disk
