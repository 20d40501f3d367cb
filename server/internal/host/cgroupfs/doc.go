// Package cgroupfs implements cgroup.Tree on the kernel's cgroup file system, for
// cgroup v1, hybrid and v2 with plain directories.
//
// Values are written by github.com/opencontainers/cgroups, which runc and the kubelet
// use too, so that a value gets into the same file with the same text. All other
// files and directories are reached through an os.Root for each directory, which
// stays open until its cgroup has ended. What the library lacks is done here:
// killing, three-state existence, repair, undoing what could not be completed, and
// trees that are not mounted at /sys/fs/cgroup.
//
// # Words
//
//   - mount: where the tree is mounted, /sys/fs/cgroup as a rule.
//   - hierarchy: on v1 one mounted tree of directories with its controllers; v2
//     has one hierarchy for all.
//   - needed controllers: those that berth's values are made of.
//
// # Invariants
//
//   - Nothing outside of the mount is opened. An os.Root does not leave its
//     directory, the library writes only to cgroup file systems, and names are
//     checked first.
//   - A look at the tree resolves no path from the mount point.
//   - An error names the file, the value and what the kernel said.
//   - Remove returns nil only when no process and no directory is left, in any
//     hierarchy.
package cgroupfs
