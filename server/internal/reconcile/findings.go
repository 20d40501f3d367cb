package reconcile

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
)

// kindKernel is the kind of the findings: differences between the kernel and the ledger that berth cannot remove.
const kindKernel check.Kind = "kernel"

// Rules that findings of the kernel violate.
const (
	// ruleFrozen: the cgroups above pods are not frozen.
	ruleFrozen check.Rule = "frozen"
	// ruleUnbound: processes in the cgroup of a container belong to a container id.
	ruleUnbound check.Rule = "unbound"
	// ruleConfined: the kernel grants a cgroup the CPUs and memory nodes that are written.
	ruleConfined check.Rule = "confined"
	// ruleMemoryLimit: memory limits are written.
	ruleMemoryLimit check.Rule = "memory-limit"
)

// hold removes memory limits of pods and containers from nodes if they would go below the
// current use. They are not written, so every pass tries them again. Tiers are handled in
// qos.AboveUsage.
func (ns names) hold(nodes []cgroup.Node, seen *cgroup.Snapshot) ([]cgroup.Node, []cgroup.HeldLimit) {
	return cgroup.HoldLimits(nodes, seen, func(n cgroup.Name) bool { return ns.inPod(n) != "" })
}

// whose returns the pod and the container to which a cgroup belongs, as far as it does. cgroups are those of a runtime's
// containers, by id.
func (ns names) whose(view *ledger.View, cgroups map[string]cgroup.Name, name cgroup.Name) ledger.Owner {
	uid := ns.inPod(name)
	for b := range view.BindingsOf(uid) {
		at := cgroups[b.ID]
		if b.Own {
			at = ns.Driver().Parse(b.CgroupPath)
		}
		if at != nil && name.Within(at) {
			return b.Owner
		}
	}
	return ledger.Owner{Pod: uid}
}

// heldFindings returns findings for memory limits that were not written.
func (ns names) heldFindings(held []cgroup.HeldLimit) []check.Finding {
	var out []check.Finding
	for _, h := range held {
		out = append(out, check.Finding{
			Kind: kindKernel, Rule: ruleMemoryLimit, Owner: ledger.Owner{Pod: ns.inPod(h.Name)},
			Text: fmt.Sprintf("the memory limit of %d bytes is not in force in cgroup %s, which uses more: it is set when less is used",
				h.Bytes, ns.pathOf(h.Name)),
		})
	}
	return out
}

// findings are those of the last pass. Reading them does not wait for a pass.
type findings struct {
	last atomic.Pointer[[]check.Finding]
}

// report stores the findings of a pass, and logs new ones.
func (fs *findings) report(ctx context.Context, log *slog.Logger, found []check.Finding) {
	before := fs.all()
	for _, f := range found {
		if !slices.Contains(before, f) {
			log.WarnContext(ctx, "the kernel does not do what the ledger says", "finding", f.Text)
		}
	}
	for _, f := range before {
		if !slices.Contains(found, f) {
			log.InfoContext(ctx, "no longer found", "finding", f.Text)
		}
	}
	fs.last.Store(&found)
}

func (fs *findings) all() []check.Finding {
	if found := fs.last.Load(); found != nil {
		return *found
	}
	return nil
}

// in returns the findings without those that a view has made obsolete.
func (fs *findings) in(view *ledger.View) []check.Finding {
	return slices.DeleteFunc(slices.Clone(fs.all()), func(f check.Finding) bool {
		if f.Rule != ruleUnbound {
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

// Findings returns the findings of the last pass, without those that the ledger has made
// obsolete since.
func (l *Loop) Findings() []check.Finding { return l.findings.in(l.View()) }
