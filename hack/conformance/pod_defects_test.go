package main

import (
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
			if _, entry, why := in.defectAt(&Env{}, want); entry != tt.want {
				t.Errorf("%q (%s), want %q", entry, why, tt.want)
			}
		})
	}
}
