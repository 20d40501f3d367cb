package vector

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

func TestAmounts(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		text string
		want workload.Quantities
	}{
		{`{"cpu":"1"}`, workload.Quantities{"cpu": 1000}},
		{`{"cpu":"100m"}`, workload.Quantities{"cpu": 100}},
		{`{"cpu":"0.0001"}`, workload.Quantities{"cpu": 1}},
		{`{"cpu":"9223372036854775807"}`, workload.Quantities{"cpu": math.MaxInt64}},
		{`{"memory":"1Gi"}`, workload.Quantities{"memory": 1 << 30}},
		{`{"memory":"1500m"}`, workload.Quantities{"memory": 2}},
		{`{"memory":"9223372036854775807"}`, workload.Quantities{"memory": math.MaxInt64}},
		{`{"example.com/gpu":"0"}`, workload.Quantities{"example.com/gpu": 0}},
		{`null`, nil},
	} {
		var got amounts
		if err := json.Unmarshal([]byte(row.text), &got); err != nil || !reflect.DeepEqual(got.Quantities, row.want) {
			t.Errorf("%s: %v, %v; want %v", row.text, got, err, row.want)
		}
	}
	for _, text := range []string{`{"containers":[{"requests":{"cpu":"many"}}]}`, `{"colour":"red"}`} {
		if err := json.Unmarshal([]byte(text), new(Pod)); err == nil {
			t.Errorf("%s was accepted", text)
		}
	}
}

func TestUnknownGate(t *testing.T) {
	t.Parallel()
	var g Gates
	if err := json.Unmarshal([]byte(`{"PodLevelResources":false}`), &g); err != nil || g.On(PodLevelResources) {
		t.Errorf("%v, %v; want the gate off", g, err)
	}
	if err := json.Unmarshal([]byte(`{"NodeSwap":false}`), &g); err == nil {
		t.Error("a gate that nobody asks for was taken")
	}
	if err := json.Unmarshal([]byte(`null`), &g); err != nil || !g.On(PodLevelResources) {
		t.Errorf("no gates: %v, %v", g, err)
	}
}

// The reference adds exact amounts and rounds the sum.
func TestFractionsAddUp(t *testing.T) {
	t.Parallel()
	const half = `{"memory":"1500m","cpu":"100u"}`
	const containers = `"containers":[{"requests":` + half + `,"limits":` + half + `},{"requests":` + half + `,"limits":` + half +
		`}],"overhead":` + half
	got := readPod(t, `{`+containers+`}`)
	want := workload.Quantities{workload.Memory: 5, workload.CPU: 1}
	if sums := workload.EffectiveRequests(got, workload.Features{}); !reflect.DeepEqual(sums, want) {
		t.Errorf("requests %v, want %v", sums, want)
	}
	if sums := workload.EffectiveLimits(got, workload.Features{}); !reflect.DeepEqual(sums, want) {
		t.Errorf("limits %v, want %v", sums, want)
	}
	got = readPod(t, `{`+containers+`,"resources":{"requests":`+half+`}}`)
	want[workload.Memory] = 3
	if sums := workload.EffectiveRequests(got, workload.Features{PodLevelResources: true}); !reflect.DeepEqual(sums, want) {
		t.Errorf("pod-level requests %v, want %v", sums, want)
	}
}

func TestPod(t *testing.T) {
	t.Parallel()
	got := readPod(t, `{"uid":"u","init_containers":[{"name":"i"},{"name":"s","restart_policy":"Always","limits":{}}],
		"containers":[{"name":"c","requests":{"cpu":"2"}}],"resources":{}}`)
	want := &workload.Pod{
		UID: "u",
		Containers: []workload.Container{
			{Name: "i", Role: workload.Init},
			{Name: "s", Role: workload.Sidecar, Limits: workload.Quantities{}},
			{Name: "c", Requests: workload.Quantities{workload.CPU: 2000}},
		},
		Resources: &workload.Resources{},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func readPod(t *testing.T, text string) *workload.Pod {
	t.Helper()
	var p Pod
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		t.Fatal(err)
	}
	return p.Pod
}

func TestHintsRoundTrip(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`null`,
		`{"a":null,"b":[]}`,
		`{"a":[{"numa":[0],"preferred":true},{"numa":[0,1],"preferred":false},{"numa":null,"preferred":false}]}`,
	} {
		var recorded Hints
		if err := json.Unmarshal([]byte(text), &recorded); err != nil {
			t.Fatal(err)
		}
		got, err := Lists(recorded.Answers())
		if err != nil || !reflect.DeepEqual(got, recorded.Canonical()) {
			t.Errorf("%s came back as %v, %v", text, got, err)
		}
	}
	if (Hints{}).Canonical() != nil {
		t.Error("an empty object is not the same as null")
	}
}

func TestListsOfRule(t *testing.T) {
	t.Parallel()
	rule := &hint.Rule{Universe: numa.Of(0, 1), Need: 3, PreferredSize: 1}
	rule.Weights[0], rule.Weights[1] = 2, 3
	got, err := Lists([]hint.ResourceAnswer{{Resource: "r", Answer: hint.Answer{Kind: hint.ByRule, Rule: rule}}})
	want := Hints{"r": {{NUMA: MaskOf(0, 1)}, {NUMA: MaskOf(1), Preferred: true}}}
	if err != nil || !reflect.DeepEqual(got, want.Canonical()) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
}

func TestGates(t *testing.T) {
	t.Parallel()
	if g := (Gates{PodLevelResources: false, PodLevelResourceManagers: true}); g.On(PodLevelResourceManagers) {
		t.Error("PodLevelResourceManagers is on without PodLevelResources")
	}
	if !(Gates)(nil).On(PodLevelResources) || (Gates)(nil).On(PodLevelResourceManagers) {
		t.Error("wrong base values")
	}
}

func TestMachines(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "topologies.json")
	text := `[{"name":"m","num_cpus":2,"num_cores":1,"num_sockets":1,"num_numa_nodes":1,"num_uncore":1,
		"cpus":[{"cpu":0,"core":0,"socket":0,"numa":0,"uncore":0},{"cpu":1,"core":0,"socket":0,"numa":0,"uncore":0}],
		"nodes":[{"id":0,"memory":1,"hugepages":[{"page_size_kib":2048,"num_pages":3}],"distances":[10,20]},
			{"id":8,"memory":2,"distances":[20,10]}]},{"name":"nothing"}]`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	machines, err := LoadMachines(path)
	if err != nil {
		t.Fatal(err)
	}
	m, err := machines.Get("m")
	if err != nil {
		t.Fatal(err)
	}
	if d, ok := m.Distances().Between(0, 8); !ok || d != 20 {
		t.Errorf("distance from node 0 to node 8 is %d, %t; want 20", d, ok)
	}
	for _, name := range []string{"x", "nothing"} {
		if _, err := machines.Get(name); err == nil {
			t.Errorf("Get(%q) found a machine", name)
		}
	}
}
