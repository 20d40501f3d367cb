package convert_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

func nodes(ids ...uint32) *typesv1.NUMANodeSet { return &typesv1.NUMANodeSet{Ids: ids} }

func TestHint(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		from *ledger.Affinity
		want *typesv1.TopologyHint
	}{
		"none":       {nil, nil},
		"no opinion": {&ledger.Affinity{Any: true, Preferred: true}, &typesv1.TopologyHint{Preferred: true}},
		"nodes":      {&ledger.Affinity{Nodes: numa.Of(63, 0)}, &typesv1.TopologyHint{NumaNodes: nodes(0, 63)}},
	} {
		if got := convert.Hint(row.from); !proto.Equal(got, row.want) || (got == nil) != (row.want == nil) {
			t.Errorf("%s: %v, want %v", name, got, row.want)
		}
	}
}

// TestHintsAreApart: they lie in one piece of memory, and who changes one of them
// changes no other.
func TestHintsAreApart(t *testing.T) {
	t.Parallel()
	list := []ledger.Affinity{{Nodes: numa.Of(0)}, {Any: true}, {Nodes: numa.Of(1, 2)}, {Preferred: true}, {Nodes: numa.Of(3)}}
	for i := range list {
		hints := convert.Hints(list)
		if m := hints[i].GetNumaNodes(); m != nil {
			m.Ids = append(m.Ids, 9, 9, 9)
		}
		hints[i].Preferred = true
		for k := range list {
			if want := convert.Hint(&list[k]); k != i && !proto.Equal(hints[k], want) {
				t.Errorf("hint %d is %v after a change of %d, want %v", k, hints[k], i, want)
			}
		}
	}
}

func TestClaim(t *testing.T) {
	t.Parallel()
	gpu := ledgertest.Devices("main", "example.com/gpu")
	gpu.Devices = &ledger.Devices{
		Devices:  []ledger.Device{{ID: "g0", Nodes: numa.Of(1), Topology: true}, {ID: "g1", Topology: true}, {ID: "g2"}},
		Response: []byte("for the runtime"),
	}
	for name, row := range map[string]struct {
		from ledger.Claim
		want *typesv1.Claim
	}{
		"cpus": {ledgertest.CPUs("", "0-3,8", ledger.CPUPod), &typesv1.Claim{
			Provider: "cpu", Resource: "cpu", Payload: &typesv1.Claim_Cpu{Cpu: &typesv1.CPUClaim{Cpus: &typesv1.CPUSet{List: "0-3,8"}, Sharing: typesv1.CPUSharing_CPU_SHARING_POD}},
		}},
		"memory": {ledgertest.Memory("main", "hugepages-2Mi", "0,2", 4<<20), &typesv1.Claim{
			ContainerName: "main", Provider: "memory", Resource: "hugepages-2Mi",
			Payload: &typesv1.Claim_Memory{Memory: &typesv1.MemoryClaim{Blocks: []*typesv1.MemoryBlock{{NumaNodes: nodes(0, 2), Bytes: 4 << 20}}}},
		}},
		"devices": {gpu, &typesv1.Claim{
			ContainerName: "main", Provider: "device", Resource: "example.com/gpu",
			Payload: &typesv1.Claim_Device{Device: &typesv1.DeviceClaim{Devices: []*typesv1.Device{{Id: "g0", NumaNodes: nodes(1)}, {Id: "g1", NumaNodes: nodes()}, {Id: "g2"}}}},
		}},
		"of an external provider": {
			ledger.Claim{Owner: ledger.Owner{Pod: "u", Container: "c"}, Provider: "p", Resource: "r", Opaque: []byte{1}, Affinity: &ledger.Affinity{Nodes: numa.Of(2)}},
			&typesv1.Claim{PodUid: "u", ContainerName: "c", Provider: "p", Resource: "r", Payload: &typesv1.Claim_Opaque{Opaque: []byte{1}}, Affinity: &typesv1.TopologyHint{NumaNodes: nodes(2)}},
		},
	} {
		if got := convert.Claim(&row.from); !proto.Equal(got, row.want) {
			t.Errorf("%s: got\n\t%v\nwant\n\t%v", name, got, row.want)
		}
	}
	if got := convert.Claim(nil); got != nil {
		t.Errorf("no claim is %v, want nil", got)
	}
}

func TestTrace(t *testing.T) {
	t.Parallel()
	claim := ledgertest.Exclusive("main", "2")
	l, _ := ledgertest.Open(t, ledger.Options{Journal: ledgertest.NewJournal(), Rules: ledger.Rules{Machine: machinetest.Build("4c")}, Epoch: 5})
	view := l.View()
	got := convert.Trace(view, &ledger.Trace{
		AdmissionID: "a", Pod: "u", Namespace: "ns", Name: "n", Generation: 7, DryRun: true, Reason: "R", Message: "m",
		Steps: []ledger.Step{
			{
				Kind: ledger.StepAnswered, Container: "main", Provider: "cpu", Resource: "cpu", Answer: "options",
				Hints: []ledger.Affinity{{Nodes: numa.Of(0), Preferred: true}, {Any: true}}, Omitted: 3,
			},
			{Kind: ledger.StepMerged, Affinity: &ledger.Affinity{Nodes: numa.Of(0)}, Approximate: true},
			{Kind: ledger.StepPlanned, Claim: &claim},
			{Kind: ledger.StepRefused, Text: "t", Shortages: []ledger.Shortage{
				{
					Resource: "cpu", Nodes: "0", Need: 4, Free: 1, Held: 2, Withheld: 3, Why: "reserved",
					Holders: []ledger.Owner{{Pod: "v", Container: "c"}, {Pod: "w"}}, MoreHolders: 4,
				},
			}},
		},
		Suggestions: []ledger.Suggestion{
			{Kind: ledger.SuggestRequest, Text: "t", Requests: []ledger.RequestChange{{Container: "main", Resource: "cpu", From: 4, To: 1}}},
			{Kind: ledger.SuggestPolicy, Policy: "best-effort", Scope: "pod"},
			{Kind: ledger.SuggestRemoval, Remove: []string{"v", "w"}},
		},
		Tried: 5,
	})
	want := &typesv1.Trace{
		AdmissionId: "a", PodUid: "u", Namespace: "ns", Name: "n", Revision: 5<<10 + 7, DryRun: true, Reason: "R", Message: "m",
		Steps: []*typesv1.TraceStep{
			{
				Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_ANSWERED, ContainerName: "main", Provider: "cpu", Resource: "cpu", Answer: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_OPTIONS,
				Hints: []*typesv1.TopologyHint{{NumaNodes: nodes(0), Preferred: true}, {}}, Omitted: 3,
			},
			{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_MERGED, Affinity: &typesv1.TopologyHint{NumaNodes: nodes(0)}, Approximate: true},
			{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_PLANNED, Claim: &typesv1.Claim{Payload: &typesv1.Claim_Cpu{Cpu: convert.Claim(&claim).GetCpu()}}},
			{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_REFUSED, Text: "t", Shortages: []*typesv1.Shortage{
				{
					Resource: "cpu", NumaNodes: &typesv1.NUMANodeSet{Ids: []uint32{0}}, Need: 4, Free: 1, Held: 2, Withheld: 3, Why: "reserved",
					Holders: []*typesv1.ContainerRef{{PodUid: "v", ContainerName: "c"}, {PodUid: "w"}}, MoreHolders: 4,
				},
			}},
		},
		Suggestions: []*typesv1.Suggestion{
			{Kind: typesv1.SuggestionKind_SUGGESTION_KIND_REQUEST, Text: "t", Requests: []*typesv1.RequestChange{{ContainerName: "main", Resource: "cpu", Current: 4, Proposed: 1}}},
			{Kind: typesv1.SuggestionKind_SUGGESTION_KIND_POLICY, Policy: "best-effort", Scope: "pod"},
			{Kind: typesv1.SuggestionKind_SUGGESTION_KIND_REMOVAL, RemovePodUids: []string{"v", "w"}},
		},
		Tried: 5,
	}
	if !proto.Equal(got, want) {
		t.Errorf("got\n\t%v\nwant\n\t%v", got, want)
	}
	if got := convert.Trace(view, nil); got != nil {
		t.Errorf("no trace is %v, want nil", got)
	}
}

func TestPods(t *testing.T) {
	t.Parallel()
	l := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("4c2t")})
	whole := ledgertest.With(ledgertest.Pod("u2", "init:prepare", "main", "rest"),
		ledgertest.CPUs("", "2-5", ledger.CPUPod), ledgertest.CPUs("main", "2-3", ledger.CPUPodExclusive), ledgertest.CPUs("rest", "4-5", ledger.CPUPodShared))
	whole.Claims[1].Affinity = &ledger.Affinity{Nodes: numa.Of(0), Preferred: true}
	whole.CgroupParent, whole.AdmittedAt = "/kubepods/podu2", time.Unix(99, 5)
	view, err := l.Update(t.Context(), func(d *ledger.Draft) error {
		d.PutPod(whole)
		for _, uid := range []string{"u1", "u3", "u4"} {
			p := ledgertest.Pod(uid)
			p.Pod.Namespace = map[string]string{"u1": "z", "u3": "default", "u4": "a"}[uid]
			p.Pod.Name = "pod-u2"
			p.QoS = workload.Burstable
			d.PutPod(p)
		}
		d.Bind(ledger.Binding{ID: "new", Owner: ledger.Owner{Pod: "u2", Container: "main"}, Sequence: 2})
		d.Bind(ledger.Binding{ID: "old", Owner: ledger.Owner{Pod: "u2", Container: "main"}, Sequence: 1})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	claims := convert.Claims(whole.Claims)
	for _, c := range claims { // the allocation around them has their owners
		c.PodUid, c.ContainerName = "", ""
	}
	want := &typesv1.PodAllocation{
		Uid: "u2", Namespace: "default", Name: "pod-u2", QosClass: typesv1.QOSClass_QOS_CLASS_GUARANTEED,
		CgroupParent: "/kubepods/podu2", AdmissionId: "admission-u2", AdmitTime: timestamppb.New(time.Unix(99, 5)), Owner: "default",
		Claims: claims[:1],
		Containers: []*typesv1.ContainerAllocation{
			{ContainerName: "prepare", Role: typesv1.ContainerRole_CONTAINER_ROLE_INIT},
			{
				ContainerName: "main", Role: typesv1.ContainerRole_CONTAINER_ROLE_APP, Cpus: &typesv1.CPUSet{List: "2-3"}, ExclusiveCpus: true,
				Affinity: &typesv1.TopologyHint{NumaNodes: nodes(0), Preferred: true}, Claims: claims[1:2], ContainerIds: []string{"old", "new"},
				CpuLocations: []*typesv1.CPULocation{{Cpu: 2, Core: 2}, {Cpu: 3, Core: 3}},
			},
			{ContainerName: "rest", Role: typesv1.ContainerRole_CONTAINER_ROLE_APP, Cpus: &typesv1.CPUSet{List: "4-5"}, Claims: claims[2:]},
		},
	}
	if got := convert.Allocation(view, whole); !proto.Equal(got, want) {
		t.Errorf("got\n\t%v\nwant\n\t%v", got, want)
	}
	if got := convert.Container(view, whole, "main"); !proto.Equal(got, want.GetContainers()[1]) {
		t.Errorf("got\n\t%v\nwant\n\t%v", got, want.GetContainers()[1])
	}
}

func TestRulesAreListed(t *testing.T) {
	t.Parallel()
	rule := &hint.Rule{Universe: numa.Of(0, 2), Need: 3, PreferredSize: 1}
	rule.Weights[0], rule.Weights[2] = 3, 1
	replies := []hint.Reply{
		{Provider: "device"},
		{Provider: "cpu", Answers: []hint.ResourceAnswer{{Resource: "cpu", Answer: hint.Answer{Kind: hint.ByRule, Rule: rule}}}},
	}
	got := convert.AnswersOf("cpu", replies)
	want := &typesv1.TopologyHints{Resource: "cpu", Kind: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_OPTIONS, Hints: []*typesv1.TopologyHint{
		{NumaNodes: nodes(0), Preferred: true}, {NumaNodes: nodes(0, 2)},
	}}
	if len(got) != 1 || !proto.Equal(got[0], want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, provider := range []string{"device", "memory"} {
		if got := convert.AnswersOf(provider, replies); len(got) != 0 {
			t.Errorf("%s answers %v; want nothing", provider, got)
		}
	}
	rule.Universe = ^numa.Mask(0)
	if got := convert.AnswersOf("cpu", replies); got[0].GetKind() != typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_CAPACITY_CONSTRAINT || got[0].GetCapacityConstraint().GetNeed() != 3 {
		t.Errorf("a rule over 64 nodes: %v, want it as it is", got)
	}
	rule.Universe, rule.Need = numa.Of(0, 2), 9
	if got := convert.AnswersOf("cpu", replies); got[0].GetKind() != typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_IMPOSSIBLE || got[0].GetReason() == "" {
		t.Errorf("a rule without a set: %v, want impossible", got)
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	if vs := convert.Names("a", "x", "b", strings.Repeat("y", 512)); vs != nil {
		t.Errorf("good names: %v", vs)
	}
	got := convert.Names("a", "", "b", "ok", "c", strings.Repeat("y", 513))
	if len(got) != 2 || got[0].String() != "a: is required" || got[1].String() != "c: 513 characters: expected at most 512" {
		t.Errorf("bad names: %v", got)
	}
}

func TestCPUSetAndMask(t *testing.T) {
	t.Parallel()
	if got := convert.CPUSet(cpuset.Set{}).GetList(); got != "" {
		t.Errorf("the empty set is %q", got)
	}
	if got := convert.Mask(0); got == nil || len(got.GetIds()) != 0 {
		t.Errorf("the empty mask is %v", got)
	}
	for class, want := range map[workload.QoSClass]typesv1.QOSClass{
		workload.Guaranteed: typesv1.QOSClass_QOS_CLASS_GUARANTEED, workload.Burstable: typesv1.QOSClass_QOS_CLASS_BURSTABLE,
		workload.BestEffort: typesv1.QOSClass_QOS_CLASS_BEST_EFFORT, "": typesv1.QOSClass_QOS_CLASS_UNSPECIFIED,
	} {
		if got := convert.QoS(class); got != want {
			t.Errorf("class %q is %v, want %v", class, got, want)
		}
	}
}
