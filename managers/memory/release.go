package memory

import (
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
)

var _ hint.Finisher = (*Manager)(nil)

// Finished returns what a pod's init containers still hold when a container of it
// starts: those before it have run to their end then, and what no later container
// took over is to be given back. Sidecars keep what they hold. Dropping a claim
// leaves later containers theirs, since claims keep their size.
func (*Manager) Finished(pod *ledger.Pod, starting string) []ledger.Claim {
	var out []ledger.Claim
	for _, c := range pod.Pod.Walk() {
		if c.Name == starting {
			return out
		}
		for i := range pod.Claims {
			claim := &pod.Claims[i]
			if c.Role.Feeds() && claim.Provider == Name && claim.Owner.Container == c.Name {
				out = append(out, *claim)
			}
		}
	}
	return nil
}
