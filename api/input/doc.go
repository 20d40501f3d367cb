// Package input reads what other users and programs give: files that a flag names, standard input,
// bodies of answers.
//
// Files of the kernel's file systems are read elsewhere. So are files whose reader counts their bytes together, compares
// who owns them, or has an error of its own for them: claim records (server/internal/host/claimfiles), CDI files
// (clients/nri/cdi, clients/dra/driver), images and what berthlet keeps (clients/berthlet). They have the same invariants.
//
// Invariants:
//
//   - No reading takes more memory than the caller allows, whatever size a file claims to have.
//   - Only regular files are read, and pipes where a person names them: a device has no end.
//   - A reading with a context ends with it, also while a pipe has no writer.
//
// It does not decide whether a file can be trusted: api/trust does.
package input
