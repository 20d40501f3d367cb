// Package volume creates the directories of emptyDir volumes. It also passes paths below a volume
// (subPath) to container runtimes such that no container can change their target.
//
// Words:
//
//   - pin: a bind mount of the target of a path below a volume, at a path that only root
//     can reach. A runtime gets the pin's path. The runtime mounts by name later, and a
//     name within the volume could have another target by then. The pin is removed
//     after the container has started.
//   - holder: the container of a pod that a pin is for.
//
// Invariants: no link within a volume is followed (package beneath), and the opened file is the
// mounted one. A pin is a private mount without the mounts below it, so that unmounting it
// affects no other mount. The pin's path is removed without its content, because the content may
// be a file of the machine.
package volume
