// Package procfs reads and writes files of /proc: the limit of processes, swap space, and
// the scores of the out-of-memory killer. Package sysfs reads the machine itself.
//
// Functions that read take an fs.FS, functions that write an *os.Root, so tests use trees
// of their own. NoSwap makes a system call.
//
// Invariant: an error names the file. A missing file that is optional is no error.
package procfs
