package convert_test

import (
	"fmt"
	"reflect"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// drawAmounts draws none or some amounts; nil and empty are the same on the wire.
func drawAmounts(t *rapid.T, label string, names ...workload.Resource) workload.Quantities {
	q := rapid.MapOf(rapid.SampledFrom(names), rapid.Int64Range(0, 1<<40)).Draw(t, label)
	if len(q) == 0 {
		return nil
	}
	return q
}

// drawPod draws a valid pod.
func drawPod(t *rapid.T) workload.Pod {
	p := workload.Pod{
		UID: rapid.StringMatching(`[a-zA-Z0-9]([a-zA-Z0-9.-]{0,20}[a-zA-Z0-9])?`).Draw(t, "uid"), Namespace: "ns", Name: "pod",
		QoS: rapid.SampledFrom([]workload.QoSClass{"", workload.Guaranteed, workload.Burstable,
			workload.BestEffort}).Draw(t, "class"),
		RestartPolicy: rapid.SampledFrom([]string{"", "Always", "OnFailure"}).Draw(t, "restart policy"),
		HostNetwork:   rapid.Bool().Draw(t, "host network"),
		Overhead:      drawAmounts(t, "overhead", workload.CPU, workload.Memory),
	}
	if rapid.Bool().Draw(t, "has priority") {
		p.Priority = new(rapid.Int32().Draw(t, "priority"))
	}
	apps := rapid.IntRange(1, 3).Draw(t, "apps")
	roles := append(
		rapid.SliceOfN(rapid.SampledFrom([]workload.Role{workload.Init, workload.Sidecar}), 0, 3).Draw(t, "init phase"),
		make([]workload.Role, apps)...)
	for i, role := range roles {
		c := workload.Container{
			Name: fmt.Sprintf("c%d", i), Role: role,
			Limits: drawAmounts(t, "limits", workload.CPU, workload.Memory, "example.com/gpu"),
		}
		for r, limit := range c.Limits {
			if r.IsExtended() || !rapid.Bool().Draw(t, "requests too") {
				continue
			}
			if c.Requests == nil {
				c.Requests = workload.Quantities{}
			}
			c.Requests[r] = rapid.Int64Range(0, limit).Draw(t, "request")
		}
		if rapid.Bool().Draw(t, "resizable") {
			c.ResizePolicy = map[workload.Resource]string{workload.CPU: "RestartContainer"}
		}
		p.Containers = append(p.Containers, c)
	}
	return p
}

func TestPodRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := drawPod(t)
		got, err := reader.Pod(convert.Pod(&want))
		if err != nil {
			t.Fatal(err)
		}
		sent, err := convert.SentPod(convert.Pod(&want))
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(sent, want) {
			t.Fatalf("got\n\t%+v\nand\n\t%+v\nwant\n\t%+v", got, sent, want)
		}
	})
}

// What rounding put on an amount is not on the wire, and comes back with it.
func TestExactAmounts(t *testing.T) {
	t.Parallel()
	in := &typesv1.Pod{
		Metadata: &typesv1.PodMetadata{Name: "p", Uid: "u"},
		Spec: &typesv1.PodSpec{Containers: []*typesv1.Container{{Name: "c", Resources: &typesv1.ResourceRequirements{
			Requests: map[string]string{"cpu": "1500500u", "memory": "1500m", "ephemeral-storage": "1"},
		}}}},
	}
	want, err := reader.Pod(in)
	if err != nil {
		t.Fatal(err)
	}
	if want.Containers[0].Excess == nil {
		t.Fatal("nothing was rounded")
	}
	out := convert.Pod(&want)
	requests := out.GetSpec().GetContainers()[0].GetResources().GetRequests()
	if requests["cpu"] != "1500.500000000m" || requests["memory"] != "1.500000000" {
		t.Errorf("written as %v", requests)
	}
	if got, err := convert.SentPod(out); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

func drawRule(t *rapid.T) *hint.Rule {
	r := &hint.Rule{
		Universe: numa.Mask(rapid.Uint64Min(1).Draw(t, "universe")), Need: rapid.Uint64Max(hint.MaxWeight).Draw(t, "need"),
		PreferredSize: rapid.IntRange(0, numa.MaxNodes).Draw(t, "preferred size"),
	}
	r.Must = r.Universe & numa.Mask(rapid.Uint64().Draw(t, "must"))
	for id := range r.Universe.All() {
		r.Weights[id] = rapid.Uint64Max(3).Draw(t, "weight")
	}
	for range rapid.IntRange(0, 2).Draw(t, "also") {
		also := hint.Threshold{Resource: "hugepages-2Mi", Need: rapid.Uint64Max(9).Draw(t, "need")}
		for id := range r.Universe.All() {
			also.Weights[id] = rapid.Uint64Max(3).Draw(t, "weight")
		}
		r.Also = append(r.Also, also)
	}
	return r
}

// drawAnswers draws answers in the form that providers give them.
func drawAnswers(t *rapid.T) []hint.ResourceAnswer {
	hints := rapid.Custom(func(t *rapid.T) hint.Hint {
		h := hint.Hint{Any: rapid.Bool().Draw(t, "any"), Preferred: rapid.Bool().Draw(t, "preferred")}
		if !h.Any {
			h.Nodes = numa.Mask(rapid.Uint64Range(1, 1<<63).Draw(t, "nodes"))
		}
		return h
	})
	return rapid.SliceOf(rapid.Custom(func(t *rapid.T) hint.ResourceAnswer {
		a := hint.ResourceAnswer{Resource: rapid.StringMatching(`[a-z]{1,8}`).Draw(t, "resource")}
		switch a.Kind = rapid.SampledFrom([]hint.Kind{hint.NoPreference, hint.Impossible, hint.Options,
			hint.ByRule}).Draw(t, "kind"); a.Kind {
		case hint.ByRule:
			a.Rule = drawRule(t)
			for _, h := range rapid.SliceOfN(hints, 0, 3).Draw(t, "beside") {
				if !h.Any {
					a.Hints = append(a.Hints, h)
				}
			}
			hint.SortHints(a.Hints)
		case hint.Impossible:
			a.Reason = rapid.String().Draw(t, "reason")
		case hint.Options:
			a.Hints = rapid.SliceOfN(hints, 1, 6).Draw(t, "hints")
			hint.SortHints(a.Hints)
		}
		return a
	})).Draw(t, "answers")
}

func TestAnswersRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := drawAnswers(t)
		got, err := convert.ReadAnswers("topology_hints", convert.GivenAnswers(want))
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("got\n\t%+v\nwant\n\t%+v", got, want)
		}
	})
}

// check holds what every error about input must be: of class Invalid, with a
// path for each violation, and small enough to be sent.
func check(t *testing.T, err error) {
	t.Helper()
	if errdefs.ClassOf(err) != errdefs.Invalid || len(fields(err)) == 0 {
		t.Fatalf("%v; want class invalid with violations", err)
	}
	for _, v := range fields(err) {
		if v.Field == "" || len(v.Field) > 2000 || len(v.Description) > 2000 || !utf8.ValidString(v.Field+v.Description) {
			t.Errorf("violation of %q: %q", v.Field, v.Description)
		}
	}
	if len(err.Error()) > 6000 {
		t.Errorf("an error of %d bytes", len(err.Error()))
	}
}

func FuzzPod(f *testing.F) {
	for _, m := range []*typesv1.Pod{
		nil, valid(), {Spec: &typesv1.PodSpec{Containers: []*typesv1.Container{nil, {Name: "\u00e9"}}}},
		{Spec: &typesv1.PodSpec{Overhead: map[string]string{"cpu": "1e-2147483647"}}},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m := new(typesv1.Pod)
		if proto.Unmarshal(b, m) != nil {
			return
		}
		p, err := reader.Pod(m)
		if err != nil {
			check(t, err)
			return
		}
		// What was let through is what the engine takes.
		defaulted, _ := workload.Defaulted(p, reader.Features)
		if err := workload.Validate(&defaulted, reader.Bounds); err != nil {
			t.Fatalf("let through, then %v", err)
		}
		if _, err := defaulted.Digest(); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzAnswers(f *testing.F) {
	for _, m := range []*topologyv1.ProviderHints{
		{},
		{TopologyHints: []*typesv1.TopologyHints{nil, {Resource: "cpu", Kind: 9}}},
		{TopologyHints: []*typesv1.TopologyHints{{
			Resource: "cpu", Kind: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_OPTIONS,
			Hints: []*typesv1.TopologyHint{nil, {NumaNodes: &typesv1.NUMANodeSet{Ids: []uint32{0, 0, 63, 64, 1 << 31}}},
				{NumaNodes: &typesv1.NUMANodeSet{}}},
		}}},
		{TopologyHints: []*typesv1.TopologyHints{{
			Resource: "example.com/nic", Kind: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_CAPACITY_CONSTRAINT,
			CapacityConstraint: &typesv1.CapacityConstraint{Universe: &typesv1.NUMANodeSet{Ids: []uint32{0, 5}},
				Weights: map[uint32]uint64{5: 1, 9: 1}, PreferredSize: 1},
		}}},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m := new(topologyv1.ProviderHints)
		if proto.Unmarshal(b, m) != nil {
			return
		}
		answers, err := convert.ReadAnswers("topology_hints", m.GetTopologyHints())
		if err != nil {
			check(t, err)
			return
		}
		again, err := convert.ReadAnswers("topology_hints", convert.GivenAnswers(answers))
		if err != nil || !reflect.DeepEqual(again, answers) {
			t.Fatalf("read %+v, then %+v, %v", answers, again, err)
		}
		if got := convert.Answers(answers); len(got) != len(answers) {
			t.Fatalf("%d answers of %d", len(got), len(answers))
		}
	})
}
