package cgroup

import (
	"errors"
	"slices"
)

// ErrBelowUse tells why a tree refuses a memory limit: the cgroup uses more. v2 would
// kill until the rest fits.
var ErrBelowUse = errors.New("the cgroup uses more memory than that")

// HeldLimit is a memory limit that has to wait until the cgroup uses less.
type HeldLimit struct {
	Name Name
	// Bytes is the limit, UsedBytes what the cgroup uses.
	Bytes, UsedBytes int64
}

// HoldLimits takes memory limits out of those nodes that only names, if they would go
// down to what the cgroup uses, or below, and returns them. Where there is no cgroup
// yet, nothing is held. nodes stay as they are.
func HoldLimits(nodes []Node, seen *Snapshot, only func(Name) bool) (out []Node, held []HeldLimit) {
	at := make(map[string]*Observed, len(seen.Nodes))
	for i := range seen.Nodes {
		at[seen.Nodes[i].Name.String()] = &seen.Nodes[i]
	}
	out = nodes
	for i := range nodes {
		limit, o := nodes[i].Values.MemoryBytes, at[nodes[i].Name.String()]
		if limit == nil || *limit <= 0 || o == nil || o.State == Absent || o.MemoryUsageBytes < *limit || !only(nodes[i].Name) {
			continue
		}
		if have := o.Values.MemoryBytes; have != nil && *have >= 0 && *have <= *limit {
			continue
		}
		if held == nil {
			out = slices.Clone(nodes)
		}
		held = append(held, HeldLimit{nodes[i].Name, *limit, o.MemoryUsageBytes})
		out[i].Values.MemoryBytes, out[i].Values.MemorySwapBytes = nil, nil
	}
	return out, held
}
