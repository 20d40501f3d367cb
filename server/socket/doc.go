// Package socket opens the unix sockets that berth serves on.
//
// Words:
//
//   - stale: a socket file that nobody listens on, left by a crash.
//
// Invariants: nobody who listens loses the path; a socket appears under its final name only when it already
// listens, and by a rename, so that watchers see a create event with exactly
// that name and never a moment with a dead socket; a path that the kernel could
// not bind is refused before anything is touched; closing removes the file only
// if it is still ours.
package socket
