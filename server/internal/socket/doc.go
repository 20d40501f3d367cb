// Package socket opens the unix sockets that berth serves.
//
// Words:
//
//   - stale: a socket file without a listener, left by a crash.
//
// Invariants:
//
//   - The socket of a live listener is never replaced.
//   - A socket appears under its final name by a rename, and listens before that. So
//     watchers get one create event with the final name, and never find a dead socket.
//   - A path that the kernel cannot bind is refused before anything changes.
//   - Closing removes the file only if it is still the same socket.
package socket
