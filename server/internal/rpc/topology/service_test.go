package topology_test

import (
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/node"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/server/internal/rpc/rpctest"
	handler "github.com/berthd/berth/server/internal/rpc/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func serve(t *testing.T) topologyv1.TopologyServiceClient {
	t.Helper()
	l := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("2n4c2t")})
	cpus := ledgertest.Exclusive("main", "2-3")
	cpus.Affinity = &ledger.Affinity{Nodes: 1, Preferred: true}
	pod := ledgertest.With(ledgertest.Pod("a", "main", "other"), cpus, ledgertest.Devices("main", "example.com/gpu", "g0"))
	if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(pod); return nil }); err != nil {
		t.Fatal(err)
	}
	policies := &fakePolicies{view: l.View, configured: config.Default().Policy()}
	policies.now = config.Default().Policy()
	policies.now.Topology = config.Topology{
		Policy: topology.Restricted, Scope: "pod", Options: map[string]string{topology.OptionPreferClosest: "true"},
	}
	return topologyv1.NewTopologyServiceClient(rpctest.Serve(t, func(s grpc.ServiceRegistrar) {
		topologyv1.RegisterTopologyServiceServer(s, handler.New(policies, l, hinter{}, convert.Reader{}))
	}))
}

// on is a hint of some nodes.
func on(preferred bool, nodes ...uint32) *typesv1.TopologyHint {
	return &typesv1.TopologyHint{NumaNodes: &typesv1.NUMANodeSet{Ids: nodes}, Preferred: preferred}
}

// options is an answer with hints.
func options(resource string, hints ...*typesv1.TopologyHint) *typesv1.TopologyHints {
	return &typesv1.TopologyHints{Resource: resource, Kind: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_OPTIONS, Hints: hints}
}

func TestGetPolicy(t *testing.T) {
	t.Parallel()
	got, err := serve(t).GetPolicy(t.Context(), &topologyv1.GetPolicyRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := &topologyv1.GetPolicyResponse{
		Policy: "restricted", Scope: "pod", Options: map[string]string{"prefer-closest-numa-nodes": "true"},
		NumaNodes: &typesv1.NUMANodeSet{Ids: []uint32{0, 1}},
		Settings: &topologyv1.PolicySettings{
			TopologyPolicy: "restricted", TopologyScope: "pod", TopologyOptions: map[string]string{"prefer-closest-numa-nodes": "true"},
			CpuPolicy: "none", MemoryPolicy: "None", ReservedCpus: &typesv1.CPUSet{},
			EvictionHard: node.DefaultEviction(),
		},
	}
	if !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestMerge(t *testing.T) {
	t.Parallel()
	client := serve(t)
	// CPUs sit on either node, or on both; the device is near node 1.
	cpus := &topologyv1.ProviderHints{Provider: "cpu", TopologyHints: []*typesv1.TopologyHints{options("cpu", on(true, 0), on(true, 1),
		on(false, 0, 1))}}
	gpu := &topologyv1.ProviderHints{Provider: "device", TopologyHints: []*typesv1.TopologyHints{options("example.com/gpu", on(true, 1))}}
	wide := &topologyv1.ProviderHints{Provider: "memory", TopologyHints: []*typesv1.TopologyHints{options("memory", on(false, 0, 1))}}
	silent := &topologyv1.ProviderHints{Provider: "silent"}
	for name, row := range map[string]struct {
		policy    string
		providers []*topologyv1.ProviderHints
		hint      *typesv1.TopologyHint
		admit     bool
	}{
		"configured":        {"", []*topologyv1.ProviderHints{cpus, gpu, silent}, on(true, 1), true},
		"configured, wide":  {"", []*topologyv1.ProviderHints{cpus, wide}, on(false, 0, 1), false},
		"best-effort, wide": {"best-effort", []*topologyv1.ProviderHints{cpus, wide}, on(false, 0, 1), true},
		"nobody asked":      {"none", []*topologyv1.ProviderHints{cpus}, &typesv1.TopologyHint{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := client.Merge(t.Context(), &topologyv1.MergeRequest{Policy: row.policy, Providers: row.providers})
			if err != nil {
				t.Fatal(err)
			}
			if !proto.Equal(got.GetHint(), row.hint) || got.GetAdmit() != row.admit || got.GetExplanation() == "" {
				t.Errorf("got %v, want %v, %v and an explanation", got, row.hint, row.admit)
			}
		})
	}
}

func TestMergeFailures(t *testing.T) {
	t.Parallel()
	client := serve(t)
	answers := func(a ...*typesv1.TopologyHints) *topologyv1.MergeRequest {
		return &topologyv1.MergeRequest{Providers: []*topologyv1.ProviderHints{{Provider: "cpu"}, {Provider: "device", TopologyHints: a}}}
	}
	for name, row := range map[string]struct {
		req  *topologyv1.MergeRequest
		want rpctest.Failure
	}{
		"unknown policy": {&topologyv1.MergeRequest{Policy: "best"}, rpctest.Failure{
			Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Message: `unknown policy: "best"`,
		}},
		"options without a policy": {&topologyv1.MergeRequest{Options: map[string]string{"a": "b"}}, rpctest.Failure{
			Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Fields: []string{"options"},
			Message: "request is invalid: options: expected none without a policy: they go with the configured one",
		}},
		"kind and resource missing": {answers(&typesv1.TopologyHints{}), rpctest.Failure{
			Code: codes.InvalidArgument, Reason: "REQUEST_INVALID",
			Fields:  []string{"providers[1].topology_hints[0].resource", "providers[1].topology_hints[0].kind"},
			Message: "request is invalid: providers[1].topology_hints[0].resource: is required (and 1 more)",
		}},
		"no such node": {answers(options("gpu", on(true, 64))), rpctest.Failure{
			Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Fields: []string{"providers[1].topology_hints[0].hints[0].numa_nodes"},
			Message: "request is invalid: providers[1].topology_hints[0].hints[0].numa_nodes: node 64: expected 0 to 63",
		}},
		"no hints": {answers(options("gpu")), rpctest.Failure{
			Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Fields: []string{"providers[1].topology_hints[0].hints"},
			Message: "request is invalid: providers[1].topology_hints[0].hints: expected at least one hint; an answer without any is IMPOSSIBLE",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := client.Merge(t.Context(), row.req)
			row.want.Check(t, err)
		})
	}
}

func TestGetAffinity(t *testing.T) {
	t.Parallel()
	client := serve(t)
	for container, want := range map[string]*typesv1.TopologyHint{"main": on(true, 0), "other": nil} {
		got, err := client.GetAffinity(t.Context(),
			&topologyv1.GetAffinityRequest{Subject: &topologyv1.GetAffinityRequest_PodUid{PodUid: "a"}, ContainerName: container})
		if err != nil || !proto.Equal(got, &topologyv1.GetAffinityResponse{Hint: want}) {
			t.Errorf("container %s: %v, %v; want %v", container, got, err, want)
		}
	}
	for name, row := range map[string]struct {
		req  *topologyv1.GetAffinityRequest
		want rpctest.Failure
	}{
		"nothing": {&topologyv1.GetAffinityRequest{}, rpctest.Failure{
			Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Fields: []string{"pod_uid", "container_name"},
			Message: "request is invalid: pod_uid: is required (and 1 more)",
		}},
		"unknown pod": {&topologyv1.GetAffinityRequest{Subject: &topologyv1.GetAffinityRequest_PodUid{PodUid: "b"},
			ContainerName: "main"}, rpctest.Failure{
			Code: codes.NotFound, Reason: "POD_NOT_FOUND", Message: "pod b is not admitted",
		}},
		"unknown container": {&topologyv1.GetAffinityRequest{Subject: &topologyv1.GetAffinityRequest_PodUid{PodUid: "a"},
			ContainerName: "who"}, rpctest.Failure{
			Code: codes.NotFound, Reason: "CONTAINER_NOT_FOUND", Message: `pod a has no container "who"`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := client.GetAffinity(t.Context(), row.req)
			row.want.Check(t, err)
		})
	}
}
