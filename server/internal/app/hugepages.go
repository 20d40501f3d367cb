package app

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/server/internal/host/hugepages"
	"github.com/berthd/berth/server/internal/rpc/node"
)

// pageChanges are changes of huge pages by calls.
type pageChanges struct {
	mu *sync.Mutex // held while pages are set
	// following is held from the reading of a machine to its commit. Otherwise a machine that was read before the pages were set
	// could come into force after them, and a CPU that went offline meanwhile could come back.
	following *sync.Mutex
	// made has an element after a change that berthd may not have noticed.
	made chan struct{}
}

func newPageChanges() pageChanges {
	return pageChanges{new(sync.Mutex), new(sync.Mutex), make(chan struct{}, 1)}
}

// setHugePages implements node.Parts.
func (a *App) setHugePages(ctx context.Context, pools []memory.Pool, dryRun bool) ([]node.PoolResult, error) {
	check := func() error {
		view, set := a.inFlight()
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
		n, _ := a.machine().Node(p.Node)
		for _, h := range n.HugePages {
			if h.SizeKiB == p.SizeKiB {
				results[i].Before, results[i].Now = h.Count, h.Count
			}
		}
	}
	switch {
	case dryRun:
		return results, nil
	case a.Config.Machine != "":
		return nil, errdefs.Preconditionf("huge pages cannot be set: the machine is simulated (machine)")
	case !a.Config.Node.SetHugePages:
		return nil, errdefs.Preconditionf("huge pages cannot be set: node.setHugePages of the configuration is false")
	case !a.pages.mu.TryLock():
		return nil, errdefs.Unavailablef("another call sets huge pages: try again when it has ended")
	}
	defer a.pages.mu.Unlock()
	sys, err := os.OpenRoot("/sys")
	if err != nil {
		return nil, errdefs.Unavailablef("set huge pages: %w", err)
	}
	defer sys.Close()
	defer func() {
		select {
		case a.pages.made <- struct{}{}:
		default:
		}
	}()
	err = hugepages.Apply(ctx, sys, changes, func() error {
		// From this commit on, nobody gets pages or memory that are gone. Somebody may have got some before.
		if err := a.usePages(context.WithoutCancel(ctx), changes); err != nil {
			return err
		}
		if taken := check(); taken != nil {
			return fmt.Errorf("a pod has got huge pages or memory meanwhile: %w", taken)
		}
		return nil
	})
	for i, c := range changes {
		results[i].Before, results[i].Now = c.Before, c.Now
		if c.Now != c.Before {
			a.Log.WarnContext(ctx, "huge pages were set", "numa_node", c.Node, "page_size_kib", c.SizeKiB, "requested", c.Want, "before",
				c.Before, "now", c.Now)
		}
	}
	if err != nil {
		return nil, err
	}
	return results, nil
}

// usePages changes the huge pages of the machine in use.
func (a *App) usePages(ctx context.Context, changes []hugepages.Change) error {
	a.pages.following.Lock()
	defer a.pages.following.Unlock()
	s := a.machine().Snapshot()
	for _, c := range changes {
		for i := range s.Nodes {
			for j := range s.Nodes[i].HugePages {
				if p := &s.Nodes[i].HugePages[j]; s.Nodes[i].ID == c.Node && p.SizeKiB == c.SizeKiB {
					p.Count = c.Now
				}
			}
		}
	}
	m, err := machine.New(s)
	if err == nil && !machine.Compare(a.machine(), m).Empty() {
		err = a.changeMachine(ctx, m)
	}
	return err
}
