package reconcile

import (
	"context"
	"fmt"
	"slices"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/ledger"
)

// hold takes those memory limits of pods and their containers out of nodes that would
// go down below what is in use. What is held is not in force, so it is tried again in
// every pass. Tiers have their own way (qos.AboveUsage).
func (l *Loop) hold(nodes []cgroup.Node, seen *cgroup.Snapshot) ([]cgroup.Node, []cgroup.HeldLimit) {
	return cgroup.HoldLimits(nodes, seen, func(n cgroup.Name) bool { return l.inPod(n) != "" })
}

// inPod gives the pod in whose cgroup a name is, or whose cgroup it is; empty for none.
func (l *Loop) inPod(name cgroup.Name) string {
	for n := name; len(n) > 0; n = n.Parent() {
		if uid, ok := l.Layout.PodUID(n); ok {
			return uid
		}
	}
	return ""
}

// heldFindings says which memory limits are not in force.
func (l *Loop) heldFindings(held []cgroup.HeldLimit) []ledger.Finding {
	var out []ledger.Finding
	for _, h := range held {
		out = append(out, ledger.Finding{
			Kind: ledger.Kernel, Rule: ledger.RuleMemoryLimit, Owner: ledger.Owner{Pod: l.inPod(h.Name)},
			Text: fmt.Sprintf("the memory limit of %d bytes is not in force in cgroup %s, which uses more: it is set when less is used",
				h.Bytes, l.spelt(h.Name)),
		})
	}
	return out
}

// report notes what a pass found that the kernel does otherwise than the ledger says,
// and that no pass can change. What is new is logged. The caller holds mu.
func (l *Loop) report(ctx context.Context, found []ledger.Finding) {
	before := l.foundLast()
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
// ledger says. A pass takes time: what the ledger has settled since is left out.
func (l *Loop) Findings() []ledger.Finding {
	view := l.View()
	return slices.DeleteFunc(slices.Clone(l.foundLast()), func(f ledger.Finding) bool {
		if f.Rule != ledger.RuleUnbound {
			return false
		}
		for b := range view.BindingsOf(f.Owner.Pod) {
			if b.Owner == f.Owner {
				return true
			}
		}
		_, known := view.Pod(f.Owner.Pod)
		return !known
	})
}

func (l *Loop) foundLast() []ledger.Finding {
	if found := l.findings.Load(); found != nil {
		return *found
	}
	return nil
}
