// Package disk measures the file system for the ephemeral storage of pods, and makes names in a directory durable.
//
// Invariant: it changes no file.
package disk
