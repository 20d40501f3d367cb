package app

import (
	"context"
	"fmt"
	"os"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/server/internal/host/hugepages"
	"github.com/berthd/berth/server/internal/rpc/node"
)

// setHugePages implements node.Parts.
func (m *machineChanges) setHugePages(ctx context.Context, pools []memory.Pool, dryRun bool) ([]node.PoolResult, error) {
	check := func() error {
		view, set := m.policies.deciding.managers.inFlight()
		return memory.CheckPools(view, pools, set.Node.Requested(view), set.Node.Reservation())
	}
	if err := check(); err != nil {
		return nil, err
	}
	results := make([]node.PoolResult, len(pools))
	changes := make([]hugepages.Change, len(pools))
	for i, p := range pools {
		results[i].Pool = p
		changes[i] = hugepages.Change{Pool: hugepages.Pool{Node: p.Node, SizeKiB: p.SizeKiB}, Want: p.Pages}
		n, _ := m.inUse().Node(p.Node)
		for _, h := range n.HugePages {
			if h.SizeKiB == p.SizeKiB {
				results[i].Before, results[i].Now = h.Count, h.Count
			}
		}
	}
	switch {
	case dryRun:
		return results, nil
	case m.given.Config.Machine != "":
		return nil, errdefs.Preconditionf("huge pages cannot be set: the machine is simulated (machine)")
	case !m.given.Config.Node.SetHugePages:
		return nil, errdefs.Preconditionf("huge pages cannot be set: node.setHugePages of the configuration is false")
	case !m.settingPages.TryLock():
		return nil, errdefs.Unavailablef("another call sets huge pages: try again when it has ended")
	}
	defer m.settingPages.Unlock()
	sys, err := os.OpenRoot("/sys")
	if err != nil {
		return nil, errdefs.Unavailablef("set huge pages: %w", err)
	}
	defer sys.Close()
	defer func() {
		select {
		case m.pagesSet <- struct{}{}:
		default:
		}
	}()
	err = hugepages.Apply(ctx, sys, changes, func() error {
		// From this commit on, nobody gets pages or memory that are gone. Somebody may have got some before.
		if err := m.usePages(context.WithoutCancel(ctx), changes); err != nil {
			return err
		}
		if taken := check(); taken != nil {
			return fmt.Errorf("a pod has got huge pages or memory meanwhile: %w", taken)
		}
		return nil
	})
	for i, p := range changes {
		results[i].Before, results[i].Now = p.Before, p.Now
		if p.Now != p.Before {
			m.given.Log.WarnContext(ctx, "huge pages were set", "numa_node", p.Node, "page_size_kib", p.SizeKiB, "requested", p.Want,
				"before", p.Before, "now", p.Now)
		}
	}
	if err != nil {
		return nil, err
	}
	return results, nil
}

// usePages changes the huge pages of the machine in use.
func (m *machineChanges) usePages(ctx context.Context, changes []hugepages.Change) error {
	m.following.Lock()
	defer m.following.Unlock()
	s := m.inUse().Snapshot()
	for _, change := range changes {
		for i := range s.Nodes {
			for j := range s.Nodes[i].HugePages {
				if p := &s.Nodes[i].HugePages[j]; s.Nodes[i].ID == change.Node && p.SizeKiB == change.SizeKiB {
					p.Count = change.Now
				}
			}
		}
	}
	next, err := machine.New(s)
	if err == nil && !machine.Compare(m.inUse(), next).Empty() {
		err = m.change(ctx, next)
	}
	return err
}
