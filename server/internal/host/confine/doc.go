// Package confine removes rights from this process: capabilities, access to files that it
// does not need (Landlock), and system calls that it does not make (seccomp).
//
// Before that, it can start a second process of the same program, for what the restrictions forbid.
//
// Words:
//
//   - capability: a part of root's rights, capabilities(7).
//   - rules: the files and ports that the process may use, landlock(7).
//   - filter: the system calls that the process may make, seccomp(2).
//   - helper: the second process. It restricts itself, by a call of Enter of its own.
//
// Capabilities and rules belong to a thread and survive execve(2). So Enter sets them on
// one thread and executes the program again. Afterwards every thread has them. The filter
// forbids execve, so the new program sets it, on all threads.
//
// Invariants: removed rights are never restored. A mechanism that the kernel lacks is
// reported and skipped. Any other failure is an error.
package confine

import (
	"os"
	"strings"
)

// Plan lists the privileges to drop and to keep.
type Plan struct {
	// Capabilities are kept, if DropCapabilities is set.
	Capabilities     Set
	DropCapabilities bool
	// Rules are nil for none.
	Rules *Rules
	// Filter sets the filter of system calls.
	Filter bool
	// Helper are the arguments of the helper; empty for none.
	Helper []string
}

// Rules list the accessible files and ports. Everything else is refused.
type Rules struct {
	Files []File
	// TCPPorts can be listened on; 0 is a port that the kernel chooses.
	TCPPorts []uint16
	// ConnectPorts can be connected to over TCP, on any machine.
	ConnectPorts []uint16
	// AbstractSockets leaves unix sockets without a path alone.
	AbstractSockets bool
}

// File tells what may be done with a file, or with everything below a directory. A path that
// is not there is left out.
type File struct {
	Path   string
	Rights Rights
}

// Rights tell what may be done with files.
type Rights int

// The rights. Each includes the previous ones, except MakeAgain.
const (
	// ReadFile reads files.
	ReadFile Rights = iota + 1
	// Read reads files and lists directories.
	Read
	// Run reads, lists and executes.
	Run
	// Write reads, lists, and writes files that are there.
	Write
	// Change reads, lists, writes, makes and removes.
	Change
	// MakeAgain makes directories and sockets and removes files, and reads nothing.
	MakeAgain
)

// Report has the restrictions in force.
type Report struct {
	// Capabilities are the process's capabilities.
	Capabilities Set
	// Landlock is the version of its interface, 0 for no rules.
	Landlock int
	// Filter means that system calls are filtered.
	Filter bool
	// Helper is a socket to the helper; nil without one.
	Helper *os.File
	// Missing names requested restrictions that this kernel does not support.
	Missing []string
}

// Set is a set of capabilities.
type Set uint64

// Capability is one by its number in linux/capability.h.
type Capability uint

// Of makes a set.
func Of(all ...Capability) (s Set) {
	for _, c := range all {
		s |= 1 << c
	}
	return s
}

// Has reports whether a capability is in the set.
func (s Set) Has(c Capability) bool { return s>>c&1 == 1 }

// String lists the set in the order of the numbers; "none" if it is empty.
func (s Set) String() string {
	var names []string
	for c := range Capability(64) {
		if s.Has(c) {
			names = append(names, c.String())
		}
	}
	if names == nil {
		return "none"
	}
	return strings.Join(names, " ")
}
