package reconcile

import (
	"context"
	"slices"

	"github.com/berthd/berth/managers/ledger"
)

// report notes what a pass found that the kernel does otherwise than the ledger says,
// and that no pass can change. What is new is logged. The caller holds mu.
func (l *Loop) report(ctx context.Context, found []ledger.Finding) {
	before := l.Findings()
	for _, f := range found {
		if !slices.Contains(before, f) {
			l.Log.WarnContext(ctx, "the kernel does not do what the ledger says", "finding", f.Text)
		}
	}
	for _, f := range before {
		if !slices.Contains(found, f) {
			l.Log.InfoContext(ctx, "no longer found", "finding", f.Text)
		}
	}
	l.findings.Store(&found)
}

// Findings lists what the last pass found that keeps the kernel from doing what the
// ledger says.
func (l *Loop) Findings() []ledger.Finding {
	if found := l.findings.Load(); found != nil {
		return *found
	}
	return nil
}
