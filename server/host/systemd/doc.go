// Package systemd makes cgroups as slices of systemd: it implements cgroup.Tree
// for systems where systemd owns the tree and wants to be asked
// (https://systemd.io/CGROUP_DELEGATION).
//
// A slice is started as a transient unit, and what is written there is set as a
// property of the unit too, so that systemd does not take it back when it reloads.
// This goes through github.com/opencontainers/cgroups, as in the kubelet. Looking,
// killing and everything that systemd does not know (huge pages) is package
// cgroupfs's.
//
// # Words
//
//   - name: the place of a cgroup, as everywhere: [kubepods burstable].
//   - place: the directory of that cgroup, /kubepods.slice/kubepods-burstable.slice.
//   - foreign: a unit that is no slice, such as a runtime's scope of a container.
//
// # Invariants
//
//   - Only slices are made, and foreign units are only looked at and killed.
//   - What has been removed is not loaded any more, so that a slice of the same
//     name begins anew.
package systemd
