// Package numamaps reads on which NUMA nodes the huge pages of other processes are: /proc/PID/numa_maps,
// numa(7).
//
// The kernel permits this to a process that may trace the other one. It permits no process that restricts itself
// with Landlock to trace processes outside of its restrictions. So berthd, which does, cannot read the
// file itself. A second process of berthd reads it: the reader. The
// reader has CAP_SYS_PTRACE, and nothing else that berthd does not have. It only gets ids of processes, and
// only returns amounts.
//
// The counters of a cgroup by NUMA node (hugetlb.SIZE.numa_stat) are no substitute: the kernel does not change them
// when a page moves (hugetlb_cgroup_migrate in mm/hugetlb_cgroup.c).
//
// Words:
//
//   - reader: the process that runs Serve.
//   - Client: its counterpart in berthd.
//
// Invariants: a process that cannot be read holds up no other one, and few of them never end a
// reader. The reader ends when its connection ends, which is when berthd ends.
package numamaps
