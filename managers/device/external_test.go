package device

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// TestExternalDevices: the answer for devices that another program has allocated. None of them can be
// exchanged, so a node set must have a node of each.
func TestExternalDevices(t *testing.T) {
	t.Parallel()
	on := func(id string, nodes ...int) workload.ExternalDevice {
		return workload.ExternalDevice{Resource: "example.com/gpu", ID: id, Nodes: numa.Of(nodes...)}
	}
	for name, row := range map[string]struct {
		devices []workload.ExternalDevice
		here    bool
		want    string
	}{
		"none":          {nil, false, ""},
		"without nodes": {[]workload.ExternalDevice{on("a")}, false, "no-preference"},
		"one":           {[]workload.ExternalDevice{on("a", 1)}, false, "1 preferred; a on node 1"},
		"one and another": {[]workload.ExternalDevice{on("a", 1), on("b", 0), on("c")}, false,
			"0-1 preferred; a on node 1, b on node 0"},
		"of two nodes": {[]workload.ExternalDevice{on("a", 0, 1)}, false, "0 preferred 1 preferred 0-1; a on node 0-1"},
		"of two nodes and one": {[]workload.ExternalDevice{on("a", 0, 1), on("b", 1)}, false,
			"1 preferred 0-1; a on node 0-1, b on node 1"},
		"partly on the machine": {[]workload.ExternalDevice{on("a", 1, 9)}, false, "1 preferred; a on node 1,9"},
		"not on the machine": {[]workload.ExternalDevice{on("a", 9)}, false,
			"impossible: external device a is near to NUMA nodes 9, and the machine has 0-1"},
		"of a plugin here": {[]workload.ExternalDevice{on("a", 1)}, true,
			"impossible: devices of example.com/gpu are allocated by a device plugin that is registered with berthd: external_devices must not have any"},
	} {
		pod := &workload.Pod{UID: "u", Containers: []workload.Container{{Name: "other"}, {Name: "main", ExternalDevices: row.devices}}}
		for _, container := range []int{-1, 0, 1} {
			answers := external(hint.Request{Pod: pod, Container: container}, numa.Of(0, 1), func(string) bool { return row.here })
			want := row.want
			if container == 0 {
				want = ""
			}
			if got := written(t, answers); got != want {
				t.Errorf("%s, container %d: %q, want %q", name, container, got, want)
			}
		}
	}
}

// written writes answers as text.
func written(t *testing.T, answers []hint.ResourceAnswer) string {
	t.Helper()
	var out []string
	for _, a := range answers {
		switch a.Kind {
		case hint.Impossible:
			out = append(out, "impossible: "+a.Reason)
			continue
		case hint.NoPreference:
			out = append(out, string(a.Kind))
			continue
		}
		hints, err := a.Expand(16)
		if err != nil {
			t.Fatal(err)
		}
		var sets []string
		for _, h := range hints {
			sets = append(sets, h.Nodes.String())
			if h.Preferred {
				sets = append(sets, "preferred")
			}
		}
		out = append(out, fmt.Sprintf("%s; %s", strings.Join(sets, " "), strings.TrimPrefix(a.Because, "another program has allocated ")))
	}
	return strings.Join(out, " | ")
}

// TestExternalAndOwnDevices: a request with both gets one answer for each resource, in order.
func TestExternalAndOwnDevices(t *testing.T) {
	t.Parallel()
	b := newBench(t, "2n2c")
	b.list(gpu, "a@0", Options{})
	b.list(nic, "n@1", Options{})
	pod := b.pod("pod", "c gpu=1 nic=1")
	pod.Containers[0].ExternalDevices = []workload.ExternalDevice{
		{Resource: gpu, ID: "x", Nodes: numa.Of(1)}, {Resource: "example.com/another", ID: "y", Nodes: numa.Of(1)},
	}
	answers, err := b.Hints(t.Context(), b.draft.View(), hint.Request{Pod: pod})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, a := range answers {
		got = append(got, a.Resource+" "+string(a.Kind))
	}
	if want := []string{"example.com/another rule", gpu + " impossible", nic + " rule"}; !slices.Equal(got, want) {
		t.Errorf("the answers are %q, want %q", got, want)
	}
}

// TestExternalDevicesNamed: an explanation names some of many devices.
func TestExternalDevicesNamed(t *testing.T) {
	t.Parallel()
	var many []workload.ExternalDevice
	for i := range 40 {
		many = append(many, workload.ExternalDevice{Resource: "r", ID: fmt.Sprint("d", i), Nodes: numa.Of(i % 2)})
	}
	if got := fixed(many, numa.Of(0, 1)).Because; !strings.HasSuffix(got, "d7 on node 1, 32 more") {
		t.Errorf("the explanation is %q", got)
	}
}
