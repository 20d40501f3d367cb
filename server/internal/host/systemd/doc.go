// Package systemd implements cgroup.Tree with slices of systemd. It is for systems where systemd
// owns the cgroup tree, which must not be changed without systemd
// (https://systemd.io/CGROUP_DELEGATION).
//
// A slice is started as a transient unit. Its values are also set as properties of the unit, so
// that a reload of systemd does not reset them. The properties are those that the kubelet sets.
// Package cgroupfs observes, kills, and writes values without a property (huge pages).
//
// # Words
//
//   - name: the name of a cgroup, as everywhere: [kubepods burstable].
//   - place: the directory of that cgroup, /kubepods.slice/kubepods-burstable.slice.
//   - foreign: a unit that is no slice, such as a runtime's scope of a container.
//
// # Invariants
//
//   - Only slices are created. Foreign units are only observed and killed, and scopes get values.
//   - An operation waits for systemd for at most 10 s in total. While systemd does not
//     respond, the next operations fail at once with an error that names systemd.
//   - If another program stops a slice, the next pass starts it again.
//   - A removed slice is no longer loaded, so that a new slice of the same name has no
//     old properties.
package systemd
