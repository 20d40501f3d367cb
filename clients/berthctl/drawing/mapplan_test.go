package drawing

import (
	"reflect"
	"testing"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berthctl/nodemap"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/numa"
)

// TestAdd: a map with one more pod has all that the pod would hold. A pod that is there is not there twice.
func TestAdd(t *testing.T) {
	t.Parallel()
	state := func() nodemap.State {
		return nodemap.State{
			Shared: cpuset.Range(0, 3), Memory: []nodemap.Memory{{Node: 0, Resource: "memory", Allocatable: 8}},
			Devices: []nodemap.Device{{Resource: "example.com/gpu", ID: "g0"}, {Resource: "example.com/gpu", ID: "g1"}},
		}
	}
	pod := &typesv1.PodAllocation{
		Uid: "new", Namespace: "default", Name: "big", Claims: []*typesv1.Claim{{Resource: "memory", Payload: &typesv1.Claim_Memory{
			Memory: &typesv1.MemoryClaim{Blocks: []*typesv1.MemoryBlock{{NumaNodes: &typesv1.NUMANodeSet{Ids: []uint32{0}}, Bytes: 2}}},
		}}},
		Containers: []*typesv1.ContainerAllocation{{ContainerName: "app", Claims: []*typesv1.Claim{
			{Resource: "cpu", Payload: &typesv1.Claim_Cpu{Cpu: &typesv1.CPUClaim{Cpus: &typesv1.CPUSet{List: "1-2"}}}},
			{Resource: "example.com/gpu", Payload: &typesv1.Claim_Device{Device: &typesv1.DeviceClaim{Devices: []*typesv1.Device{{Id: "g1"}}}}},
		}}},
	}
	add := func(to nodemap.State) nodemap.State {
		Add(&to, pod.GetUid(), command.PodName(pod), command.AllClaims(pod))
		return to
	}
	before := state()
	after := add(before)
	want := state()
	want.Shared, want.Memory[0].Held, want.Devices[1].Pod = cpuset.Of(0, 3), 2, "new"
	want.Pods = []nodemap.Pod{{UID: "new", Name: "default/big", CPUs: cpuset.Of(1, 2), New: true,
		Blocks: []nodemap.Block{{Resource: "memory", Nodes: numa.Of(0), Bytes: 2}}}}
	if !reflect.DeepEqual(after, want) {
		t.Errorf("got\n%+v, want\n%+v", after, want)
	}
	if !reflect.DeepEqual(before, state()) {
		t.Errorf("the machine before has changed: %+v", before)
	}
	if again := add(after); !reflect.DeepEqual(again, want) {
		t.Errorf("a pod that is there: %+v", again)
	}
}
