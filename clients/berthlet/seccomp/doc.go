// Package seccomp compiles seccomp profiles to filters for the kernel: programs of classic BPF
// that run at each system call (seccomp(2)). It does not use libseccomp, so that berthlet needs
// no C library.
//
// Words:
//
//   - profile: the results of system calls by name, in the format of the OCI runtime
//     specification (config-linux.md, seccomp). Localhost profiles of Kubernetes are
//     such documents.
//   - action: a result of a filter: allow the call, return an error, or kill the
//     process.
//   - default profile: the profile for RuntimeDefault, and for containers without a
//     profile. It depends on the container's capabilities.
//   - table: the numbers of system calls by name, of one architecture.
//   - compatible architecture: the older one whose programs a machine runs too.
//
// Invariants:
//
//   - The first rule of a call whose conditions hold applies, otherwise the default
//     action.
//   - A call of an architecture that is not in the profile kills the process.
//   - A call that is newer than the tables returns ENOSYS, unless the default action
//     allows it, so that a C library uses an older call.
//   - A request of a profile that the filter cannot implement is an error.
//
// Not supported: filters that notify another program (SCMP_ACT_NOTIFY), and machines other than
// x86-64 and 64-bit ARM.
package seccomp
