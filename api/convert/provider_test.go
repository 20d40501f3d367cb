package convert_test

import (
	"reflect"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
)

// held is a view of two pods, both of which hold something of nic.
func held(t *testing.T) *ledger.View {
	card := ledgertest.Devices("main", "example.com/nic", "eth1", "eth0")
	card.Provider, card.Affinity = "nic", &ledger.Affinity{Nodes: numa.Of(1), Preferred: true}
	card.Devices.Devices[0].Nodes, card.Devices.Devices[0].Topology = numa.Of(1), true
	draft := ledger.NewDraft(ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("2n2c")}).View())
	draft.PutPod(ledgertest.With(ledgertest.Pod("a", "init:i", "main", "idle"), card,
		ledger.Claim{Owner: ledger.Owner{Container: "i"}, Provider: "nic", Resource: "example.com/channel", Opaque: []byte("3")},
		ledgertest.Exclusive("main", "1")))
	draft.PutPod(ledgertest.With(ledgertest.Pod("b"), ledger.Claim{Provider: "nic", Resource: "example.com/channel", Opaque: []byte("4")}))
	draft.PutPod(ledgertest.With(ledgertest.Pod("c", "main"), ledgertest.Exclusive("main", "2")))
	return draft.View()
}

// All claims of the provider, and no others.
func TestProviderAllocations(t *testing.T) {
	t.Parallel()
	view := held(t)
	messages := convert.ProviderAllocations(view, "nic")
	got, err := convert.ReadAllocations("allocations", messages)
	if err != nil || len(got) != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	for i, uid := range []string{"a", "b"} {
		record, _ := view.Pod(uid)
		want := slices.DeleteFunc(slices.Clone(record.Claims), func(c ledger.Claim) bool { return c.Provider != "nic" })
		if got[i].UID() != uid || got[i].AdmissionID != "admission-"+uid || got[i].Pod.Name != "pod-"+uid ||
			!reflect.DeepEqual(got[i].Claims, want) {
			t.Errorf("pod %s: %+v", uid, got[i])
		}
	}
	if c := got[0].Pod.Containers; len(c) != 2 || c[0].Name != "i" || c[1].Name != "main" {
		t.Errorf("containers %+v", c)
	}
	// Nothing of what the ledger does not send is needed to send it again.
	draft := ledger.NewDraft(ledgertest.New(t, view.Rules()).View())
	for _, p := range got {
		draft.PutPod(p)
	}
	again := convert.ProviderAllocations(draft.View(), "nic")
	if !slices.EqualFunc(messages, again, func(a, b *hintv1.ProviderAllocation) bool { return proto.Equal(a, b) }) {
		t.Errorf("once %v, then %v", messages, again)
	}
}

func TestReadClaimsOfExternalProviders(t *testing.T) {
	t.Parallel()
	claim := func(change func(*typesv1.Claim)) *typesv1.Claim {
		c := &typesv1.Claim{PodUid: "u", Provider: "nic", Resource: "example.com/nic", Payload: &typesv1.Claim_Opaque{Opaque: []byte("1")}}
		change(c)
		return c
	}
	devices := func(list ...*typesv1.Device) *typesv1.Claim {
		return claim(func(c *typesv1.Claim) { c.Payload = &typesv1.Claim_Device{Device: &typesv1.DeviceClaim{Devices: list}} })
	}
	for name, row := range map[string]struct {
		claim *typesv1.Claim
		field string
	}{
		"good":         {claim(func(*typesv1.Claim) {}), ""},
		"good devices": {devices(&typesv1.Device{Id: "a", NumaNodes: nodes(1)}), ""},
		"CPUs": {claim(func(c *typesv1.Claim) {
			c.Payload = &typesv1.Claim_Cpu{Cpu: &typesv1.CPUClaim{Cpus: &typesv1.CPUSet{List: "0"}}}
		}), "claims[0]"},
		"memory": {claim(func(c *typesv1.Claim) {
			c.Payload = &typesv1.Claim_Memory{Memory: &typesv1.MemoryClaim{Blocks: []*typesv1.MemoryBlock{{Bytes: 1}}}}
		}), "claims[0]"},
		"nothing":        {claim(func(c *typesv1.Claim) { c.Payload = nil }), "claims[0]"},
		"no bytes":       {claim(func(c *typesv1.Claim) { c.Payload = &typesv1.Claim_Opaque{} }), "claims[0]"},
		"no resource":    {claim(func(c *typesv1.Claim) { c.Resource = "" }), "claims[0].resource"},
		"no device":      {devices(), "claims[0].device.devices"},
		"device no name": {devices(&typesv1.Device{}), "claims[0].device.devices[0].id"},
		"node":           {devices(&typesv1.Device{Id: "a", NumaNodes: nodes(64)}), "claims[0].device.devices[0].numa_nodes"},
		"empty hint": {claim(func(c *typesv1.Claim) { c.Affinity = &typesv1.TopologyHint{NumaNodes: nodes()} }),
			"claims[0].affinity.numa_nodes"},
		"nothing is nil": {nil, "claims[0].resource"},
		"affinity's node": {claim(func(c *typesv1.Claim) { c.Affinity = &typesv1.TopologyHint{NumaNodes: nodes(1, 99)} }),
			"claims[0].affinity.numa_nodes"},
	} {
		_, err := convert.ReadClaims("claims", []*typesv1.Claim{row.claim})
		switch {
		case row.field == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case row.field != "":
			check(t, err)
			if got := fields(err); got[0].Field != row.field {
				t.Errorf("%s: violations %v, want one of %s", name, got, row.field)
			}
		}
	}
}

func TestReadRule(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		rule  *typesv1.CapacityConstraint
		field string
	}{
		"good": {&typesv1.CapacityConstraint{Universe: nodes(0, 63), Must: nodes(63), Weights: map[uint32]uint64{0: 1},
			PreferredSize: 64}, ""},
		"none":        {nil, "topology_hints[0].capacity_constraint"},
		"no universe": {&typesv1.CapacityConstraint{}, "topology_hints[0].capacity_constraint.universe"},
		"node":        {&typesv1.CapacityConstraint{Universe: nodes(1, 64)}, "topology_hints[0].capacity_constraint.universe"},
		"must":        {&typesv1.CapacityConstraint{Universe: nodes(1), Must: nodes(2)}, "topology_hints[0].capacity_constraint.must"},
		"weight": {&typesv1.CapacityConstraint{Universe: nodes(1), Weights: map[uint32]uint64{1: 1, 1 << 31: 2}},
			"topology_hints[0].capacity_constraint.weights[2147483648]"},
		"also": {&typesv1.CapacityConstraint{Universe: nodes(1), Also: make([]*typesv1.CapacityThreshold, 17)},
			"topology_hints[0].capacity_constraint.also"},
		"also weight": {&typesv1.CapacityConstraint{Universe: nodes(1),
			Also: []*typesv1.CapacityThreshold{{Weights: map[uint32]uint64{2: 1}}}},
			"topology_hints[0].capacity_constraint.also[0].weights[2]"},
		"giant": {&typesv1.CapacityConstraint{Universe: nodes(1), Weights: map[uint32]uint64{1: 1<<57 + 1}},
			"topology_hints[0].capacity_constraint.weights[1]"},
		"giant need": {&typesv1.CapacityConstraint{Universe: nodes(1), Need: 1 << 63}, "topology_hints[0].capacity_constraint.need"},
		"also need": {&typesv1.CapacityConstraint{Universe: nodes(1), Also: []*typesv1.CapacityThreshold{{Need: 1 << 63}}},
			"topology_hints[0].capacity_constraint.also[0].need"},
		"size": {&typesv1.CapacityConstraint{Universe: nodes(1), PreferredSize: 65},
			"topology_hints[0].capacity_constraint.preferred_size"},
	} {
		answers := []*typesv1.TopologyHints{{Resource: "r", Kind: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_CAPACITY_CONSTRAINT,
			CapacityConstraint: row.rule}}
		got, err := convert.ReadAnswers("topology_hints", answers)
		switch {
		case row.field == "" && (err != nil || got[0].Kind != hint.ByRule || got[0].Rule.Weights[0] != 1):
			t.Errorf("%s: %+v, %v", name, got, err)
		case row.field != "":
			check(t, err)
			if v := fields(err); v[0].Field != row.field {
				t.Errorf("%s: violations %v, want one of %s", name, v, row.field)
			}
		}
	}
}

// A rule that is sent as a rule and one that is sent as a list mean the same.
func TestListedRuleSaysTheSame(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rule := drawRule(t)
		rule.Universe &= 1<<6 - 1
		rule.Must &= rule.Universe
		rule.Need %= 8
		list, err := rule.Expand(1 << 6)
		if err != nil {
			t.Fatal(err)
		}
		want := []hint.ResourceAnswer{{Resource: "r", Answer: hint.Answer{Kind: hint.Options, Hints: list}}}
		if len(list) == 0 {
			want[0].Answer = hint.Answer{Kind: hint.Impossible, Reason: "no set of nodes is allowed by the rule"}
		}
		listed := convert.Answers([]hint.ResourceAnswer{{Resource: "r", Answer: hint.Answer{Kind: hint.ByRule, Rule: rule}}})
		got, err := convert.ReadAnswers("topology_hints", listed)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("got %+v, %v; want %+v", got, err, want)
		}
	})
}

// Whatever comes as a provider's allocations is read or refused by field, and what is
// read is written the same.
func FuzzProviderAllocations(f *testing.F) {
	for _, m := range []*hintv1.AllocationUpdate{
		{}, {Changed: []*hintv1.ProviderAllocation{nil, {PodUid: "p", Claims: []*typesv1.Claim{nil,
			{Resource: "r", Payload: &typesv1.Claim_Opaque{Opaque: []byte{1}}}}}}},
		{Changed: []*hintv1.ProviderAllocation{{PodUid: "p", Claims: []*typesv1.Claim{{
			PodUid: "p", ContainerName: "c", Resource: "r", Affinity: &typesv1.TopologyHint{},
			Payload: &typesv1.Claim_Device{Device: &typesv1.DeviceClaim{Devices: []*typesv1.Device{{Id: "b", NumaNodes: nodes(3)},
				{Id: "a"}}}},
		}}}}},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m := new(hintv1.AllocationUpdate)
		if proto.Unmarshal(b, m) != nil {
			return
		}
		pods, err := convert.ReadAllocations("allocations", m.GetChanged())
		if err != nil {
			check(t, err)
			return
		}
		for i, p := range pods {
			again, err := convert.ReadClaims("claims", convert.Claims(p.Claims))
			if err != nil || !reflect.DeepEqual(again, p.Claims) {
				t.Fatalf("claims of allocation %d: %+v, then %+v, %v", i, p.Claims, again, err)
			}
		}
	})
}
