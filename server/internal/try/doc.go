// Package try runs a berthd that leaves nothing behind (berthd --try). It starts berthd as a process of its own, and removes what that
// berthd and its containers have made when it ends.
//
// Words:
//
//   - place: the directory of one try, with the record of its cgroup. Places have fixed names, so a second try of the same user gets
//     berth-try-2.
//   - dead: a place whose lock is free. The try and its berthd hold the lock as long as one of them lives.
//
// Invariants:
//
//   - A place belongs to the user of this process and no other user can write to it; no link leads to it. All else is not touched.
//   - The name of the cgroup is random, and in the record before the cgroup is made. So a cgroup with the recorded name is the try's.
//   - A removal goes by the open directory and the record in memory, not by what others have put at the path meanwhile. It stops at mounts.
//   - The end of the try ends its berthd, also after a kill: berthd's standard input is then at its end.
//
// It does not know what berthd is configured to do: server/internal/config keeps the configuration inside of the place.
package try
