// Package systemd makes cgroups as slices of systemd: it implements cgroup.Tree
// for systems where systemd owns the tree and wants to be asked
// (https://systemd.io/CGROUP_DELEGATION).
//
// A slice is started as a transient unit, and what is written there is set as a
// property of the unit too, so that systemd does not take it back when it reloads.
// The properties are those that the kubelet sets. Looking, killing and everything
// that systemd does not know (huge pages) is package cgroupfs's.
//
// # Words
//
//   - name: the place of a cgroup, as everywhere: [kubepods burstable].
//   - place: the directory of that cgroup, /kubepods.slice/kubepods-burstable.slice.
//   - foreign: a unit that is no slice, such as a runtime's scope of a container.
//
// # Invariants
//
//   - Only slices are made. Foreign units are only looked at and killed, and scopes get values.
//   - An operation waits for systemd for no longer than 10 s in all; while systemd
//     does not answer, the next ones fail at once, and say so.
//   - A slice that somebody has stopped runs again after the next pass.
//   - What has been removed is not loaded any more, so that a slice of the same
//     name begins anew.
package systemd
