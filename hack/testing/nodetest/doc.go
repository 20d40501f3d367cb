// Package nodetest is what tests share that run whole programs: it builds them, starts and
// ends them, waits for what they bring about, and removes the cgroups that are left.
//
// Words:
//
//   - programs: built once for all tests of a package, when the first test needs one.
//   - process: a program that runs, or has ended. What it writes is added to a log,
//     which is a file: children that outlive it may continue writing.
//   - cgroup: a path, as in "/berth1/pods". There may be a directory of this path in
//     each of the kernel's hierarchies (cgroups(7)).
//
// Not here: which programs, with which flags, and what is expected of them.
package nodetest
