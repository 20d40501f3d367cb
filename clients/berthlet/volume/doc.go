// Package volume makes the folders of emptyDir volumes, and gives paths below a
// volume (subPath) to container runtimes in a way that no container can change.
//
// Words:
//
//   - pin: a bind mount of what a path below a volume led to when it was opened, at a
//     place that only root can reach. A runtime is given that place. It mounts it
//     later, by its name, and a name within the volume could lead elsewhere by then.
//     It goes when the container has started.
//   - holder: the container of a pod that a pin is for.
//
// Invariants: no link within a volume is followed (package beneath), and what was
// opened is what is mounted; a pin is private to itself and without the mounts that
// are below it, so that its end ends nothing else; the place of a pin is removed
// without anything that is in it, because what is in it may be a file of the
// machine.
package volume
