package memory

import (
	"context"
	"strings"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
)

// Pages selects how huge pages are compared with those that the kernel has free at the
// moment.
type Pages struct {
	// Free reads what the kernel has free, and returns the view of that moment. On another view,
	// such as one without a pod, the pages that pods hold less than on this one are free, too.
	Free func() ([]FreePages, *ledger.View, error)
	// Wait defers a pod that lacks pages, since the processes that use them may
	// free them; otherwise the pod is refused.
	Wait bool
}

// PageGuard is that comparison on the hint bus. It allocates nothing, and refuses in
// the second phase a pod whose huge pages are in use.
type PageGuard struct {
	Manager *Manager
	Pages
}

var _ hint.Validator = (*PageGuard)(nil)

// PageGuardName is the name of the guard on the hint bus, and PagesTaken the
// condition of pods that wait because of it.
const (
	PageGuardName = "hugepages"
	PagesTaken    = "HugePagesTaken"
)

// Name implements hint.Member.
func (*PageGuard) Name() string { return PageGuardName }

// Validate implements hint.Validator. A refusal has the reason that the kubelet
// gives where the node as a whole has too few huge pages (OutOfhugepages-2Mi), and
// names all amounts.
func (g *PageGuard) Validate(_ context.Context, view *ledger.View, req hint.Request) error {
	p, known := view.Pod(req.Pod.UID)
	if !known || !wantsPages(p) || req.Running { // the pages of a running pod may be in use
		return nil
	}
	free, present, err := g.Free()
	if err != nil {
		return err
	}
	without := ledger.NewDraft(view)
	without.RemovePod(req.Pod.UID)
	taken := pagesTaken(g.Manager.checkPages(present, without.View(), view, free))
	if len(taken) == 0 {
		return nil
	}
	var cause error = taken
	if g.Wait {
		cause = pagesAwaited{taken}
	}
	refusal := errdefs.Refuse(errdefs.OutOf(taken[0].Resource), "%w", cause)
	refusal.Provider, refusal.Resource = PageGuardName, taken[0].Resource
	return refusal
}

// wantsPages reports whether a pod holds anything but regular memory.
func wantsPages(p *ledger.Pod) bool {
	for i := range p.Claims {
		if c := &p.Claims[i]; c.Provider == Name && c.Resource != "memory" {
			return true
		}
	}
	return false
}

// pagesTaken are the pages that the kernel does not have free; never empty.
type pagesTaken []PageShortage

// Error names all amounts.
func (e pagesTaken) Error() string {
	texts := make([]string, len(e))
	for i, s := range e {
		texts[i] = s.String()
	}
	return strings.Join(texts, "; ")
}

// pagesAwaited is the same where the pod is deferred.
type pagesAwaited struct{ pagesTaken }

// Waits implements hint.Waiter.
func (e pagesAwaited) Waits() hint.Wait {
	return hint.Wait{Condition: PagesTaken, Resource: e.pagesTaken[0].Resource}
}
