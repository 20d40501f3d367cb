package memory

import (
	"context"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

var _ hint.Resizer = (*Manager)(nil)

// Resize refuses, in the kubelet's words, another request for memory from a pod
// that is Guaranteed under the static policy, and from any pod whose memory is
// pinned: what was given out never changes in place.
func (m *Manager) Resize(_ context.Context, view *ledger.View, old, wanted *workload.Pod) error {
	if !workload.RequestsChange(old, wanted, workload.Memory) {
		return nil
	}
	f := workload.Features{PodLevelResources: m.features.PodLevelResources}
	guaranteed := wanted.QoSClass(f) == workload.Guaranteed
	p, here := view.Pod(old.UID)
	if m.policy == PolicyStatic && guaranteed || here && p.Holds(string(workload.Memory)) {
		return errdefs.Refuse(errdefs.Infeasible, "Resize is infeasible for Guaranteed Pods alongside Memory Manager policy %q", PolicyStatic)
	}
	return nil
}
