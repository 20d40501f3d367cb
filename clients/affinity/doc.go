// Package affinity puts processes on CPUs that no cgroup of theirs keeps them to: those of
// pod sandboxes, which container runtimes start on all CPUs and for which neither CRI nor
// NRI has a value for that.
//
// Not here: CPUs of containers. Their cpusets are written by berthd or by the runtime.
package affinity
