// Package rpc is the common part of berth's gRPC services.
//
// Words:
//
//   - peer: the process at the other end, according to the kernel (SO_PEERCRED).
//   - role: a set of permitted methods; each method requires one.
//   - limiter: limits the simultaneous connections and calls of users other than root,
//     so that none of them can block the agent.
//   - turn: the right to run. Each user other than root has one; a call has it until it
//     waits for something.
//   - slot: a costly call of a user other than root needs one to run. While the call waits
//     for something else, other calls can have it.
//   - ceiling: the maximum duration of a unary call.
//
// A call passes these steps: the limiter, and a check of the roles that the method could require,
// before its message is read; memory for its message, and a count of the elements before they are
// decoded; memory for unread answers; the user's turn; request id, one log line and one latency
// metric, recovery from panics, the peer's role, the ceiling, a slot, the table from error
// classes to status codes, the handler.
//
// Invariants: every method of the main socket has a role. Every error is sent as a status with
// berth's details. A handler gets no caller without the role of its method.
package rpc
