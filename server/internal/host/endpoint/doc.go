// Package endpoint connects to the sockets of other users' processes.
//
// berthd can open every file of the machine, but the users that name a socket cannot. So
// the path gives no rights. The package checks who owns the socket and which user serves
// it. The socket is pinned by a file descriptor before the checks, so it cannot be replaced
// between the checks and the connection. Errors do not reveal what else is at a path.
package endpoint
