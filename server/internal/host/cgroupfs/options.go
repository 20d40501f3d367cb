package cgroupfs

import (
	"time"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
)

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
	// Setter writes; nil opens the tree to read it. The one of package ocicgroups is not imported here, so that a program that only reads
	// is not linked with its library.
	Setter Setter
}

// Setter puts the values of cgroups that are present into force, and moves processes. dir and paths are directories.
type Setter interface {
	SetV1(v cgroup.Values, f cgroup.Facts, paths map[string]string) error
	SetV2(v cgroup.Values, f cgroup.Facts, dir string) error
	Join(dir string, pid int) error
}

var errReadOnly = errdefs.Internalf("the cgroup tree was opened to read it, without a Setter")

const (
	defaultMount       = "/sys/fs/cgroup"
	defaultKillTimeout = 30 * time.Second
)
