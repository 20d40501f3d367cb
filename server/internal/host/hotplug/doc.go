// Package hotplug receives the kernel's events about CPUs, memory blocks and NUMA nodes that come
// and go.
//
// Words:
//
//   - uevent: a message that the kernel broadcasts over netlink when a device changes
//     (kernel: lib/kobject_uevent.c).
//
// Invariants: only messages of the kernel count, because any process can send to the socket. An
// event says that something may have changed, and nothing else of it is used. Lost events do no
// harm, because the caller also polls: the kernel sends none for huge pages.
package hotplug

import "bytes"

// subsystems are those whose events count.
var subsystems = [][]byte{[]byte("SUBSYSTEM=cpu"), []byte("SUBSYSTEM=memory"), []byte("SUBSYSTEM=node")}

// concerns returns whether a uevent is about a CPU, a memory block or a node. It is
// ACTION@PATH, and then KEY=VALUE for each property, all ended by zero bytes.
func concerns(message []byte) bool {
	for property := range bytes.SplitSeq(message, []byte{0}) {
		for _, s := range subsystems {
			if bytes.Equal(property, s) {
				return true
			}
		}
	}
	return false
}
