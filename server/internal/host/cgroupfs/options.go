package cgroupfs

import "time"

// Options are the location of the tree and the time limit of a removal. The zero value is the
// running system's tree with the defaults.
type Options struct {
	// Mount is where the tree is mounted; "/sys/fs/cgroup" if empty.
	Mount string
	// Required are the controllers without which Open fails. Nil means the kubelet's on v1 (cpu,
	// cpuacct, cpuset, memory), and the same without cpuacct on v2; empty means none.
	Required []string
	// OnDemand are v2 controllers that a valid cgroup may lack, because they are enabled
	// when a value of theirs is set.
	OnDemand []string
	// KillTimeout bounds Remove where its context does not; 30 s if zero.
	KillTimeout time.Duration
}

const (
	defaultMount       = "/sys/fs/cgroup"
	defaultKillTimeout = 30 * time.Second
)
