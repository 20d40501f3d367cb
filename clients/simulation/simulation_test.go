package simulation_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/clients/simulation"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/topology"
)

// scene makes a scene on a shape with the static CPU policy and one reserved CPU.
func scene(t *testing.T, shape string, policy topology.Policy, devices string) simulation.Scene {
	t.Helper()
	snapshot, err := machine.ParseShape(shape)
	if err != nil {
		t.Fatal(err)
	}
	m, err := machine.New(snapshot)
	if err != nil {
		t.Fatal(err)
	}
	s := simulation.Scene{Machine: m, Config: config.Default(), Devices: map[string][]device.Device{}}
	s.Config.CPU.Policy, s.Config.Topology.Policy = "static", policy
	s.Config.Reserved.CPUs = cpuset.Of(0)
	s.Config.Node.MaxPods = 0 // no bound
	if devices != "" {
		if s.Devices["example.com/gpu"], err = simulation.ParseDevices(devices); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// guaranteed makes a pod with one container of n CPUs and g devices.
func guaranteed(uid string, n, g int) *typesv1.Pod {
	r := map[string]string{"cpu": strconv.Itoa(n), "memory": "1Gi"}
	if g > 0 {
		r["example.com/gpu"] = strconv.Itoa(g)
	}
	return &typesv1.Pod{
		Metadata: &typesv1.PodMetadata{Name: uid, Uid: uid},
		Spec: &typesv1.PodSpec{Containers: []*typesv1.Container{{
			Name: "main", Resources: &typesv1.ResourceRequirements{Requests: r, Limits: r},
		}}},
	}
}

// TestManyNodes: machines with more nodes than anybody could enumerate the sets
// of. What a run takes is in the benchmarks.
func TestManyNodes(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		shape string
		// perNode is what a pod requests so that a node has room for two, but for
		// the one with the reserved CPU, which has room for one.
		perNode, nodes, room int
	}{
		{"2s1n72c32m", 36, 34, 2*2 - 1},
		{"8s8n16c2t", 16, 64, 2*64 - 1},
		{"1s64n2c", 1, 64, 2*64 - 1},
	} {
		for _, policy := range []topology.Policy{topology.BestEffort, topology.Restricted, topology.SingleNUMANode} {
			t.Run(row.shape+" "+string(policy), func(t *testing.T) {
				t.Parallel()
				s := scene(t, row.shape, policy, "2*a@0,2*b@1")
				pods := []*typesv1.Pod{guaranteed("a", row.perNode, 2), guaranteed("b", row.perNode, 1)}
				out, _, err := s.Run(t.Context(), pods, simulation.Options{More: guaranteed("more", row.perNode, 0), Most: 1000})
				if err != nil {
					t.Fatal(err)
				}
				if len(out.GetNodes()) != row.nodes {
					t.Errorf("%d nodes", len(out.GetNodes()))
				}
				for _, p := range out.GetPods() {
					if p.GetVerdict().GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
						t.Errorf("pod %s: %s", p.GetName(), p.GetVerdict().GetMessage())
					}
				}
				// Without the alignment of devices some CPUs may serve another one.
				if got := int(out.GetRoom().GetPods()) + 2; got != row.room || out.GetRoom().GetAtLeast() {
					t.Errorf("%d pods fit, want %d", got, row.room)
				}
			})
		}
	}
}

func TestUses(t *testing.T) {
	t.Parallel()
	s := scene(t, "2s4c", topology.Restricted, "2*a@0,b@1,both@0+1,sick@1!,nowhere")
	out, _, err := s.Run(t.Context(), []*typesv1.Pod{guaranteed("a", 3, 3), guaranteed("b", 2, 1), guaranteed("c", 9, 0)},
		simulation.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var uses []string
	for _, n := range out.GetNodes() {
		for _, r := range n.GetResources() {
			uses = append(uses, fmt.Sprintf("%d %s %d/%d", n.GetNumaNode(), r.GetResource(), r.GetTaken(), r.GetAllocatable()))
		}
	}
	want := "0 cpu 3/3, 0 example.com/gpu 3/3, 1 cpu 2/4, 1 example.com/gpu 2/2"
	if got := strings.Join(uses, ", "); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	v := out.GetPods()[2].GetVerdict()
	if v.GetReason() != "TopologyAffinityError" || len(v.GetTrace().GetSuggestions()) == 0 {
		t.Errorf("verdict %v", v)
	}
	again, _, err := s.Run(t.Context(), []*typesv1.Pod{guaranteed("a", 3, 3), guaranteed("b", 2, 1), guaranteed("c", 9, 0)},
		simulation.Options{})
	if err != nil || !proto.Equal(out, again) {
		t.Errorf("a second run differs: %v", err)
	}
}

func TestRunRefuses(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*simulation.Scene, *typesv1.Pod){
		"configuration": func(s *simulation.Scene, _ *typesv1.Pod) { s.Config.CPU.Policy = "dynamic" },
		"machine":       func(s *simulation.Scene, _ *typesv1.Pod) { s.Config.Reserved.CPUs = cpuset.Of(99) },
		"device":        func(s *simulation.Scene, _ *typesv1.Pod) { s.Devices["a"] = []device.Device{{ID: "x", Nodes: 1 << 9}} },
		"pod":           func(_ *simulation.Scene, p *typesv1.Pod) { p.Spec.Containers = nil },
	} {
		s, p := scene(t, "2s4c", topology.Restricted, ""), guaranteed("a", 1, 0)
		change(&s, p)
		if _, _, err := s.Run(t.Context(), []*typesv1.Pod{p}, simulation.Options{}); errdefs.ClassOf(err) != errdefs.Invalid {
			t.Errorf("%s: %v", name, err)
		}
		if name != "pod" {
			continue
		}
		if _, _, err := s.Run(t.Context(), nil, simulation.Options{More: p, Most: 1}); errdefs.ClassOf(err) != errdefs.Invalid {
			t.Errorf("%s asked for more of: %v", name, err)
		}
	}
}

func TestParseDevices(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                "",
		"x":               "{x true  false}",
		"x@":              "{x true  true}",
		"x@1!":            "{x false 1 true}",
		"nic@0+3 2*g@63":  "{nic true 0,3 true}{g0 true 63 true}{g1 true 63 true}",
		"a,a":             "two of this id",
		"2*a,a1":          "two of this id",
		"x@y":             `expected NUMA nodes of 0 to 63 after @, got "y"`,
		"x@64":            "expected NUMA nodes",
		"@1":              "has no id",
		"3*@1":            "has no id",
		"0*a":             `expected a number of 1 to 65536 before *, got "0"`,
		"q*a":             "expected a number",
		"65536*a 65536*b": "more than 65536 devices",
	} {
		list, err := simulation.ParseDevices(text)
		var got string
		for _, d := range list {
			got += fmt.Sprintf("{%s %t %s %t}", d.ID, d.Healthy, d.Nodes, d.Topology)
		}
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) || err == nil && got != want || err != nil && errdefs.ClassOf(err) != errdefs.Invalid {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
}

func FuzzParseDevices(f *testing.F) {
	for _, text := range []string{"gpu0@0,gpu1@0", "4*a@0+1!", "x", "@", "9*9*9"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		list, err := simulation.ParseDevices(text)
		seen := map[string]bool{}
		for _, d := range list {
			if d.ID == "" || seen[d.ID] || err != nil {
				t.Fatalf("%q: %v, %v", text, list, err)
			}
			seen[d.ID] = true
		}
	})
}

func BenchmarkRun(b *testing.B) {
	for _, shape := range []string{"2s4n32c2t", "2s1n72c32m", "8s8n16c2t"} {
		b.Run(shape, func(b *testing.B) {
			snapshot, err := machine.ParseShape(shape)
			if err != nil {
				b.Fatal(err)
			}
			m, err := machine.New(snapshot)
			if err != nil {
				b.Fatal(err)
			}
			s := simulation.Scene{Machine: m, Config: config.Default()}
			s.Config.CPU.Policy, s.Config.Topology.Policy, s.Config.Reserved.CPUs = "static", topology.Restricted, cpuset.Of(0)
			s.Config.Node.MaxPods = 0
			for b.Loop() {
				if _, _, err := s.Run(b.Context(), nil, simulation.Options{More: guaranteed("a", 2, 0), Most: 10000}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestWhatIsNotThere: a pod that requests what the scene does not have does not fit,
// whatever berthd would do about it; what is another program's is no matter.
func TestWhatIsNotThere(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		unknown, devices string
		elsewhere        []string
		want             admissionv1.Verdict
		room             uint32
		notes            int
	}{
		"defer":  {unknown: config.UnknownDefer, want: admissionv1.Verdict_VERDICT_REJECTED},
		"reject": {unknown: config.UnknownReject, want: admissionv1.Verdict_VERDICT_REJECTED},
		"ignore": {unknown: config.UnknownIgnore, want: admissionv1.Verdict_VERDICT_REJECTED},
		"elsewhere": {unknown: config.UnknownReject, elsewhere: []string{"example.com"}, want: admissionv1.Verdict_VERDICT_ADMITTED,
			room: 62, notes: 1},
		"there": {unknown: config.UnknownReject, devices: "3*a", want: admissionv1.Verdict_VERDICT_ADMITTED, room: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := scene(t, "64c", topology.None, row.devices)
			s.Config.Devices.Unknown, s.Config.Devices.Elsewhere = row.unknown, row.elsewhere
			out, _, err := s.Run(t.Context(), []*typesv1.Pod{guaranteed("pod", 1, 1)},
				simulation.Options{More: guaranteed("more", 1, 1), Most: 1000})
			if err != nil {
				t.Fatal(err)
			}
			v := out.GetPods()[0].GetVerdict()
			if v.GetVerdict() != row.want || len(v.GetNotes()) != row.notes || out.GetRoom().GetPods() != row.room {
				t.Errorf("%v %q, room for %d more, notes %q", v.GetVerdict(), v.GetMessage(), out.GetRoom().GetPods(), v.GetNotes())
			}
			if row.want == admissionv1.Verdict_VERDICT_REJECTED && v.GetReason() != "OutOfexample.com/gpu" {
				t.Errorf("reason %q", v.GetReason())
			}
		})
	}
}
