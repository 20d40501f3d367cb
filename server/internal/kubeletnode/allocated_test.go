package kubeletnode

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger/kubelet"
)

// TestInitContainers: those are found whose CPUs others have too, and whose memory was taken.
func TestInitContainers(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		cpus   map[string]string
		memory []string
		want   string
	}{
		"none":            {map[string]string{"a": "1", "b": "2"}, nil, "[]"},
		"with memory":     {map[string]string{"a": "12", "b": "13", "i1": "12-13", "i2": "12"}, []string{"a", "b"}, "[i1 i2]"},
		"without memory":  {map[string]string{"a": "12", "i1": "12-13"}, nil, "its containers share CPUs"},
		"all have memory": {map[string]string{"a": "12", "i1": "12-13"}, []string{"a", "i1"}, "its containers share CPUs"},
		"alone":           {map[string]string{"a": "1", "i1": "2"}, []string{"a"}, "[]"},
	} {
		cpus, memory := map[string]cpuset.Set{}, map[string]bool{}
		for container, text := range row.cpus {
			var err error
			if cpus[container], err = cpuset.Parse(text); err != nil {
				t.Fatal(err)
			}
		}
		for _, container := range row.memory {
			memory[container] = true
		}
		inits, err := initContainers(cpus, memory)
		got := []string{}
		for container := range inits {
			got = append(got, container)
		}
		slices.Sort(got)
		if text := fmt.Sprint(got); err != nil && !strings.Contains(err.Error(), row.want) || err == nil && text != row.want {
			t.Errorf("%s: %s, %v; want %s", name, text, err, row.want)
		}
	}
}

// TestReconstruct: a pod has the amounts of its containers and its own; what no file tells is a problem.
func TestReconstruct(t *testing.T) {
	t.Parallel()
	entries := `{"entries": {"u1": {"ContainerResources": {"c": {"requests": {"cpu": "1"}}}, "PodLevelResources": {"limits": {"cpu": "2"}}},
		"u2": {"ContainerResources": {"a": {}, "i": {}}}, "u3": {"c": {"requests": {"cpu": "3"}}}, "u4": {}}}`
	text, err := json.Marshal(map[string]any{"data": entries, "checksum": 1})
	if err != nil {
		t.Fatal(err)
	}
	allocated, err := parseAllocated(text)
	if err != nil {
		t.Fatal(err)
	}
	n := &Node{allocated: allocated, States: map[kubelet.Kind][]byte{
		kubelet.CPU: []byte(`{"policyName":"static","defaultCpuSet":"0","entries":{"u2":{"a":"1","i":"1-2"}},"checksum":1}`),
	}}
	pods, problems := n.Reconstruct()
	if len(pods) == 0 || pods[0].GetMetadata().GetUid() != "u1" || pods[0].GetSpec().GetResources().GetLimits()["cpu"] != "2" ||
		pods[0].GetSpec().GetContainers()[0].GetResources().GetRequests()["cpu"] != "1" {
		t.Errorf("%v, %v", pods, problems)
	}
	if last := pods[len(pods)-1]; last.GetMetadata().GetUid() != "u3" ||
		last.GetSpec().GetContainers()[0].GetResources().GetRequests()["cpu"] != "3" {
		t.Errorf("an entry of Kubernetes 1.33: %v", last)
	}
	if len(problems) == 0 || !strings.Contains(problems[len(problems)-1], "pod u4: allocated_pods_state has no containers of it") {
		t.Errorf("problems %v", problems)
	}
	for text, want := range map[string]string{"x": "expected JSON with data", `{"data": "x"}`: "data: expected JSON with entries"} {
		if _, err := parseAllocated([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
