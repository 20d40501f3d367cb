package convert_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/fault"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// write is the way back from a pod to a message, which only tests need.
func write(p *workload.Pod) *typesv1.Pod {
	m := &typesv1.Pod{
		Metadata: &typesv1.PodMetadata{Name: p.Name, Namespace: p.Namespace, Uid: p.UID, Labels: p.Labels, Annotations: p.Annotations},
		Spec: &typesv1.PodSpec{
			Overhead: writeAmounts(p.Overhead), Priority: p.Priority, PriorityClassName: p.PriorityClassName,
			RestartPolicy: p.RestartPolicy, HostNetwork: p.HostNetwork,
		},
		Status: &typesv1.PodStatus{QosClass: string(p.QoS)},
	}
	if p.Resources != nil {
		m.Spec.Resources = &typesv1.ResourceRequirements{Requests: writeAmounts(p.Resources.Requests), Limits: writeAmounts(p.Resources.Limits)}
	}
	for _, c := range p.Walk() {
		out := &typesv1.Container{
			Name:      c.Name,
			Resources: &typesv1.ResourceRequirements{Requests: writeAmounts(c.Requests), Limits: writeAmounts(c.Limits)},
		}
		for _, r := range slices.Sorted(maps.Keys(c.ResizePolicy)) {
			out.ResizePolicy = append(out.ResizePolicy, &typesv1.ResizePolicy{ResourceName: string(r), RestartPolicy: c.ResizePolicy[r]})
		}
		switch c.Role {
		case workload.App:
			m.Spec.Containers = append(m.Spec.Containers, out)
			continue
		case workload.Sidecar:
			out.RestartPolicy = "Always"
		}
		m.Spec.InitContainers = append(m.Spec.InitContainers, out)
	}
	return m
}

func writeAmounts(q workload.Quantities) map[string]string {
	if q == nil {
		return nil
	}
	out := make(map[string]string, len(q))
	for r, n := range q {
		out[string(r)] = fmt.Sprint(n)
		if r == workload.CPU {
			out[string(r)] += "m"
		}
	}
	return out
}

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
		QoS:           rapid.SampledFrom([]workload.QoSClass{"", workload.Guaranteed, workload.Burstable, workload.BestEffort}).Draw(t, "class"),
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
		got, err := reader.Pod(write(&want))
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("got\n\t%+v\nwant\n\t%+v", got, want)
		}
	})
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
		switch a.Kind = rapid.SampledFrom([]hint.Kind{hint.NoPreference, hint.Impossible, hint.Options}).Draw(t, "kind"); a.Kind {
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
		messages, err := convert.Answers(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := convert.ReadAnswers("answers", messages)
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
	if fault.ClassOf(err) != fault.Invalid || len(fields(err)) == 0 {
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
	for _, m := range []*topologyv1.ProviderAnswers{
		{},
		{Answers: []*typesv1.Answer{nil, {Resource: "cpu", Kind: 9}}},
		{Answers: []*typesv1.Answer{{
			Resource: "cpu", Kind: typesv1.AnswerKind_ANSWER_KIND_OPTIONS,
			Hints: []*typesv1.Hint{nil, {Nodes: &typesv1.NUMAMask{Nodes: []uint32{0, 0, 63, 64, 1 << 31}}}, {Nodes: &typesv1.NUMAMask{}}},
		}}},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m := new(topologyv1.ProviderAnswers)
		if proto.Unmarshal(b, m) != nil {
			return
		}
		answers, err := convert.ReadAnswers("answers", m.GetAnswers())
		if err != nil {
			check(t, err)
			return
		}
		if _, err := convert.Answers(answers); err != nil {
			t.Fatal(err)
		}
	})
}
