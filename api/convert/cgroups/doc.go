// Package cgroups turns names, values and pending writes of cgroups into messages and back.
//
// Invariants: no cgroup is read or written here; values that were read are within the kernel's limits.
package cgroups
