package state_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	memoryv1 "github.com/berthd/berth/api/berth/memory/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/rpc/rpctest"
	"github.com/berthd/berth/server/internal/rpc/state"
)

// memoryHinter has the memory manager answer with one hint, and knows container "main"
// only.
type memoryHinter struct{}

func (memoryHinter) Hints(_ context.Context, pod workload.Pod, container string) ([]hint.Reply, error) {
	if container != "" && container != "main" {
		return nil, errdefs.NotFoundf("pod %s has no container %q", pod.UID, container)
	}
	return []hint.Reply{
		{Provider: "cpu", Answers: []hint.ResourceAnswer{{Resource: "cpu", Answer: hint.Answer{Kind: hint.NoPreference}}}},
		{Provider: "memory", Answers: []hint.ResourceAnswer{{Resource: "memory", Answer: hint.Answer{
			Kind: hint.Options, Hints: []hint.Hint{{Nodes: 0b11}},
		}}}},
	}, nil
}

const mi = 1 << 20

func serveMemory(t *testing.T, policy string) memoryv1.MemoryServiceClient {
	t.Helper()
	return serveMemoryWith(t, policy, nil)
}

func serveMemoryWith(t *testing.T, policy string, free func() ([]machine.Node, error)) memoryv1.MemoryServiceClient {
	t.Helper()
	m := machinetest.Build("2n4c", machinetest.Memory(0, 1024*mi), machinetest.Memory(1, 512*mi), machinetest.HugePages(0, 2048, 4))
	manager, err := memory.New(memory.Config{
		Policy:         policy,
		Reserved:       []memory.Reservation{{Node: 1, Resource: "memory", Bytes: 512 * mi}},
		SystemReserved: map[workload.Resource]uint64{"memory": 512 * mi},
	}, m)
	if err != nil {
		t.Fatal(err)
	}
	l := ledgertest.New(t, ledger.Rules{Machine: m, Memory: manager.Baseline()})
	pod := ledgertest.With(ledgertest.Pod("a", "main", "other"),
		ledgertest.Memory("main", "memory", "0", 16*mi), ledgertest.Devices("other", "example.com/gpu", "g0"))
	if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(pod); return nil }); err != nil {
		t.Fatal(err)
	}
	return memoryv1.NewMemoryServiceClient(rpctest.Serve(t, func(s grpc.ServiceRegistrar) {
		memoryv1.RegisterMemoryServiceServer(s, state.Memory(state.Parts{Ledger: history.Ledger{Ledger: l}, Hinter: memoryHinter{}},
			func(*ledger.View) (state.MemoryManager, error) { return manager, nil }, free))
	}))
}

func nodes(ids ...uint32) *typesv1.NUMANodeSet { return &typesv1.NUMANodeSet{Ids: ids} }

func TestMemoryState(t *testing.T) {
	t.Parallel()
	client := serveMemory(t, memory.PolicyStatic)
	got, err := client.GetState(t.Context(), &memoryv1.GetStateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := &memoryv1.GetStateResponse{
		Policy: "Static", Revision: 1,
		Nodes: []*memoryv1.NodeState{
			{NumaNode: 0, Group: nodes(0), Blocks: 1, Resources: []*memoryv1.ResourceState{
				{Resource: "hugepages-2Mi", TotalBytes: 8 * mi, AllocatableBytes: 8 * mi, FreeBytes: 8 * mi},
				{Resource: "memory", TotalBytes: 1024 * mi, AllocatableBytes: 1016 * mi, HeldBytes: 16 * mi, FreeBytes: 1000 * mi},
			}},
			{NumaNode: 1, Group: nodes(1), Resources: []*memoryv1.ResourceState{
				{Resource: "memory", TotalBytes: 512 * mi, ReservedBytes: 512 * mi},
			}},
		},
		Assignments: []*typesv1.Claim{{
			PodUid: "a", ContainerName: "main", Provider: "memory", Resource: "memory",
			Payload: &typesv1.Claim_Memory{Memory: &typesv1.MemoryClaim{Blocks: []*typesv1.MemoryBlock{{NumaNodes: nodes(0),
				Bytes: 16 * mi}}}},
		}},
	}
	if !proto.Equal(got, want) {
		t.Errorf("got\n\t%v\nwant\n\t%v", got, want)
	}
	allocatable, err := client.GetAllocatable(t.Context(), &memoryv1.GetAllocatableRequest{})
	if want := (&memoryv1.GetAllocatableResponse{Memory: []*memoryv1.AllocatableMemory{
		{Resource: "hugepages-2Mi", Bytes: 8 * mi}, {Resource: "memory", Bytes: 1016 * mi},
	}}); err != nil || !proto.Equal(allocatable, want) {
		t.Errorf("allocatable %v, %v; want %v", allocatable, err, want)
	}
}

// TestKernelFree: what the kernel has free stands beside what pods hold, where it is known.
func TestKernelFree(t *testing.T) {
	t.Parallel()
	broken := false
	client := serveMemoryWith(t, memory.PolicyStatic, func() ([]machine.Node, error) {
		if broken {
			return nil, errors.New("no /sys")
		}
		return []machine.Node{{ID: 0, MemoryBytes: 5 * mi, HugePages: []machine.HugePages{{SizeKiB: 2048, Count: 3}}}}, nil
	})
	want := map[string]uint64{"0 memory": 5 * mi, "0 hugepages-2Mi": 6 * mi}
	for range 2 {
		state, err := client.GetState(t.Context(), &memoryv1.GetStateRequest{})
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]uint64{}
		for _, n := range state.GetNodes() {
			for _, r := range n.GetResources() {
				if r.KernelFreeBytes != nil {
					got[fmt.Sprint(n.GetNumaNode(), " ", r.GetResource())] = r.GetKernelFreeBytes()
				}
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("the kernel has %v free, want %v", got, want)
		}
		broken, want = true, nil
	}
}

// TestWithoutPolicy: nothing is given out, and what is held from before shows.
func TestMemoryWithoutPolicy(t *testing.T) {
	t.Parallel()
	client := serveMemory(t, memory.PolicyNone)
	got, err := client.GetState(t.Context(), &memoryv1.GetStateRequest{})
	if err != nil || got.GetPolicy() != "None" || len(got.GetNodes()) != 0 || len(got.GetAssignments()) != 1 {
		t.Errorf("got %v, %v", got, err)
	}
	allocatable, err := client.GetAllocatable(t.Context(), &memoryv1.GetAllocatableRequest{})
	if err != nil || len(allocatable.GetMemory()) != 0 {
		t.Errorf("allocatable %v, %v", allocatable, err)
	}
}

func TestMemoryHints(t *testing.T) {
	t.Parallel()
	client := serveMemory(t, memory.PolicyStatic)
	pod := &typesv1.Pod{
		Metadata: &typesv1.PodMetadata{Name: "web", Uid: "w"},
		Spec:     &typesv1.PodSpec{Containers: []*typesv1.Container{{Name: "main"}}},
	}
	got, err := client.GetTopologyHints(t.Context(), &memoryv1.GetTopologyHintsRequest{Pod: pod, ContainerName: "main"})
	want := &memoryv1.GetTopologyHintsResponse{TopologyHints: []*typesv1.TopologyHints{{
		Resource: "memory", Kind: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_OPTIONS,
		Hints: []*typesv1.TopologyHint{{NumaNodes: nodes(0, 1)}},
	}}}
	if err != nil || !proto.Equal(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	for name, row := range map[string]struct {
		req  *memoryv1.GetTopologyHintsRequest
		want rpctest.Failure
	}{
		"no pod": {&memoryv1.GetTopologyHintsRequest{}, rpctest.Failure{
			Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Fields: []string{"pod"},
			Message: "request is invalid: pod: is required",
		}},
		"unknown container": {&memoryv1.GetTopologyHintsRequest{Pod: pod, ContainerName: "who"}, rpctest.Failure{
			Code: codes.NotFound, Reason: "OBJECT_NOT_FOUND", Message: `pod w has no container "who"`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := client.GetTopologyHints(t.Context(), row.req)
			row.want.Check(t, err)
		})
	}
}
