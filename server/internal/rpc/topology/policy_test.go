package topology_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/server/internal/rpc/rpctest"
	handler "github.com/berthd/berth/server/internal/rpc/topology"
)

// fakePolicies keeps the policy and finds the same outlook for every change.
type fakePolicies struct {
	view            func() *ledger.View
	now, configured config.Policy
	override        *ledger.Override
	outlook         []admission.PodOutlook
	fail            error
	dry             []bool
}

func (f *fakePolicies) Policy() (config.Policy, *ledger.Override) { return f.now, f.override }

func (f *fakePolicies) SetPolicy(_ context.Context, change func(now, configured config.Policy) config.Policy, dryRun bool) (
	config.Policy, bool, admission.Outlook, error,
) {
	f.dry = append(f.dry, dryRun)
	next := change(f.now, f.configured)
	view := f.view()
	rules := view.Rules()
	rules.ReservedCPUs = next.Reserved.CPUs
	o := admission.Outlook{Pods: f.outlook, Before: view, After: view.Under(rules)}
	if !dryRun && f.fail == nil {
		f.now = next
	}
	return next, true, o, f.fail
}

func TestSetPolicy(t *testing.T) {
	t.Parallel()
	l := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("2n4c2t")})
	for uid, cpus := range map[string]string{"a": "2-3", "b": "4"} {
		pod := ledgertest.With(ledgertest.Pod(uid, "main"), ledgertest.Exclusive("main", cpus))
		if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(pod); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	pod := func(uid string) *ledger.Pod { p, _ := l.View().Pod(uid); return p }
	f := &fakePolicies{
		view: l.View, now: config.Default().Policy(), configured: config.Default().Policy(),
		override: &ledger.Override{SetAt: time.Unix(1000, 0)},
		outlook: []admission.PodOutlook{
			{Pod: pod("a"), Fate: admission.Refused, Reason: errdefs.TopologyAffinityError, Message: "no"},
			{Pod: pod("b"), Fate: admission.Same, Findings: []check.Finding{{Text: "holds 4"}}},
		},
	}
	f.now.CPU.Policy = "static"
	client := topologyv1.NewTopologyServiceClient(rpctest.Serve(t, func(s grpc.ServiceRegistrar) {
		topologyv1.RegisterTopologyServiceServer(s, handler.New(f, l, nil, convert.Reader{}))
	}))
	set := func(req *topologyv1.SetPolicyRequest) *topologyv1.SetPolicyResponse {
		t.Helper()
		got, err := client.SetPolicy(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	everything := &topologyv1.SetPolicyRequest{
		DryRun: true, TopologyPolicy: new("restricted"), TopologyScope: new("pod"),
		TopologyOptions: &topologyv1.Values{Values: map[string]string{"prefer-closest-numa-nodes": "true"}},
		CpuOptions:      &topologyv1.Values{Values: map[string]string{"full-pcpus-only": "true"}},
		MemoryPolicy:    new("Static"),
		ReservedMemory: &topologyv1.ReservedMemories{Nodes: []*topologyv1.ReservedMemory{
			{NumaNode: 1, Limits: map[string]string{"memory": "1Gi"}},
		}},
		SystemReserved: &topologyv1.Values{Values: map[string]string{"memory": "1Gi"}},
		KubeReserved:   &topologyv1.Values{}, ReservedCpus: &typesv1.CPUSet{List: "0-1"},
		EvictionHard: &topologyv1.Values{Values: map[string]string{"memory.available": "5%"}}, TopologyMaxNodes: new(uint32(12)),
		TopologyPlanning: new("container"),
	}
	want := &topologyv1.SetPolicyResponse{
		Settings: &topologyv1.PolicySettings{
			TopologyPolicy: "restricted", TopologyScope: "pod", TopologyOptions: everything.TopologyOptions.GetValues(),
			CpuPolicy: "static", CpuOptions: everything.CpuOptions.GetValues(), MemoryPolicy: "Static",
			ReservedMemory: everything.ReservedMemory.GetNodes(), SystemReserved: everything.SystemReserved.GetValues(),
			ReservedCpus: &typesv1.CPUSet{List: "0-1"},
			EvictionHard: everything.EvictionHard.GetValues(), TopologyMaxNodes: 12, TopologyPlanning: "container",
		},
		Changed: true,
		Pods: []*topologyv1.PodFate{
			{
				Uid: "a", Namespace: pod("a").Pod.Namespace, Name: pod("a").Pod.Name, Fate: topologyv1.Fate_FATE_REFUSED,
				Reason: "TopologyAffinityError", Message: "no",
			},
			{
				Uid: "b", Namespace: pod("b").Pod.Namespace, Name: pod("b").Pod.Name, Fate: topologyv1.Fate_FATE_SAME,
				Grandfathered: []string{"holds 4"},
			},
		},
		Revision: 2, SharedBefore: &typesv1.CPUSet{List: "0-1,5-15"}, SharedAfter: &typesv1.CPUSet{List: "0-1,5-15"},
		ReservedBefore: &typesv1.CPUSet{}, ReservedAfter: &typesv1.CPUSet{List: "0-1"},
	}
	if got := set(everything); !proto.Equal(got, want) {
		t.Errorf("got\n%v\nwant\n%v", got, want)
	}
	everything.DryRun = false
	want.Revision = l.View().Revision()
	if got := set(everything); !proto.Equal(got, want) {
		t.Errorf("got\n%v\nwant\n%v", got, want)
	}
	if len(f.dry) != 2 || !f.dry[0] || f.dry[1] {
		t.Errorf("dry runs %v", f.dry)
	}
	if got, err := client.GetPolicy(t.Context(), &topologyv1.GetPolicyRequest{}); err != nil || !got.GetOverridden() ||
		got.GetSetTime().GetSeconds() != 1000 {
		t.Errorf("%v, %v", got, err)
	}

	// What is absent stays; what is there and empty empties.
	got := set(&topologyv1.SetPolicyRequest{
		CpuOptions: &topologyv1.Values{}, ReservedMemory: &topologyv1.ReservedMemories{}, ReservedCpus: &typesv1.CPUSet{},
		EvictionHard: &topologyv1.Values{},
	}).GetSettings()
	if got.GetTopologyPolicy() != "restricted" || got.GetTopologyMaxNodes() != 12 || got.GetReservedCpus().GetList() != "" ||
		len(got.GetCpuOptions())+len(got.GetReservedMemory())+len(got.GetEvictionHard()) > 0 {
		t.Errorf("settings %v", got)
	}
	got = set(&topologyv1.SetPolicyRequest{FromConfiguration: true, TopologyPolicy: new("best-effort")}).GetSettings()
	if got.GetTopologyPolicy() != "best-effort" || got.GetCpuPolicy() != "none" || len(got.GetSystemReserved()) > 0 ||
		got.GetEvictionHard()["memory.available"] != "100Mi" {
		t.Errorf("settings %v", got)
	}

	_, err := client.SetPolicy(t.Context(), &topologyv1.SetPolicyRequest{ReservedCpus: &typesv1.CPUSet{List: "3-1"}})
	rpctest.Failure{
		Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Fields: []string{"reserved_cpus.list"},
		Message: `request is invalid: reserved_cpus.list: cpu list "3-1": range 3-1 ends before it starts`,
	}.Check(t, err)
	f.fail = errdefs.Preconditionf("the shared pool would be empty")
	_, err = client.SetPolicy(t.Context(), &topologyv1.SetPolicyRequest{ReservedCpus: &typesv1.CPUSet{List: cpuset.Of(0).String()}})
	rpctest.Failure{Code: codes.FailedPrecondition, Reason: "PRECONDITION_FAILED", Message: "the shared pool would be empty"}.Check(t, err)
}
