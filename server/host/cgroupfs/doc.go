// Package cgroupfs reaches the kernel's cgroup tree through its file system: it
// implements cgroup.Tree for cgroup v1, hybrid and v2 with plain directories.
//
// Values are written through github.com/opencontainers/cgroups, which runc and
// the kubelet use too, so that a value lands in the same file with the same
// text; on v1 the plain ones among them directly, in the same order. What that
// library does not have is done here: killing, three-state existence, repairing,
// leaving nothing half-made, and trees that are not mounted at /sys/fs/cgroup.
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
//   - Nothing outside of the mount is opened: directories and control files are
//     reached through an os.Root or by names that were checked and lead nowhere
//     else, except where the library writes, which keeps to cgroup file systems
//     itself.
//   - An error names the file, the value and what the kernel said.
//   - Remove returns nil only when no process and no directory is left, in any
//     hierarchy.
package cgroupfs
