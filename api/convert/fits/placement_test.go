package fits

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

const alphabet = "!#$%'()*+,-./0123456789:;=?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[]^_`abcdefghijklmnopqrstuvwxyz{|}~"

// decode reads a vector as a scheduler does.
func decode(t interface{ Fatalf(string, ...any) }, vector string) (numbers []int) {
	at, high, digits := 0, 0, 0
	for _, c := range vector {
		d := strings.IndexRune(alphabet, c)
		switch {
		case d < 0:
			t.Fatalf("%q is no digit", c)
		case d >= 64:
			high, digits = high*25+d-64, digits+1
			continue
		case digits > 0:
			d += 64 + 64*high
		}
		at += d
		numbers, high, digits = append(numbers, at), 0, 0
	}
	if digits > 0 {
		t.Fatalf("%q ends within a number", vector)
	}
	return numbers
}

// TestVectorLengths: the lengths that the format names for the bounds of its ranges.
func TestVectorLengths(t *testing.T) {
	for n, want := range map[int]int{0: 1, 63: 1, 64: 2, 1663: 2, 1664: 3, 40063: 3, 40064: 4} {
		if got := vector([]int{n}); len(got) != want || !slices.Equal(decode(t, got), []int{n}) {
			t.Errorf("%d is %q, expected %d characters", n, got, want)
		}
	}
}

// held is a pod of containers with exclusive CPUs: container i has the CPU cpus[i].
func held(name string, cpus ...int) *ledger.Pod {
	p := &ledger.Pod{Pod: workload.Pod{Namespace: "ns", Name: name}, QoS: workload.Guaranteed}
	for i, cpu := range cpus {
		c := workload.Container{Name: fmt.Sprintf("c%d", i), Requests: workload.Quantities{workload.CPU: 1000}}
		p.Pod.Containers = append(p.Pod.Containers, c)
		p.Claims = append(p.Claims, ledger.Claim{Owner: ledger.Owner{Container: c.Name}, Resource: "cpu",
			CPUs: &ledger.CPUs{Set: cpuset.Of(cpu)}})
	}
	return p
}

// TestContainerPlacement: who knows the names of the containers reads the NUMA node of each, whatever the nodes have.
func TestContainerPlacement(t *testing.T) {
	m := machinetest.Build("2s2n4c2t") // 16 or more CPUs on 4 nodes
	nodes := m.Nodes()
	rapid.Check(t, func(t *rapid.T) {
		var pods []*ledger.Pod
		want := map[uint64]int{}
		for i, cpus := range rapid.SliceOfN(rapid.SliceOfN(rapid.IntRange(0, m.CPUs().Len()-1), 1, 5), 0, 60).Draw(t, "pods") {
			p := held(fmt.Sprintf("p%d", i), cpus...)
			pods = append(pods, p)
			for j, cpu := range cpus {
				node, _ := m.NodesOf(cpuset.Of(cpu)).Lowest()
				want[digest("ns", p.Pod.Name, fmt.Sprintf("c%d", j))] = node
			}
		}
		metadata, vectors := containerPlacement(m, pods, func(string) bool { return false })
		var containers, count, busiest int
		if _, err := fmt.Sscanf(metadata, "npv0v001::ve=leb89::cc=%d::nn=%d::bn=%d", &containers, &count, &busiest); err != nil {
			t.Fatalf("%q: %v", metadata, err)
		}
		if containers != len(want) || count != len(nodes) || vectors[busiest] != "" {
			t.Fatalf("%q, vectors %v, expected %d containers on %d nodes", metadata, vectors, len(want), len(nodes))
		}
		digests := slices.Sorted(maps.Keys(want))
		got := map[uint64]int{}
		for _, d := range digests {
			got[d] = busiest
		}
		for node, v := range vectors {
			for _, number := range decode(t, v) {
				got[digests[number]] = node
			}
		}
		if !maps.Equal(got, want) {
			t.Fatalf("%q, vectors %v: %v, expected %v", metadata, vectors, got, want)
		}
	})
}

// TestUnknownPlacement: with a container whose node is not known, nobody gets an incomplete list.
func TestUnknownPlacement(t *testing.T) {
	m := machinetest.Build("2s2n4c2t")
	device := held("device", 0)
	device.Pod.Containers[0].Requests = workload.Quantities{"example.com/gpu": 1}
	device.Claims[0] = ledger.Claim{Owner: ledger.Owner{Container: "c0"}, Resource: "example.com/gpu",
		Affinity: &ledger.Affinity{Nodes: numa.Of(2), Preferred: true}}
	two := held("two", 0)
	two.Claims[0].CPUs.Set = m.CPUs()
	none := held("none", 0)
	none.Claims = nil
	anywhere := held("anywhere", 0)
	anywhere.Claims[0] = ledger.Claim{Owner: ledger.Owner{Container: "c0"}, Affinity: &ledger.Affinity{Nodes: numa.Of(0), Any: true}}
	small := held("small", 0)
	small.Pod.Containers[0].Requests = workload.Quantities{workload.CPU: 500}
	for what, c := range map[string]struct {
		pod  *ledger.Pod
		want string
	}{
		"no claim":                {none, ""},
		"several nodes":           {two, ""},
		"anywhere":                {anywhere, ""},
		"a device near to a node": {device, "npv0v001::ve=leb89::cc=2::nn=4::bn=0"},
		"no exclusive resources":  {small, "npv0v001::ve=leb89::cc=1::nn=4::bn=0"},
	} {
		got, vectors := containerPlacement(m, []*ledger.Pod{held("pod", 1), c.pod}, func(string) bool { return true })
		if got != c.want || got == "" && len(vectors) > 0 {
			t.Errorf("%s: %q %v, expected %q", what, got, vectors, c.want)
		}
	}
}

// TestContainerDigest compares with digests that the package numaplacement of github.com/k8stopologyawareschedwg publishes.
func TestContainerDigest(t *testing.T) {
	for text, want := range map[[3]string]uint64{{}: 11145182160106660097, {"ns", "pod", "cnt"}: 9468815510407277218} {
		if got := digest(text[0], text[1], text[2]); got != want {
			t.Errorf("%q: %d, expected %d", text, got, want)
		}
	}
}

// TestContainersAdmittedApart: a pod whose containers were admitted one by one counts as the scheduler counts it, once and by its name.
func TestContainersAdmittedApart(t *testing.T) {
	m := machinetest.Build("2s2n4c2t")
	none := func(string) bool { return false }
	whole := held("web", 0, m.CPUs().IDs()[m.CPUs().Len()-1])
	whole.Pod.UID = "web-uid"
	var apart []*ledger.Pod
	for i, c := range whole.Pod.Containers {
		p := &ledger.Pod{QoS: whole.QoS, Claims: whole.Claims[i : i+1]}
		p.Pod = workload.Pod{Namespace: "ns", Containers: []workload.Container{c}}
		p.Pod.UID, p.Pod.Name = workload.Apart("web-uid", "web", c.Name)
		apart = append(apart, p)
	}
	if got, want := podsFingerprint(apart), podsFingerprint([]*ledger.Pod{whole}); got != want {
		t.Errorf("the fingerprint is %s, expected %s", got, want)
	}
	got, vectors := containerPlacement(m, apart, none)
	want, wantVectors := containerPlacement(m, []*ledger.Pod{whole}, none)
	if got != want || !maps.Equal(vectors, wantVectors) {
		t.Errorf("the placement is %q %v, expected %q %v", got, vectors, want, wantVectors)
	}
}
