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

// The provider's claims, all of them, and nobody else's.
func TestHoldings(t *testing.T) {
	t.Parallel()
	view := held(t)
	messages := convert.Holdings(view, "nic")
	got, err := convert.ReadHoldings("holdings", messages)
	if err != nil || len(got) != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	for i, uid := range []string{"a", "b"} {
		record, _ := view.Pod(uid)
		want := slices.DeleteFunc(slices.Clone(record.Claims), func(c ledger.Claim) bool { return c.Provider != "nic" })
		if got[i].UID() != uid || got[i].AdmissionID != "admission-"+uid || got[i].Pod.Name != "pod-"+uid || !reflect.DeepEqual(got[i].Claims, want) {
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
	again := convert.Holdings(draft.View(), "nic")
	if !slices.EqualFunc(messages, again, func(a, b *hintv1.Holding) bool { return proto.Equal(a, b) }) {
		t.Errorf("once %v, then %v", messages, again)
	}
}

func TestReadClaimsOfExternalProviders(t *testing.T) {
	t.Parallel()
	claim := func(change func(*typesv1.Claim)) *typesv1.Claim {
		c := &typesv1.Claim{PodUid: "u", Provider: "nic", Resource: "example.com/nic", Opaque: []byte("1")}
		change(c)
		return c
	}
	devices := func(list ...*typesv1.Device) *typesv1.Claim {
		return claim(func(c *typesv1.Claim) { c.Opaque, c.Device = nil, &typesv1.DeviceClaim{Devices: list} })
	}
	for name, row := range map[string]struct {
		claim *typesv1.Claim
		field string
	}{
		"good":            {claim(func(*typesv1.Claim) {}), ""},
		"good devices":    {devices(&typesv1.Device{Id: "a", Nodes: nodes(1)}), ""},
		"CPUs":            {claim(func(c *typesv1.Claim) { c.Cpu = &typesv1.CPUClaim{Set: &typesv1.CPUSet{Cpus: "0"}} }), "claims[0]"},
		"memory":          {claim(func(c *typesv1.Claim) { c.Memory = []*typesv1.MemoryBlock{{Bytes: 1}} }), "claims[0]"},
		"nothing":         {claim(func(c *typesv1.Claim) { c.Opaque = nil }), "claims[0]"},
		"two payloads":    {claim(func(c *typesv1.Claim) { c.Device = &typesv1.DeviceClaim{} }), "claims[0]"},
		"no resource":     {claim(func(c *typesv1.Claim) { c.Resource = "" }), "claims[0].resource"},
		"no device":       {devices(), "claims[0].device.devices"},
		"device no name":  {devices(&typesv1.Device{}), "claims[0].device.devices[0].id"},
		"node":            {devices(&typesv1.Device{Id: "a", Nodes: nodes(64)}), "claims[0].device.devices[0].nodes"},
		"empty hint":      {claim(func(c *typesv1.Claim) { c.Affinity = &typesv1.Hint{Nodes: nodes()} }), "claims[0].affinity.nodes"},
		"nothing is nil":  {nil, "claims[0].resource"},
		"affinity's node": {claim(func(c *typesv1.Claim) { c.Affinity = &typesv1.Hint{Nodes: nodes(1, 99)} }), "claims[0].affinity.nodes"},
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
		rule  *typesv1.Rule
		field string
	}{
		"good":        {&typesv1.Rule{Universe: nodes(0, 63), Must: nodes(63), Weights: map[uint32]uint64{0: 1}, PreferredSize: 64}, ""},
		"none":        {nil, "answers[0].rule"},
		"no universe": {&typesv1.Rule{}, "answers[0].rule.universe"},
		"node":        {&typesv1.Rule{Universe: nodes(1, 64)}, "answers[0].rule.universe"},
		"must":        {&typesv1.Rule{Universe: nodes(1), Must: nodes(2)}, "answers[0].rule.must"},
		"weight":      {&typesv1.Rule{Universe: nodes(1), Weights: map[uint32]uint64{1: 1, 1 << 31: 2}}, "answers[0].rule.weights[2147483648]"},
		"also":        {&typesv1.Rule{Universe: nodes(1), Also: make([]*typesv1.Threshold, 17)}, "answers[0].rule.also"},
		"also weight": {&typesv1.Rule{Universe: nodes(1), Also: []*typesv1.Threshold{{Weights: map[uint32]uint64{2: 1}}}}, "answers[0].rule.also[0].weights[2]"},
		"giant":       {&typesv1.Rule{Universe: nodes(1), Weights: map[uint32]uint64{1: 1<<57 + 1}}, "answers[0].rule.weights[1]"},
		"giant need":  {&typesv1.Rule{Universe: nodes(1), Need: 1 << 63}, "answers[0].rule.need"},
		"also need":   {&typesv1.Rule{Universe: nodes(1), Also: []*typesv1.Threshold{{Need: 1 << 63}}}, "answers[0].rule.also[0].need"},
		"size":        {&typesv1.Rule{Universe: nodes(1), PreferredSize: 65}, "answers[0].rule.preferred_size"},
	} {
		answers := []*typesv1.Answer{{Resource: "r", Kind: typesv1.AnswerKind_ANSWER_KIND_RULE, Rule: row.rule}}
		got, err := convert.ReadAnswers("answers", answers)
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

// A rule that goes as it is and one that is listed say the same.
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
		got, err := convert.ReadAnswers("answers", listed)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("got %+v, %v; want %+v", got, err, want)
		}
	})
}

// Whatever comes as a provider's holdings is read or refused by field, and what is
// read is written the same.
func FuzzHoldings(f *testing.F) {
	for _, m := range []*hintv1.CommitRequest{
		{}, {Holdings: []*hintv1.Holding{nil, {PodUid: "p", Claims: []*typesv1.Claim{nil, {Resource: "r", Opaque: []byte{1}}}}}},
		{Holdings: []*hintv1.Holding{{PodUid: "p", Claims: []*typesv1.Claim{{
			PodUid: "p", Container: "c", Resource: "r", Affinity: &typesv1.Hint{},
			Device: &typesv1.DeviceClaim{Devices: []*typesv1.Device{{Id: "b", Nodes: nodes(3)}, {Id: "a"}}},
		}}}}},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m := new(hintv1.CommitRequest)
		if proto.Unmarshal(b, m) != nil {
			return
		}
		pods, err := convert.ReadHoldings("holdings", m.GetHoldings())
		if err != nil {
			check(t, err)
			return
		}
		for i, p := range pods {
			again, err := convert.ReadClaims("claims", convert.Claims(p.Claims))
			if err != nil || !reflect.DeepEqual(again, p.Claims) {
				t.Fatalf("claims of holding %d: %+v, then %+v, %v", i, p.Claims, again, err)
			}
		}
	})
}
