package cgroup

import (
	"context"
	"time"
)

// Usage is what the processes of a cgroup and of all below it use.
type Usage struct {
	// CPU is their time since the cgroup was created.
	CPU time.Duration
	// MemoryBytes includes the page cache. WorkingSetBytes is without its inactive part, as
	// the kubelet computes it.
	MemoryBytes, WorkingSetBytes int64
}

// Meter reads what cgroups use. A tree that is not the kernel's has none.
type Meter interface {
	// Usage is an error of class NotFound for an absent cgroup.
	Usage(ctx context.Context, name Name) (Usage, error)
}
