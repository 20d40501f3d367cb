package memtree

import (
	"bytes"
	"context"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
)

var _ cgroup.Records = (*Tree)(nil)

// ReadRecord implements cgroup.Records.
func (t *Tree) ReadRecord(ctx context.Context, name cgroup.Name) ([]byte, error) {
	if err := begin(ctx, "read the claim record of", name); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if g := t.find(name); g != nil {
		return bytes.Clone(g.record), nil
	}
	return nil, nil
}

// WriteRecord implements cgroup.Records.
func (t *Tree) WriteRecord(ctx context.Context, name cgroup.Name, record []byte) error {
	if err := begin(ctx, "write the claim record of", name); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	g := t.find(name)
	switch {
	case g != nil:
		g.record = bytes.Clone(record)
	case record != nil:
		return errdefs.NotFoundf("write the claim record of cgroup %s: %w", name, errNoEntry)
	}
	return nil
}
