package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/hack/conformance/vector"
	"github.com/berthd/berth/managers/workload"
)

// TestPodDefects shows recorded steps that cannot be right, and their like that can.
func TestPodDefects(t *testing.T) {
	t.Parallel()
	pod := workload.Pod{UID: "p", Containers: []workload.Container{
		withTwo("init", workload.Init), withTwo("side", workload.Sidecar), withTwo("main", workload.App),
	}}
	whole, six := pod, workload.Quantities{workload.CPU: 6000, workload.Memory: 1 << 30}
	whole.Resources = &workload.Resources{Requests: six, Limits: six}
	needy, gpu := whole, withTwo("main", workload.App)
	gpu.Requests = workload.Quantities{workload.CPU: 2000, workload.Memory: 64 << 20, "example.com/gpu": 1}
	gpu.Limits = gpu.Requests
	needy.Containers = slices.Concat(pod.Containers[:2], []workload.Container{gpu})
	env := loadMachine(t, `{"name": "even", "num_cpus": 1, "num_cores": 1, "num_sockets": 1, "num_numa_nodes": 1, "num_uncore": 1,
		"cpus": [{}], "nodes": [{"distances": [10]}]}`)
	for _, tt := range []struct {
		name string
		pod  workload.Pod
		cpu  cpuState
		want string
	}{
		{"handed on", pod, cpuState{Default: cpus("0,5-7"), Assignments: assignments{"p": {"init": cpus("1-2"), "side": cpus("1-2"),
			"main": cpus("3-4")}}}, ""},
		{"reserved", pod, cpuState{Default: cpus("5-7"), Assignments: assignments{"p": {"init": cpus("1-2"), "side": cpus("1-2"),
			"main": cpus("0,3")}}}, torn},
		{"of a sidecar", pod, cpuState{Default: cpus("0,5-7"), Assignments: assignments{"p": {"init": cpus("1-2"), "side": cpus("1-2"),
			"main": cpus("2-3")}}}, torn},
		{"nobody's left", pod, cpuState{Assignments: assignments{"p": {"init": cpus("1-2"), "side": cpus("1-2")}}}, emptied},
		{"too few", pod, cpuState{Default: cpus("0,4-7"), Assignments: assignments{"p": {"init": cpus("1-2"), "side": cpus("1-2"),
			"main": cpus("3")}}}, doubled},
		{"as a whole", whole, cpuState{Default: cpus("0,7"), PodAssignments: cpuSets{"p": cpus("1-6")},
			Assignments: assignments{"p": {"init": cpus("1-2"), "side": cpus("1-2"), "main": cpus("3-4")}}}, ""},
		{"as a whole, reserved", whole, cpuState{Default: cpus("7"), PodAssignments: cpuSets{"p": cpus("0-5")},
			Assignments: assignments{"p": {"init": cpus("1-2"), "side": cpus("1-2"), "main": cpus("3-4")}}}, torn},
		{"as a whole, twice", whole, cpuState{Default: cpus("0,7"), PodAssignments: cpuSets{"p": cpus("1-6")},
			Assignments: assignments{"p": {"init": cpus("1-2"), "side": cpus("1-2"), "main": cpus("2-3")}}}, torn},
		{"as a whole, beyond", whole, cpuState{Default: cpus("0"), PodAssignments: cpuSets{"p": cpus("1-6")},
			Assignments: assignments{"p": {"init": cpus("1-2"), "side": cpus("1-2"), "main": cpus("6-7")}}}, torn},
		{"without devices", needy, cpuState{Default: cpus("0,7"), PodAssignments: cpuSets{"p": cpus("1-6")},
			Assignments: assignments{"p": {"init": cpus("1-2"), "side": cpus("1-2"), "main": cpus("3-4")}}}, deviceless},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := podAdmitIn{
				Gates: vector.Gates{vector.PodLevelResourceManagers: true}, TopologyPolicy: "restricted", TopologyScope: "pod",
				Topology:     "even",
				ReservedCPUs: cpus("0"), Pods: map[string]vector.Pod{"p": {Pod: &tt.pod}}, Steps: []podStep{{"admit", "p"}},
			}
			in.Devices = map[string][]listedDevice{"example.com/gpu": {{ID: "gpu0"}}}
			want := podAdmitWant{Steps: []podStepWant{{Result: &podResult{Admit: true}, CPU: tt.cpu}}}
			if d := in.defects(env, want)[0]; d.entry != tt.want {
				t.Errorf("%q, want %q", d, tt.want)
			}
		})
	}
}

// TestRefusedPodKeepsItsSet: in a history, a pod as a whole is refused because its containers do not fit into its CPUs, which
// stay taken. The steps after it are judged by the recording, and without the defect the runner would say that they differ.
func TestRefusedPodKeepsItsSet(t *testing.T) {
	t.Parallel()
	cpuList := make([]string, 8)
	for i := range cpuList {
		cpuList[i] = fmt.Sprintf(`{"cpu": %d, "core": %d, "socket": 0, "numa": 0, "uncore": 0}`, i, i)
	}
	env := loadMachine(t, `{"name": "eight", "num_cpus": 8, "num_cores": 8, "num_sockets": 1, "num_numa_nodes": 1, "num_uncore": 1,
		"cpus": [`+strings.Join(cpuList, ",")+`], "nodes": [{"id": 0, "distances": [10]}]}`)
	env.Reference = newest
	four := workload.Quantities{workload.CPU: 4000, workload.Memory: 64 << 20}
	warm := withTwo("warm", workload.Init)
	warm.Requests, warm.Limits = four, four
	whole := workload.Pod{UID: "p",
		Containers: []workload.Container{withTwo("side", workload.Sidecar), warm, withTwo("main", workload.App)},
		Resources:  &workload.Resources{Requests: four, Limits: four}}
	other := workload.Pod{UID: "q", Containers: []workload.Container{withTwo("main", workload.App)}}
	in := podAdmitIn{
		Gates:    vector.Gates{vector.PodLevelResources: true, vector.PodLevelResourceManagers: true},
		Topology: "eight", TopologyPolicy: "restricted", TopologyScope: "pod", ReservedCPUs: cpus("0"), NumReserved: 1,
		Providers: []string{"cpu"}, Pods: map[string]vector.Pod{"p": {Pod: &whole}, "q": {Pod: &other}},
		Steps: []podStep{{"admit", "p"}, {"remove", "p"}, {"admit", "q"}},
	}
	kept := cpuState{Default: cpus("0,5-7"), PodAssignments: cpuSets{"p": cpus("1-4")}}
	want := func(taken, shared string) podAdmitWant {
		return podAdmitWant{Steps: []podStepWant{
			{Result: &podResult{Reason: "UnexpectedAdmissionError",
				Message: "Allocate failed due to not enough cpus available"}, CPU: kept},
			{CPU: kept},
			{Result: &podResult{Admit: true}, CPU: cpuState{Default: cpus(shared), PodAssignments: kept.PodAssignments,
				Assignments: assignments{"q": {"main": cpus(taken)}}}},
		}}
	}
	for _, tt := range []struct {
		taken, shared string
		entry         string
	}{
		{"5-6", "0,7", keeps},
		{"6-7", "0,5", ""},
	} {
		recorded := want(tt.taken, tt.shared)
		got, err := decidePodAdmit(env, in)
		if err != nil {
			t.Fatal(err)
		}
		if got[0].Result.Admit {
			t.Error("berth admits the pod")
		}
		for i := range recorded.Steps {
			recorded.Steps[i].Memory, recorded.Steps[i].Affinity = got[i].Memory, got[i].Affinity
		}
		entry, err := podAdmitDiffers(env, in, recorded, got)
		if entry != tt.entry || (err == nil) != (tt.entry != "") {
			t.Errorf("%s: entry %q, %v", tt.taken, entry, err)
		}
	}
}

// TestUnevenMachine: on a machine with sockets of unlike sizes a recording may have
// CPUs that are far, or have counted some that are not free.
func TestUnevenMachine(t *testing.T) {
	t.Parallel()
	env := loadMachine(t, `{"name": "odd", "num_cpus": 5, "num_cores": 5, "num_sockets": 3, "num_numa_nodes": 5, "num_uncore": 3,
		"cpus": [{"cpu": 2, "core": 2, "socket": 1, "numa": 0, "uncore": 1}, {"cpu": 3, "core": 3, "socket": 1, "numa": 1, "uncore": 1},
			{"cpu": 4, "core": 4, "socket": 2, "numa": 2, "uncore": 2}, {"cpu": 5, "core": 5, "socket": 2, "numa": 3, "uncore": 2},
			{"cpu": 6, "core": 6, "socket": 3, "numa": 4, "uncore": 3}],
		"nodes": [{"id": 0, "distances": [10,20,20,20,20]}, {"id": 1, "distances": [20,10,20,20,20]},
			{"id": 2, "distances": [20,20,10,20,20]},
			{"id": 3, "distances": [20,20,20,10,20]}, {"id": 4, "distances": [20,20,20,20,10]}]}`)
	pod := workload.Pod{UID: "p", Containers: []workload.Container{withTwo("main", workload.App)}}
	in := podAdmitIn{Topology: "odd", ReservedCPUs: cpus("6"), Pods: map[string]vector.Pod{"p": {Pod: &pod}},
		Steps: []podStep{{"admit", "p"}}}
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
			Result: &tt.result, Affinity: map[string]vector.Affinity{"main": {NUMA: vector.MaskOf(1, 3)}},
			CPU: cpuState{Default: cpus(tt.shared), Assignments: assignments{"p": {"main": cpus(tt.cpus)}}},
		}}}
		if d := in.defects(env, want)[0]; d.entry != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, d, tt.want)
		}
	}
}

// loadMachine has one recorded machine.
func loadMachine(t *testing.T, text string) *Env {
	t.Helper()
	file := filepath.Join(t.TempDir(), "topologies.json")
	if err := os.WriteFile(file, []byte("["+text+"]"), 0o600); err != nil {
		t.Fatal(err)
	}
	machines, err := vector.LoadMachines(file)
	if err != nil {
		t.Fatal(err)
	}
	return &Env{Machines: machines}
}
