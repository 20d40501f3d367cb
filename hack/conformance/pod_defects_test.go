package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/berthd/berth/hack/conformance/vector"
)

// TestPodDefects shows recorded steps that cannot be right, and their like that can.
func TestPodDefects(t *testing.T) {
	t.Parallel()
	two := vector.Amounts{"cpu": "2", "memory": "64Mi"}
	c := func(name, restart string, a vector.Amounts) vector.Container {
		return vector.Container{Name: name, RestartPolicy: restart, Requests: a, Limits: a}
	}
	pod := vector.Pod{
		UID:            "p",
		InitContainers: []vector.Container{c("init", "", two), c("side", "Always", two)},
		Containers:     []vector.Container{c("main", "", two)},
	}
	whole := pod
	whole.Resources = &vector.Resources{Requests: vector.Amounts{"cpu": "6", "memory": "1Gi"}, Limits: vector.Amounts{"cpu": "6", "memory": "1Gi"}}
	needy := whole
	needy.Containers = []vector.Container{c("main", "", vector.Amounts{"cpu": "2", "memory": "64Mi", "example.com/gpu": "1"})}
	env := &Env{Machines: vector.Machines{}}
	for _, tt := range []struct {
		name string
		pod  vector.Pod
		cpu  cpuState
		want string
	}{
		{"handed on", pod, cpuState{Default: "0,5-7", Assignments: assignments{"p": {"init": "1-2", "side": "1-2", "main": "3-4"}}}, ""},
		{"reserved", pod, cpuState{Default: "5-7", Assignments: assignments{"p": {"init": "1-2", "side": "1-2", "main": "0,3"}}}, torn},
		{"of a sidecar", pod, cpuState{Default: "0,5-7", Assignments: assignments{"p": {"init": "1-2", "side": "1-2", "main": "2-3"}}}, torn},
		{"nobody's left", pod, cpuState{Assignments: assignments{"p": {"init": "1-2", "side": "1-2"}}}, emptied},
		{"too few", pod, cpuState{Default: "0,4-7", Assignments: assignments{"p": {"init": "1-2", "side": "1-2", "main": "3"}}}, doubled},
		{"as a whole", whole, cpuState{Default: "0,7", PodAssignments: cpuLists{"p": "1-6"}, Assignments: assignments{"p": {"init": "1-2", "side": "1-2", "main": "3-4"}}}, ""},
		{"as a whole, reserved", whole, cpuState{Default: "7", PodAssignments: cpuLists{"p": "0-5"}, Assignments: assignments{"p": {"init": "1-2", "side": "1-2", "main": "3-4"}}}, torn},
		{"as a whole, twice", whole, cpuState{Default: "0,7", PodAssignments: cpuLists{"p": "1-6"}, Assignments: assignments{"p": {"init": "1-2", "side": "1-2", "main": "2-3"}}}, torn},
		{"as a whole, beyond", whole, cpuState{Default: "0", PodAssignments: cpuLists{"p": "1-6"}, Assignments: assignments{"p": {"init": "1-2", "side": "1-2", "main": "6-7"}}}, torn},
		{"without devices", needy, cpuState{Default: "0,7", PodAssignments: cpuLists{"p": "1-6"}, Assignments: assignments{"p": {"init": "1-2", "side": "1-2", "main": "3-4"}}}, deviceless},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := podAdmitIn{
				Gates: vector.Gates{vector.PodLevelResourceManagers: true}, TopologyPolicy: "restricted", TopologyScope: "pod",
				ReservedCPUs: "0", Pods: map[string]vector.Pod{"p": tt.pod}, Steps: []podStep{{"admit", "p"}},
			}
			in.Devices = map[string][]struct {
				ID      string `json:"id"`
				Healthy bool   `json:"healthy"`
				NUMA    []int  `json:"numa"`
			}{"example.com/gpu": {{ID: "gpu0"}}}
			want := podAdmitWant{Steps: []podStepWant{{Result: &podResult{Admit: true}, CPU: tt.cpu}}}
			if _, entry, why := in.defectAt(env, want); entry != tt.want {
				t.Errorf("%q (%s), want %q", entry, why, tt.want)
			}
		})
	}
}

// TestUnevenMachine: on a machine with sockets of unlike sizes a recording may have
// CPUs that are far, or have counted some that nobody could have.
func TestUnevenMachine(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "topologies.json")
	if err := os.WriteFile(file, []byte(`[{"name": "odd", "num_cpus": 5, "num_cores": 5, "num_sockets": 3, "num_numa_nodes": 5, "num_uncore": 3,
		"cpus": [{"cpu": 2, "core": 2, "socket": 1, "numa": 0, "uncore": 1}, {"cpu": 3, "core": 3, "socket": 1, "numa": 1, "uncore": 1},
			{"cpu": 4, "core": 4, "socket": 2, "numa": 2, "uncore": 2}, {"cpu": 5, "core": 5, "socket": 2, "numa": 3, "uncore": 2},
			{"cpu": 6, "core": 6, "socket": 3, "numa": 4, "uncore": 3}],
		"nodes": [{"id": 0, "distances": [10,20,20,20,20]}, {"id": 1, "distances": [20,10,20,20,20]}, {"id": 2, "distances": [20,20,10,20,20]},
			{"id": 3, "distances": [20,20,20,10,20]}, {"id": 4, "distances": [20,20,20,20,10]}]}]`), 0o600); err != nil {
		t.Fatal(err)
	}
	machines, err := vector.LoadMachines(file)
	if err != nil {
		t.Fatal(err)
	}
	two := vector.Amounts{"cpu": "2", "memory": "64Mi"}
	pod := vector.Pod{UID: "p", Containers: []vector.Container{{Name: "main", Requests: two, Limits: two}}}
	in := podAdmitIn{Topology: "odd", ReservedCPUs: "6", Pods: map[string]vector.Pod{"p": pod}, Steps: []podStep{{"admit", "p"}}}
	for _, tt := range []struct {
		name   string
		result podResult
		cpus   string
		shared string
		want   string
	}{
		{"near", podResult{Admit: true}, "3,5", "2,4", ""},
		{"far", podResult{Admit: true}, "2-3", "4-5", torn},
		{"as near as can be", podResult{Admit: true}, "2-3", "4", ""},
		{"refused", podResult{Message: "not enough cpus available to satisfy request: requested=2, available=1"}, "", "2-5", torn},
		{"refused for something else", podResult{Message: "x"}, "", "2-5", ""},
	} {
		want := podAdmitWant{Steps: []podStepWant{{
			Result: &tt.result, Affinity: map[string]vector.Affinity{"main": {NUMA: []int{1, 3}}},
			CPU: cpuState{Default: tt.shared, Assignments: assignments{"p": {"main": tt.cpus}}},
		}}}
		if _, entry, why := in.defectAt(&Env{Machines: machines}, want); entry != tt.want {
			t.Errorf("%s: %q (%s), want %q", tt.name, entry, why, tt.want)
		}
	}
}
