package cgroupfs

import "time"

// Options say where the tree is and how long a removal may take. The zero value means
// the running system's tree with the defaults.
type Options struct {
	// Mount is where the tree is mounted; "/sys/fs/cgroup" if empty.
	Mount string
	// Required are the controllers without which Open refuses. Nil means those
	// without which the kubelet does not start on v1 (cpu, cpuacct, cpuset,
	// memory), and the same without cpuacct on v2; empty means none.
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
