package publish

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	fitv1 "github.com/berthd/berth/api/berth/fit/v1"
	"github.com/berthd/berth/managers/numa"
)

var update = flag.Bool("update", false, "write the golden files")

// twoNodes is a machine of two NUMA nodes with memory that is placed anywhere.
func twoNodes() *fitv1.FreeResources {
	node := func(id uint32, cpus uint64) *fitv1.NUMANode {
		return &fitv1.NUMANode{NumaNode: id, Distances: map[uint32]uint32{id: 10, 1 - id: 21}, Resources: []*fitv1.NodeResource{
			{Resource: "cpu", Capacity: 8, Allocatable: 7, Available: cpus, Aligned: true},
			{Resource: "example.com/nic", Capacity: 2, Allocatable: 1, Available: 1, Aligned: true},
			{Resource: "memory", Capacity: 64 << 30, Allocatable: 62 << 30, Available: 62 << 30},
		}}
	}
	vacant := node(1, 7)
	vacant.ContainerVector = "#"
	return &fitv1.FreeResources{
		Nodes: []*fitv1.NUMANode{node(0, 3), vacant}, TopologyPolicy: "single-numa-node", TopologyScope: "pod",
		PodsFingerprint: "pfp0v001607b76a0e9d3aeb4", ContainerPlacement: "npv0v001::ve=leb89::cc=3::nn=2::bn=0",
	}
}

func TestObject(t *testing.T) {
	o := New("worker-1", &Reference{"v1", "Namespace", "berth-system", "2f4d"}, twoNodes(), []Device{
		{Resource: "example.com/gpu", ID: "a", Nodes: numa.Of(0), Used: true},
		{Resource: "example.com/gpu", ID: "b", Nodes: numa.Of(0)},
		{Resource: "example.com/gpu", ID: "c", Nodes: numa.Of(0).With(1)},
		{Resource: "example.com/gpu", ID: "d", Nodes: numa.Of(7)}, // the machine has no such node
		{Resource: "example.com/anywhere", ID: "a"},
		{Resource: "example.com/nic", ID: "a", Nodes: numa.Of(0)}, // berthd has its plugin
	})
	got, err := json.MarshalIndent(o, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", "object.json")
	if *update {
		if err := os.WriteFile(path, append(got, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got)+"\n" != string(want) {
		t.Errorf("the object is\n%s", got)
	}
	var read Object
	if err := json.Unmarshal(want, &read); err != nil || Compare(&read, o) != Same {
		t.Errorf("the object is another one when it is read again: %v\n%+v", err, read)
	}
}

// TestManyNodes: schedulers that expect at most eight NUMA nodes are told.
func TestManyNodes(t *testing.T) {
	free := twoNodes()
	free.Nodes[1].NumaNode, free.TopologyScope, free.ContainerPlacement = 16, "none", ""
	want := []Attribute{
		{fingerprintAttribute, free.GetPodsFingerprint()}, {fingerprintMethodAttribute, exclusiveResources},
		{maxNodesAttribute, "17"}, {policyAttribute, "single-numa-node"},
	}
	got := New("n", nil, free, nil).Attributes
	if len(got) != len(want) {
		t.Fatalf("%v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%v, want %v", got[i], want[i])
		}
	}
}

func TestCompare(t *testing.T) {
	owner := &Reference{"v1", "Namespace", "berth-system", "2f4d"}
	have := New("n", owner, twoNodes(), nil)
	for what, c := range map[string]struct {
		change func(free *fitv1.FreeResources, owner *Reference)
		want   Change
	}{
		"nothing":     {func(*fitv1.FreeResources, *Reference) {}, Same},
		"revision":    {func(f *fitv1.FreeResources, _ *Reference) { f.Revision++ }, Same},
		"available":   {func(f *fitv1.FreeResources, _ *Reference) { f.Nodes[1].Resources[0].Available-- }, Minor},
		"pods":        {func(f *fitv1.FreeResources, _ *Reference) { f.PodsFingerprint = "pfp0v0010" }, Minor},
		"containers":  {func(f *fitv1.FreeResources, _ *Reference) { f.ContainerPlacement = "npv0" }, Minor},
		"unknown":     {func(f *fitv1.FreeResources, _ *Reference) { f.ContainerPlacement = "" }, Minor},
		"vector":      {func(f *fitv1.FreeResources, _ *Reference) { f.Nodes[1].ContainerVector = "!" }, Minor},
		"no vector":   {func(f *fitv1.FreeResources, _ *Reference) { f.Nodes[1].ContainerVector = "" }, Minor},
		"allocatable": {func(f *fitv1.FreeResources, _ *Reference) { f.Nodes[1].Resources[0].Allocatable-- }, Major},
		"memory":      {func(f *fitv1.FreeResources, _ *Reference) { f.Nodes[1].Resources[2].Available-- }, Minor},
		"policy":      {func(f *fitv1.FreeResources, _ *Reference) { f.TopologyPolicy = "restricted" }, Major},
		"distance":    {func(f *fitv1.FreeResources, _ *Reference) { f.Nodes[0].Distances[1] = 20 }, Major},
		"node":        {func(f *fitv1.FreeResources, _ *Reference) { f.Nodes = f.Nodes[:1] }, Major},
		"owner":       {func(_ *fitv1.FreeResources, o *Reference) { o.UID = "another" }, Major},
	} {
		free, by := twoNodes(), *owner
		c.change(free, &by)
		if got := Compare(have, New("n", &by, free, nil)); got != c.want {
			t.Errorf("%s: %d, want %d", what, got, c.want)
		}
	}
	if Compare(nil, have) != Major {
		t.Error("an object that does not exist is not a major change")
	}
}

// FuzzObject: an object of another writer never panics, whatever it has.
func FuzzObject(f *testing.F) {
	f.Add([]byte(`{"zones": [{"name": "node-0", "resources": [{"name": "cpu", "available": 3, "capacity": "4"}]}], "attributes": [{"name": "nodeTopologyPodsFingerprint"}]}`))
	f.Add([]byte(`{"zones": null, "metadata": {"ownerReferences": [{}]}}`))
	want := New("n", nil, twoNodes(), nil)
	f.Fuzz(func(t *testing.T, text []byte) {
		var o Object
		if json.Unmarshal(text, &o) == nil && Compare(&o, want) == Same {
			again, err := json.Marshal(o)
			if err != nil || Compare(&o, &o) != Same {
				t.Errorf("%s: %v", again, err)
			}
		}
	})
}
