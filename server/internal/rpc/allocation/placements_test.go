package allocation

import (
	"testing"
	"time"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/placement"
)

// Get returns where containers may run and what delays their start.
func TestPlacements(t *testing.T) {
	t.Parallel()
	got := placements([]placement.Container{
		{
			Key: placement.Key{ID: "id"}, Owner: placement.Owner{Pod: "a", Container: "main"}, Phase: placement.Planned,
			AssignedCPUs: cpuset.Of(1), PossibleCPUs: cpuset.Of(1, 2), Anywhere: true,
			BlockedBy: []placement.Owner{{Pod: "b", Container: "main"}}, BlockedSince: time.Unix(7, 0),
		},
		{Key: placement.Key{Cgroup: "/kubepods/poda/side"}, Owner: placement.Owner{Pod: "a", Container: "side"}, Phase: placement.Running},
	})
	p := got[0]
	if p.GetContainerName() != "main" || p.GetId() != "id" || p.GetPhase() != allocationv1.ContainerPhase_CONTAINER_PHASE_PLANNED ||
		p.GetAssignedCpus().GetList() != "1" ||
		p.GetPossibleCpus().GetList() != "1-2" || !p.GetAnywhere() || p.GetBlockedBy()[0].GetPodUid() != "b" ||
		!p.GetBlockTime().AsTime().Equal(time.Unix(7, 0)) {
		t.Errorf("got %v", p)
	}
	if p := got[1]; p.GetContainerName() != "side" || p.GetId() != "/kubepods/poda/side" || p.GetBlockTime() != nil ||
		p.GetPhase() != allocationv1.ContainerPhase_CONTAINER_PHASE_RUNNING {
		t.Errorf("got %v", p)
	}
}
