package app

import (
	"context"
	"os"
	"strings"

	"github.com/berthd/berth/api/bundle"
	"github.com/berthd/berth/api/version"
	"github.com/berthd/berth/managers/node"
)

// bundle returns what decisions can be computed again from, without the history.
func (a *App) bundle(ctx context.Context) (*bundle.Bundle, error) {
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return nil, err
	}
	config := a.files()
	b := &bundle.Bundle{
		About:   bundle.About{Format: bundle.Format, Time: a.Now().UTC(), Berthd: version.Of().Version, Kernel: strings.TrimSpace(string(kernel))},
		Machine: a.Machine, Config: &config, Devices: bundle.Resources(a.inventory.Snapshot()),
		Node:  node.Facts{MaxPIDs: a.facts.MaxPIDs, StorageBytes: a.facts.StorageBytes},
		State: a.Ledger.View().Snapshot(),
	}
	b.Metrics, err = a.metrics.Text(ctx)
	return b, err
}
