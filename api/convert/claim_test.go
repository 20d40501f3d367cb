package convert_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
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
			Provider: "cpu", Resource: "cpu", Payload: &typesv1.Claim_Cpu{Cpu: &typesv1.CPUClaim{Cpus: &typesv1.CPUSet{List: "0-3,8"},
				Sharing: typesv1.CPUSharing_CPU_SHARING_POD}},
		}},
		"memory": {ledgertest.Memory("main", "hugepages-2Mi", "0,2", 4<<20), &typesv1.Claim{
			ContainerName: "main", Provider: "memory", Resource: "hugepages-2Mi",
			Payload: &typesv1.Claim_Memory{Memory: &typesv1.MemoryClaim{Blocks: []*typesv1.MemoryBlock{{NumaNodes: nodes(0, 2),
				Bytes: 4 << 20}}}},
		}},
		"devices": {gpu, &typesv1.Claim{
			ContainerName: "main", Provider: "device", Resource: "example.com/gpu",
			Payload: &typesv1.Claim_Device{Device: &typesv1.DeviceClaim{Devices: []*typesv1.Device{{Id: "g0", NumaNodes: nodes(1)},
				{Id: "g1", NumaNodes: nodes()}, {Id: "g2"}}}},
		}},
		"of an external provider": {
			ledger.Claim{Owner: ledger.Owner{Pod: "u", Container: "c"}, Provider: "p", Resource: "r", Opaque: []byte{1},
				Affinity: &ledger.Affinity{Nodes: numa.Of(2)}},
			&typesv1.Claim{PodUid: "u", ContainerName: "c", Provider: "p", Resource: "r",
				Payload: &typesv1.Claim_Opaque{Opaque: []byte{1}}, Affinity: &typesv1.TopologyHint{NumaNodes: nodes(2)}},
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

func TestRulesAreListed(t *testing.T) {
	t.Parallel()
	rule := &hint.Rule{Universe: numa.Of(0, 2), Need: 3, PreferredSize: 1}
	rule.Weights[0], rule.Weights[2] = 3, 1
	replies := []hint.Reply{
		{Provider: "device"},
		{Provider: "cpu", Answers: []hint.ResourceAnswer{{Resource: "cpu", Answer: hint.Answer{Kind: hint.ByRule, Rule: rule}}}},
	}
	got := convert.AnswersOf("cpu", replies)
	want := &typesv1.TopologyHints{Resource: "cpu", Kind: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_OPTIONS,
		Hints: []*typesv1.TopologyHint{
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
	if got := convert.AnswersOf("cpu", replies); got[0].GetKind() != typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_CAPACITY_CONSTRAINT ||
		got[0].GetCapacityConstraint().GetNeed() != 3 {
		t.Errorf("a rule over 64 nodes: %v, want it as it is", got)
	}
	rule.Universe, rule.Need = numa.Of(0, 2), 9
	if got := convert.AnswersOf("cpu", replies); got[0].GetKind() != typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_IMPOSSIBLE ||
		got[0].GetReason() == "" {
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
