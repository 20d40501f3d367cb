package app

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/host/procfs"
	"github.com/berthd/berth/server/internal/metrics"
	"github.com/berthd/berth/server/internal/usage"
)

// buildMetrics gives the metrics what they read.
func (a *App) buildMetrics(context.Context) error {
	sources := metrics.Sources{
		View: a.Ledger.View, Settings: a.settings, Sockets: a.registry.Sockets, Kernel: a.reconcile.Findings, Phases: a.reconcile.Phases,
		Allocatable: func() workload.Quantities { return a.inForce().Node.Allocatable() },
		Watchers:    func() int { return a.history.Streams() },
		LedgerBytes: func() int64 {
			info, err := os.Stat(filepath.Join(a.Config.StateDir, LedgerFile))
			if err != nil {
				return 0
			}
			return info.Size()
		},
		Plugins: a.Device.Inventory,
	}
	if meter, ok := a.tree.(cgroup.Meter); ok {
		sources.Usage = func(ctx context.Context, b ledger.Binding) (cgroup.Usage, bool) {
			name, ok := a.reconcile.CgroupOf(b)
			if !ok {
				return cgroup.Usage{}, false
			}
			used, err := meter.Usage(ctx, name)
			return used, err == nil
		}
	}
	a.metrics.Start(sources)
	return nil
}

// usageReader reads the CPU and memory usage of CPUs and containers for the API.
func (a *App) usageReader() *usage.Reader {
	s := usage.Sources{View: a.Ledger.View, Drifts: a.reconcile.Drifts, Now: a.Now}
	if meter, ok := a.tree.(cgroup.Meter); ok {
		s.Details = func(ctx context.Context, b ledger.Binding) (cgroup.Details, bool) {
			name, ok := a.reconcile.CgroupOf(b)
			if !ok {
				return cgroup.Details{}, false
			}
			used, err := meter.Details(ctx, name)
			return used, err == nil
		}
	}
	if a.Config.Machine == "" {
		s.CPUs = func() (map[int]time.Duration, error) { return procfs.CPUTimes(os.DirFS("/proc")) }
	}
	return usage.New(s)
}
