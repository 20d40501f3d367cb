package vector

import (
	"encoding/json"
	"math"
	"reflect"
	"testing"

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
	const containers = `"containers":[{"requests":` + half + `,"limits":` + half + `},{"requests":` + half + `,"limits":` + half + `}],"overhead":` + half
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

func readPod(t *testing.T, text string) *workload.Pod {
	t.Helper()
	var p Pod
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		t.Fatal(err)
	}
	return p.Pod
}
