// Package endpoint connects to the sockets of other users' processes.
//
// berthd may reach every file of the machine, and those who tell it where they serve may
// not. So a path counts for nothing here: what counts is whom the socket at its end
// belongs to, and who serves it. The socket is pinned by a file descriptor before it is
// looked at, so it cannot be exchanged between the look and the connection. Errors do not
// tell what else is at a path.
package endpoint
