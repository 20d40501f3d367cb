// Package rpc is the frame around berth's gRPC services: everything that a
// handler would otherwise have to repeat.
//
// Words:
//
//   - peer: the process at the other end, as the kernel names it (SO_PEERCRED).
//   - role: what a peer may do; a method asks for one.
//   - limiter: bounds how many connections and calls users other than root have at
//     once, so that none of them can keep the agent out.
//   - turn: the right to run. Each user other than root has one; a call has it until it
//     waits for something.
//   - slot: what a costly call of a user other than root needs to run. While the call waits
//     for something else, others have it.
//   - ceiling: the longest that a unary call may take.
//
// A call passes, from the outside in: the limiter's bounds and a role that could do,
// before its message is read; room for the bytes of its message, and a count of the
// elements before they are decoded; room for answers that the user has not read; the
// user's turn; request id, one log line and one latency metric,
// recovery from panics, the peer's role, the ceiling, a slot, the table from error
// classes to status codes, the handler.
//
// Invariants: every method of the main socket has a role; an error leaves as a
// status with berth's details or is one already; a handler never sees a caller
// without the role that its method needs.
package rpc
