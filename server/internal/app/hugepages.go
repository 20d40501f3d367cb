package app

import (
	"context"
	"errors"
	"os"
	"sync"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/server/internal/host/hugepages"
	"github.com/berthd/berth/server/internal/rpc/node"
)

// pageChanges are changes of huge pages by calls.
type pageChanges struct {
	mu *sync.Mutex // held while pages are set
	// made has an element after a change that berthd may not have noticed.
	made chan struct{}
}

func newPageChanges() pageChanges { return pageChanges{new(sync.Mutex), make(chan struct{}, 1)} }

// setHugePages implements node.Parts.
func (a *App) setHugePages(ctx context.Context, pools []memory.Pool, dryRun bool) ([]node.PoolResult, error) {
	check := func() error {
		n, view := a.inForce().Node, a.Ledger.View()
		return memory.CheckPools(view, pools, n.Requested(view), n.Reservation())
	}
	if err := check(); err != nil {
		return nil, err
	}
	results := make([]node.PoolResult, len(pools))
	for i, p := range pools {
		n, _ := a.machine().Node(p.Node)
		for _, h := range n.HugePages {
			if h.SizeKiB == p.SizeKiB {
				results[i] = node.PoolResult{Pool: p, Before: h.Count, Now: h.Count}
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
	for i := range results {
		r := &results[i]
		pool := hugepages.Pool{Node: r.Node, SizeKiB: r.SizeKiB}
		if r.Before, err = hugepages.Read(sys.FS(), pool); err != nil {
			return nil, err
		}
		if r.Now, err = hugepages.Set(ctx, sys, pool, r.Pages); err != nil {
			return nil, err
		}
		a.Log.WarnContext(ctx, "huge pages were set", "numa_node", r.Node, "page_size_kib", r.SizeKiB, "requested", r.Pages, "before", r.Before, "now", r.Now)
	}
	// A pod may have got pages in between that are gone now.
	if taken := check(); taken != nil {
		for _, r := range results {
			_, back := hugepages.Set(context.WithoutCancel(ctx), sys, hugepages.Pool{Node: r.Node, SizeKiB: r.SizeKiB}, r.Before)
			err = errors.Join(err, back)
		}
		return nil, errors.Join(errdefs.Unavailablef("a pod has got huge pages or memory meanwhile, so the numbers before were set again: %s", taken.Error()), err)
	}
	return results, nil
}
