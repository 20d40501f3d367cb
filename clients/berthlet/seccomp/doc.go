// Package seccomp turns seccomp profiles into filters for the kernel: programs of
// classic BPF that are run at each system call (seccomp(2)). It is made here, and not
// by libseccomp, so that berthlet needs no library of C to be built or to run.
//
// Words:
//
//   - profile: which system calls are answered how, by name, as the OCI runtime
//     specification has it (config-linux.md, seccomp). Localhost profiles of
//     Kubernetes are such documents.
//   - action: what a filter answers: let the call happen, an error, the end of the
//     process.
//   - default profile: what containers get that request nothing, or for
//     RuntimeDefault. What it allows depends on their capabilities.
//   - table: the numbers of system calls by name, of one architecture.
//   - compatible architecture: the older one whose programs a machine runs too.
//
// Invariants: of the rules of a call the first whose conditions hold counts, else the
// default action; a call of an architecture that is not in the profile ends the
// process; a call that is newer than the tables is answered as if the kernel did not
// have it (ENOSYS), where the default action is not to allow it, so that a C library
// falls back on an older one. What a profile requests and the filter would not do is an
// error, never left out.
//
// Not here: filters that ask another program (SCMP_ACT_NOTIFY), machines other than
// x86-64 and 64-bit ARM.
package seccomp
