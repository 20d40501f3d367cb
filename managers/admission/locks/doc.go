// Package locks has the locks of package admission, whose waits end with a context.
//
// Words:
//
//   - user: who a call is made for; root has no name.
//   - queue: the waiting calls of one user, in the order in which they came.
//   - name: what a lock of Named is for, such as a pod's uid.
//
// Invariants: a lock has one holder at most. It is not free while a call waits for it. A call whose context ends leaves its
// queue, and a lock that was passed to it meanwhile goes to the next call. A name takes memory only while its lock is held or
// waited for.
//
// Other modules may import this package, and every release may change it.
package locks
