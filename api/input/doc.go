// Package input reads what other users and programs give: files that a flag names, standard input,
// bodies of answers. It is the only place outside the kernel's file systems that reads whole files.
//
// Invariants:
//
//   - No reading takes more memory than the caller allows, whatever size a file claims to have.
//   - Only regular files are read, and pipes where a person names them: a device has no end.
//   - A reading with a context ends with it, also while a pipe has no writer.
//
// It does not decide whether a file can be trusted: api/trust does.
package input
