package app_test

import (
	"encoding/json"
	"os"
	"slices"
	"testing"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/machine"
)

// TestNoPodCgroupsLikeTheKubelet replays what the recorded kubelet decided with
// cgroupsPerQOS off (testdata/nopods.json): the same CPUs and the same memory, and no cgroup.
func TestNoPodCgroupsLikeTheKubelet(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/nopods.json")
	if err != nil {
		t.Fatal(err)
	}
	var recorded struct {
		Config      json.RawMessage
		Pods        map[string]json.RawMessage
		CPU, Memory string
	}
	if err := json.Unmarshal(data, &recorded); err != nil {
		t.Fatal(err)
	}
	all := recordings(t)
	r := all[slices.IndexFunc(all, func(r recording) bool { return r.Name == "v2-systemd-reserved-cgroups" })]
	r.Configs, r.Pods = map[string]json.RawMessage{"k.json": recorded.Config}, recorded.Pods
	m, err := machine.Load(r.Machine)
	if err != nil {
		t.Fatal(err)
	}
	facts := memtree.V2()
	facts.Driver = r.Driver
	tree := memtree.New(facts, m.CPUs(), m.NodeMask()).TakeAny()
	p := newReplay(t, r, "/", memoryTree{tree})
	p.start(step{Config: "k.json"})
	p.admit(step{Pod: "p03-g1"})
	p.admit(step{Pod: "p02-burst"})
	p.compare(step{Label: "no-cgroups-per-qos", CPU: recorded.CPU, Memory: recorded.Memory})
	seen, err := tree.Observe(t.Context(), p.layout.Pods(), -1)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range seen.Nodes {
		if o.State != cgroup.Absent {
			t.Errorf("cgroup %s is there", o.Name)
		}
	}
}
