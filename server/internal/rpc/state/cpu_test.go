package state_test

import (
	"context"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	cpuv1 "github.com/berthd/berth/api/berth/cpu/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/rpc/rpctest"
	"github.com/berthd/berth/server/internal/rpc/state"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var _ state.Hinter = (*admission.Engine)(nil)

// cpuHinter has every provider answer with one hint, and knows containers "main"
// and "big" only; "big" has a rule that is too large to list.
type cpuHinter struct{}

func (cpuHinter) Hints(_ context.Context, pod workload.Pod, container string) ([]hint.Reply, error) {
	answer := hint.Answer{Kind: hint.Options, Hints: []hint.Hint{{Nodes: 0b10, Preferred: true}}}
	switch container {
	case "", "main":
	case "big":
		answer = hint.Answer{Kind: hint.ByRule, Rule: &hint.Rule{Universe: ^numa.Mask(0), Need: 1}}
	default:
		return nil, errdefs.NotFoundf("pod %s has no container %q", pod.UID, container)
	}
	return []hint.Reply{
		{Provider: "device", Answers: []hint.ResourceAnswer{{Resource: "example.com/gpu", Answer: hint.Answer{Kind: hint.NoPreference}}}},
		{Provider: "cpu", Answers: []hint.ResourceAnswer{{Resource: "cpu", Answer: answer}}},
	}, nil
}

func serveCPUs(t *testing.T) cpuv1.CPUServiceClient {
	t.Helper()
	m := machinetest.Build("2n4c2t")
	manager, err := cpu.New(cpu.Config{
		Policy: cpu.PolicyStatic, Options: map[string]string{cpu.FullPCPUsOnly: "true"},
		ReservedCPUs: cpuset.Of(0, 8), Features: cpu.Features{BetaOptions: true},
	}, m)
	if err != nil {
		t.Fatal(err)
	}
	l := ledgertest.New(t, ledger.Rules{Machine: m, ReservedCPUs: manager.Reserved()})
	pod := ledgertest.With(ledgertest.Pod("a", "main", "other"),
		ledgertest.Exclusive("main", "1,9"), ledgertest.Devices("other", "example.com/gpu", "g0"))
	if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(pod); return nil }); err != nil {
		t.Fatal(err)
	}
	return cpuv1.NewCPUServiceClient(rpctest.Serve(t, func(s grpc.ServiceRegistrar) {
		cpuv1.RegisterCPUServiceServer(s, state.CPUs(state.Parts{Ledger: history.Ledger{Ledger: l}, Hinter: cpuHinter{}}, manager))
	}))
}

func TestCPUState(t *testing.T) {
	t.Parallel()
	client := serveCPUs(t)
	got, err := client.GetState(t.Context(), &cpuv1.GetStateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := &cpuv1.GetStateResponse{
		Policy: "static", Options: map[string]string{"full-pcpus-only": "true"},
		All: &typesv1.CPUSet{List: "0-15"}, Reserved: &typesv1.CPUSet{List: "0,8"},
		Shared: &typesv1.CPUSet{List: "0,2-8,10-15"}, Exclusive: &typesv1.CPUSet{List: "1,9"},
		Assignments: []*typesv1.Claim{{
			PodUid: "a", ContainerName: "main", Provider: "cpu", Resource: "cpu",
			Payload: &typesv1.Claim_Cpu{Cpu: &typesv1.CPUClaim{Cpus: &typesv1.CPUSet{List: "1,9"},
				Sharing: typesv1.CPUSharing_CPU_SHARING_EXCLUSIVE}},
		}},
		Revision: 1,
	}
	if !proto.Equal(got, want) {
		t.Errorf("got\n\t%v\nwant\n\t%v", got, want)
	}
	allocatable, err := client.GetAllocatable(t.Context(), &cpuv1.GetAllocatableRequest{})
	if err != nil || allocatable.GetCpus().GetList() != "1-7,9-15" {
		t.Errorf("allocatable %v, %v; want 1-7,9-15", allocatable, err)
	}
}

func TestCPUHints(t *testing.T) {
	t.Parallel()
	client := serveCPUs(t)
	pod := &typesv1.Pod{
		Metadata: &typesv1.PodMetadata{Name: "web", Uid: "w"},
		Spec:     &typesv1.PodSpec{Containers: []*typesv1.Container{{Name: "main"}}},
	}
	for _, container := range []string{"", "main"} {
		got, err := client.GetTopologyHints(t.Context(), &cpuv1.GetTopologyHintsRequest{Pod: pod, ContainerName: container})
		if err != nil {
			t.Fatal(err)
		}
		want := &cpuv1.GetTopologyHintsResponse{TopologyHints: []*typesv1.TopologyHints{{
			Resource: "cpu", Kind: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_OPTIONS,
			Hints: []*typesv1.TopologyHint{{NumaNodes: &typesv1.NUMANodeSet{Ids: []uint32{1}}, Preferred: true}},
		}}}
		if !proto.Equal(got, want) {
			t.Errorf("container %q: got %v, want %v", container, got, want)
		}
	}
	// What is too long to be listed comes as a rule.
	big, err := client.GetTopologyHints(t.Context(), &cpuv1.GetTopologyHintsRequest{Pod: pod, ContainerName: "big"})
	if err != nil || len(big.GetTopologyHints()) != 1 ||
		len(big.GetTopologyHints()[0].GetCapacityConstraint().GetUniverse().GetIds()) != 64 {
		t.Errorf("2^64 sets: %v, %v", big, err)
	}
	for name, row := range map[string]struct {
		req  *cpuv1.GetTopologyHintsRequest
		want rpctest.Failure
	}{
		"no pod": {&cpuv1.GetTopologyHintsRequest{}, rpctest.Failure{
			Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Fields: []string{"pod"},
			Message: "request is invalid: pod: is required",
		}},
		"unknown container": {&cpuv1.GetTopologyHintsRequest{Pod: pod, ContainerName: "who"}, rpctest.Failure{
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
