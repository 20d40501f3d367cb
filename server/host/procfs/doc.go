// Package procfs reads and writes what berth needs of /proc beside the machine
// itself: how many processes there may be, swap space, and the scores of the
// kernel's out-of-memory killer.
//
// Reading functions take the tree as an fs.FS, writing ones as an *os.Root, so
// that tests work on trees of their own; NoSwap asks the kernel itself.
//
// Invariant: an error names the file; a file that may be absent is no error.
package procfs
