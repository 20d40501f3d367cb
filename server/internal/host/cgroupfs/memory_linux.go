package cgroupfs

import (
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/host/errno"
)

// CheckMemory refuses a memory limit below the cgroup's current use, with an error that wraps
// cgroup.ErrBelowUse. v2 would accept the limit and kill processes until the rest fits. v1 would
// reclaim what it can, and then refuse.
func (d *Driver) CheckMemory(node cgroup.Node) error {
	limit := node.Values.For(d.facts).MemoryBytes
	if limit == nil || *limit < 0 {
		return nil
	}
	limitFile, useFile := "memory.limit_in_bytes", "memory.usage_in_bytes"
	if d.facts.Version == cgroup.V2 {
		limitFile, useFile = "memory.max", "memory.current"
	}
	h, ok := d.hierarchy("memory")
	if !ok {
		return nil
	}
	have, err := d.readLimit(h, node.Name, limitFile)
	if err != nil || have >= 0 && have <= *limit {
		return ignoreGone(err)
	}
	used, err := d.readLimit(h, node.Name, useFile)
	if err != nil || used <= *limit {
		return ignoreGone(err)
	}
	return errdefs.Preconditionf("write \"%d\" to %s: %w: %d bytes", *limit, limitFile, cgroup.ErrBelowUse, used)
}

func (t *tree) readLimit(h hierarchy, name cgroup.Name, file string) (int64, error) {
	text, err := t.read(h, name, file)
	if err != nil {
		return 0, err
	}
	n, err := parseLimit(text)
	return n, errno.Classify(err)
}
