package cpu

import (
	"context"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

var _ hint.Resizer = (*Manager)(nil)

// Resize refuses, in the kubelet's words, another request for CPU from a pod that
// is Guaranteed under the static policy, whether it has CPUs of its own or not,
// and from any pod that has some: the number of CPUs never changes in place.
func (m *Manager) Resize(_ context.Context, view *ledger.View, old, wanted *workload.Pod) error {
	if !workload.RequestsChange(old, wanted, workload.CPU) {
		return nil
	}
	demand := m.demand(wanted)
	p, here := view.Pod(old.UID)
	if m.policy == PolicyStatic && demand.Guaranteed || here && p.Holds(Resource) {
		return errdefs.Refuse(errdefs.Infeasible, "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy %q", PolicyStatic)
	}
	return nil
}
