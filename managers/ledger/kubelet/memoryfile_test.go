package kubelet

import (
	"reflect"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/numa"
)

// Files that the kubelet wrote or accepts.
var memoryFiles = []struct {
	format int
	text   string
}{
	{1, `{"policyName":"None","machineState":{},"checksum":4236770233}`},
	{1, `{"policyName":"Static","machineState":{"0":{"numberOfAssignments":1,"memoryMap":{"memory":{"total":2048,"systemReserved":512,"allocatable":1536,"reserved":512,"free":1024}},"cells":[0]}},"entries":{"pod":{"container1":[{"numaAffinity":[0],"type":"memory","size":512}]}},"checksum":2246920186}`},
	{2, `{"policyName":"Static","machineState":{"0":{"numberOfAssignments":1,"memoryMap":{"memory":{"total":2048,"systemReserved":512,"allocatable":1536,"reserved":512,"free":1024}},"cells":[0]}},"entries":{"pod":{"container1":[{"numaAffinity":[0],"type":"memory","size":512}]}},"podEntries":{"pod":{"memoryBlocks":[{"numaAffinity":[0],"type":"memory","size":512}]}},"checksum":1215412073}`},
	{1, `{"policyName":"Static","machineState":{"2":{"numberOfAssignments":2,"memoryMap":{"hugepages-2Mi":{"total":20,"systemReserved":0,"allocatable":20,"reserved":20,"free":0},"memory":{"total":100,"systemReserved":10,"allocatable":90,"reserved":90,"free":0}},"cells":[2,10]},"10":{"numberOfAssignments":2,"memoryMap":{"hugepages-2Mi":{"total":20,"systemReserved":0,"allocatable":20,"reserved":0,"free":20},"memory":{"total":100,"systemReserved":10,"allocatable":90,"reserved":40,"free":50}},"cells":[2,10]}},"entries":{"pod-a":{"a":null,"x":[]},"pod-b":{"c":[{"numaAffinity":[2,10],"type":"memory","size":130},{"numaAffinity":[2,10],"type":"hugepages-2Mi","size":20}]}},"checksum":3369133635}`},
	{1, `{"policyName":"Static","machineState":null,"entries":null}`},
	{1, `{"policyName":"None","new":{"a":[1]},"checksum":4236770233}`},
	// A kubelet with the gate keeps pod entries that no checksum covers.
	{2, `{"policyName":"Static","machineState":{},"new":1,"podEntries":{"pod":{"memoryBlocks":[{"numaAffinity":[0],"type":"memory","size":512}]}}}`},
	{2, `{"policyName":"None","machineState":{},"new":1,"podEntries":{"pod":{"memoryBlocks":[{"numaAffinity":[0],"type":"memory","size":512}]}},"checksum":4236770233}`},
}

func TestParseMemory(t *testing.T) {
	t.Parallel()
	for _, f := range memoryFiles {
		s, err := ParseMemory([]byte(f.text))
		if err != nil || s.Format != f.format {
			t.Errorf("%s: format %d, %v; want %d", f.text, s.Format, err, f.format)
			continue
		}
		if want := []MemoryBlock{{numa.Of(0), "memory", 512}}; f.format == 2 && !reflect.DeepEqual(s.Pods["pod"], want) {
			t.Errorf("%s: pods %v", f.text, s.Pods)
		}
		if strings.Contains(f.text, "null") || strings.Contains(f.text, "new") {
			continue // a kubelet writes neither
		}
		if got, err := s.Marshal(f.format); err != nil || string(got) != f.text {
			t.Errorf("got %s, %v; want %s", got, err, f.text)
		}
	}
	s, err := ParseMemory([]byte(memoryFiles[3].text))
	if err != nil {
		t.Fatal(err)
	}
	group := numa.Of(2, 10)
	want := MemoryNode{Blocks: 2, Group: group, Tables: map[string]MemoryTable{
		"hugepages-2Mi": {Total: 20, Allocatable: 20, Reserved: 20},
		"memory":        {Total: 100, SystemReserved: 10, Allocatable: 90, Reserved: 90},
	}}
	if !reflect.DeepEqual(s.Nodes[2], want) || !reflect.DeepEqual(s.Containers["pod-b"]["c"],
		[]MemoryBlock{{group, "memory", 130}, {group, "hugepages-2Mi", 20}}) {
		t.Errorf("got %+v", s)
	}
}

func TestParseMemoryRefuses(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ name, text, wrong string }{
		{"nothing", "", "unexpected end of JSON input"},
		{"no object", "[]", "read memory_manager_state: expected an object, found a list"},
		{"text for a list", `{"entries":{"a":{"c":"0-3"}}}`, ": entries: expected a list, found a text"},
		{"text for a node", `{"machineState":{"first":{}}}`, `: machineState: expected whole numbers as keys, found "first"`},
		{"half a node", `{"machineState":{"0":{"cells":[0.5]}}}`, ": machineState.cells: expected a whole number, found 0.5"},
		{"changed", `{"policyName":"Static","machineState":{},"checksum":4236770233}`, "corrupted"},
		{"pods with a wrong checksum", `{"policyName":"Static","podEntries":{"a":{}},"checksum":7}`, "corrupted"},
		{"negative size", `{"entries":{"a":{"c":[{"size":-1}]}}}`, ": entries.size: expected a whole number from 0 to 2^64-1, found -1"},
		{"high node", `{"machineState":{"64":{}}}`, "64 is no NUMA node"},
		{"node without tables", `{"machineState":{"0":null}}`, "0 is no NUMA node with tables"},
		{"no table", `{"machineState":{"0":{"memoryMap":{"memory":null}}}}`, `"memory" has no table`},
		{"a node twice", `{"machineState":{"7":{"cells":[7,7]}}}`, "cells of NUMA node 7: [7 7] names a node twice"},
		{"high cell", `{"machineState":{"0":{"cells":[64]}}}`, "cells of NUMA node 0"},
		{"negative affinity", `{"entries":{"a":{"c":[{"numaAffinity":[-1]}]}}}`, `numaAffinity of container "c" of pod "a"`},
	} {
		_, err := ParseMemory([]byte(row.text))
		if err == nil || errdefs.ClassOf(err) != errdefs.Invalid || !strings.Contains(err.Error(), row.wrong) {
			t.Errorf("%s: got %v, want %q", row.name, err, row.wrong)
		}
	}
	whole := MemoryState{Pods: map[string][]MemoryBlock{"uid": nil}}
	for _, format := range []int{0, 1, 4} {
		if _, err := whole.Marshal(format); err == nil || errdefs.ClassOf(err) != errdefs.Invalid {
			t.Errorf("format %d: got %v", format, err)
		}
	}
	for _, format := range []int{2, 3} {
		text, err := whole.Marshal(format)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := ParseMemory(text); err != nil || len(again.Pods) != 1 || again.Format != format {
			t.Errorf("a pod without blocks in format %d: %+v, %v", format, again, err)
		}
		// Only the checksum of data counts in format 3.
		damaged := strings.Replace(string(text), `"uid"`, `"vid"`, 1)
		if format == 3 {
			damaged = strings.Replace(string(text), `\"uid\"`, `\"vid\"`, 1)
		}
		if _, err := ParseMemory([]byte(damaged)); errdefs.ClassOf(err) != errdefs.Invalid {
			t.Errorf("damaged file of format %d: %v", format, err)
		}
	}
}

// FuzzParseMemory: what can be read can be written, and reads as the same.
func FuzzParseMemory(f *testing.F) {
	for _, file := range memoryFiles {
		f.Add([]byte(file.text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := ParseMemory(data)
		if err != nil {
			if errdefs.ClassOf(err) != errdefs.Invalid {
				t.Fatalf("class %v: %v", errdefs.ClassOf(err), err)
			}
			return
		}
		text, err := s.Marshal(2)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseMemory(text)
		if err != nil || again.Format != 2 {
			t.Fatalf("%s: format %d, %v", text, again.Format, err)
		}
		if again.Format = s.Format; !reflect.DeepEqual(again, s) {
			t.Fatalf("%+v became %+v", s, again)
		}
		_ = s.Check(nil, nil)
	})
}
