// Package cgroupfs implements cgroup.Tree on the kernel's cgroup file system, for cgroup v1,
// hybrid and v2 with plain directories.
//
// Values are written by github.com/opencontainers/cgroups, the library of runc and the kubelet,
// so that the same values get into the same files in the same format. All other files and
// directories are reached through an os.Root for each directory, which stays open until its
// cgroup has ended. This package adds what the library lacks: killing, three-state existence,
// repair, undoing an incomplete creation, and trees that are not mounted at /sys/fs/cgroup.
//
// # Words
//
//   - mount: the mount point of the tree, usually /sys/fs/cgroup.
//   - hierarchy: on v1 one mounted tree of directories with its controllers; v2
//     has one hierarchy for all.
//   - needed controllers: the controllers of berth's values.
//
// # Invariants
//
//   - Nothing outside of the mount is opened. An os.Root does not leave its
//     directory, the library writes only to cgroup file systems, and names are
//     checked first.
//   - Observing the tree again resolves no path from the mount point, except that of the
//     first cgroup of a walk: a directory above it may have been replaced.
//   - An error names the file, the value and the kernel's error.
//   - Remove returns nil only when no process and no directory is left, in any
//     hierarchy.
package cgroupfs
