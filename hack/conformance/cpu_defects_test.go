package main

import (
	"strings"
	"testing"

	"github.com/berthd/berth/hack/conformance/vector"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/workload"
)

// TestCPUDefects shows recorded operations that cannot be right, and their like
// that can.
func TestCPUDefects(t *testing.T) {
	t.Parallel()
	topo := shaped(t, "2n4c")
	anywhere, far := vector.Affinity{}, vector.Affinity{NUMA: vector.MaskOf(1)}
	pod := &workload.Pod{UID: "p", Containers: []workload.Container{withTwo("a", workload.App), withTwo("b", workload.App)}}
	whole, four := new(*pod), workload.Quantities{workload.CPU: 4000, workload.Memory: 1 << 30}
	whole.Resources = &workload.Resources{Requests: four, Limits: four}
	podCPUs := func(a, b string) cpuState {
		return cpuState{PodAssignments: cpuSets{"p": cpus("1-4")}, Assignments: assignments{"p": {"a": cpus(a), "b": cpus(b)}}}
	}
	for _, tt := range []struct {
		name      string
		pod       *workload.Pod
		container string
		wish      vector.Affinity
		before    cpuState
		res       cpuResult
		after     cpuState
		want      string
	}{
		{"right", pod, "a", anywhere, cpuState{Default: cpus("0-7")}, cpuResult{OK: true, Allocated: true, CPUSet: cpus("1-2")},
			cpuState{}, ""},
		{"refused", pod, "a", anywhere, cpuState{Default: cpus("0-1")}, cpuResult{}, cpuState{}, ""},
		{"held", pod, "a", anywhere, cpuState{Default: cpus("0"), Assignments: assignments{"p": {"a": cpus("1-3")}}},
			cpuResult{OK: true, Allocated: true, CPUSet: cpus("1-3")}, cpuState{}, ""},
		{"handed on", pod, "b", anywhere, cpuState{Default: cpus("0"), Reusable: cpuSets{"p": cpus("1-2")}},
			cpuResult{OK: true, Allocated: true, CPUSet: cpus("1-2")}, cpuState{}, ""},
		{"too few", pod, "a", anywhere, cpuState{Default: cpus("0-7")}, cpuResult{OK: true, Allocated: true, CPUSet: cpus("1")},
			cpuState{}, "CPUs 1 are taken, and 2"},
		{"reserved", pod, "a", anywhere, cpuState{Default: cpus("0-7")}, cpuResult{OK: true, Allocated: true, CPUSet: cpus("0-1")},
			cpuState{}, "CPUs 0 are taken"},
		{"not free", pod, "a", anywhere, cpuState{Default: cpus("0-2")}, cpuResult{OK: true, Allocated: true, CPUSet: cpus("2-3")},
			cpuState{}, "CPUs 3 are taken"},
		{"as a whole", whole, "", anywhere, cpuState{Default: cpus("0-7")}, cpuResult{OK: true, Allocated: true, CPUSet: cpus("1-4")},
			podCPUs("1-2", "3-4"), ""},
		{"a second set", whole, "", anywhere, podCPUs("1-2", "3-4"), cpuResult{OK: true, Allocated: true, CPUSet: cpus("5-6")},
			cpuState{}, "the pod has its CPUs already"},
		{"kept by a refused pod", whole, "", anywhere, cpuState{Default: cpus("0-7")}, cpuResult{Allocated: true, CPUSet: cpus("1-4")},
			cpuState{}, "the pod is refused and keeps"},
		{"parts outside of the whole", whole, "", anywhere, cpuState{Default: cpus("0-7")},
			cpuResult{OK: true, Allocated: true, CPUSet: cpus("1-4")}, podCPUs("1-2", "4-5"), "containers have CPUs 5"},
		{"not where wanted", pod, "a", far, cpuState{Default: cpus("0-7")}, cpuResult{OK: true, Allocated: true, CPUSet: cpus("1,4")},
			cpuState{}, "CPUs 1,4 are taken, and more"},
		{"where wanted", pod, "a", far, cpuState{Default: cpus("0-7")}, cpuResult{OK: true, Allocated: true, CPUSet: cpus("4-5")},
			cpuState{}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := cpuSetup{Gates: vector.Gates{vector.PodLevelResourceManagers: true}, Reserved: cpus("0")}
			if got := s.choice(topo, tt.before, tt.pod, tt.container,
				tt.wish).unsound(tt.res, tt.after); !strings.HasPrefix(got, tt.want) || (got == "") != (tt.want == "") {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
	strict := cpuSetup{Reserved: cpus("0"), Options: map[string]string{cpu.StrictReservation: "true"}}
	if got := strict.choice(topo, cpuState{Default: cpus("0-7")}, pod, "a", vector.Affinity{}).unsound(cpuResult{}, cpuState{}); got == "" {
		t.Error("reserved CPUs in the shared pool went unnoticed")
	}
}

// TestHoldsStep holds answers that may differ from the recording against the rules.
func TestHoldsStep(t *testing.T) {
	t.Parallel()
	topo := shaped(t, "2n2c")
	pod := &workload.Pod{UID: "p", Containers: []workload.Container{withTwo("a", workload.App)}}
	before := cpuState{Default: cpus("0-3")}
	anywhere, far := vector.Affinity{}, vector.Affinity{NUMA: vector.MaskOf(1)}
	for _, tt := range []struct {
		name string
		wish vector.Affinity
		res  cpuResult
		pool string
		same bool
		ok   bool
	}{
		{"served", anywhere, cpuResult{OK: true, CPUSet: cpus("1-2")}, "0,3", false, true},
		{"where it should be", far, cpuResult{OK: true, CPUSet: cpus("2-3")}, "0-1", false, true},
		{"elsewhere", far, cpuResult{OK: true, CPUSet: cpus("1-2")}, "0,3", false, false},
		{"too few", anywhere, cpuResult{OK: true, CPUSet: cpus("1")}, "0,2-3", false, false},
		{"reserved", anywhere, cpuResult{OK: true, CPUSet: cpus("0-1")}, "2-3", false, false},
		{"another pool", anywhere, cpuResult{OK: true, CPUSet: cpus("1-2")}, "0", false, false},
		{"refused with room", anywhere, cpuResult{}, "0-3", false, false},
		{"refused as recorded", anywhere, cpuResult{}, "0-3", true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := cpuSetup{Reserved: cpus("0")}.choice(topo, before, pod, "a", tt.wish).check(tt.res, cpuState{Default: cpus(tt.pool)},
				tt.same)
			if (err == nil) != tt.ok {
				t.Errorf("%v, want ok %t", err, tt.ok)
			}
		})
	}
}

// TestOverwrittenReserve distinguishes choices of reserved CPUs that a known defect
// explains from those that nothing does.
func TestOverwrittenReserve(t *testing.T) {
	t.Parallel()
	distribute, none := map[string]string{cpu.DistributeAcrossNUMA: "true"}, cpuset.Set{}
	// 32 CPUs a node: 128 are those of nodes 0 to 3, of which the last is overwritten
	// by the last of all.
	topo := shaped(t, "2s4n16c2t")
	nodes := func(places ...int) cpuset.Set {
		var set cpuset.Set
		for _, i := range places {
			set = set.Union(topo.ByNode().CPUs(i))
		}
		return set
	}
	mine := nodes(0, 1, 2, 3)
	for _, tt := range []struct {
		name           string
		setup          cpuSetup
		mine, recorded cpuset.Set
		want           bool
	}{
		{"overwritten", cpuSetup{Options: distribute, NumReserved: 128}, mine, nodes(0, 1, 2, 7), true},
		{"overwritten by another", cpuSetup{Options: distribute, NumReserved: 128}, mine, nodes(0, 1, 2, 6), false},
		{"overwritten at another place", cpuSetup{Options: distribute, NumReserved: 128}, mine, nodes(0, 1, 7, 3), false},
		{"chosen wrongly here", cpuSetup{Options: distribute, NumReserved: 128}, nodes(0, 1, 2, 4), nodes(0, 1, 2, 7), false},
		{"too few nodes", cpuSetup{Options: distribute, NumReserved: 96}, nodes(0, 1, 2), nodes(0, 1, 7), false},
		{"another option", cpuSetup{NumReserved: 128}, mine, nodes(0, 1, 2, 7), false},
		{"given", cpuSetup{Options: distribute, Given: &none, NumReserved: 128}, mine, nodes(0, 1, 2, 7), false},
		{"another number", cpuSetup{Options: distribute, NumReserved: 96}, mine, nodes(0, 1, 2, 7), false},
	} {
		if got := tt.setup.overwritten(oldest, topo, tt.mine, tt.recorded); got != tt.want {
			t.Errorf("%s: %t", tt.name, got)
		}
	}
}

// TestSharedReserve: a removal keeps the reserved CPUs out of the shared pool, where a recording has them.
func TestSharedReserve(t *testing.T) {
	t.Parallel()
	want, got := cpuAllocated{After: cpuState{Default: cpus("0-3")}}, cpuAllocated{After: cpuState{Default: cpus("1-3")}}
	removal := cpuAllocateIn{cpuSetup{Reserved: cpus("0")}, operation[cpuState]{Op: "remove", Pod: vector.Pod{Pod: &workload.Pod{}}}}
	if entry, err := cpuAllocateDiffers(nil, removal, want, got); entry != torn || err != nil {
		t.Errorf("a removal that leaves the reserved CPU out: %q, %v", entry, err)
	}
	if _, err := cpuAllocateDiffers(nil, removal, want, want); err == nil {
		t.Error("a removal kept a reserved CPU in the shared pool")
	}
}

func TestConfigurationDefects(t *testing.T) {
	t.Parallel()
	refused := configurationWant{Error: &vector.Error{Class: "other"}}
	panicked := configurationWant{Error: &vector.Error{Class: "panic"}}
	ok := configurationWant{OK: true}
	for _, tt := range []struct {
		op   string
		want configurationWant
		got  bool
		id   string
	}{
		{"memory_state_check", panicked, true, unknownSize},
		{"memory_state_check", refused, true, ""},
		{"cpu_static_policy", ok, true, ""}, // nothing shows that nodes were overwritten
		{"cpu_static_policy", ok, false, ""},
		{"cpu_state_check", panicked, true, ""},
	} {
		id, err := configurationDiffers(nil, configurationIn{Op: tt.op}, tt.want, configurationGot{OK: tt.got})
		if id != tt.id || (err == nil) != (id != "") {
			t.Errorf("%+v: %q, %v", tt, id, err)
		}
	}
}

// shaped is a made-up machine.
func shaped(t *testing.T, shape string) *machine.Topology {
	t.Helper()
	snapshot, err := machine.ParseShape(shape)
	if err != nil {
		t.Fatal(err)
	}
	topo, err := machine.New(snapshot)
	if err != nil {
		t.Fatal(err)
	}
	return topo
}

// cpus parses a list of the table rows.
func cpus(list string) cpuset.Set {
	set, err := cpuset.Parse(list)
	if err != nil {
		panic(err)
	}
	return set
}

// withTwo is a Guaranteed container with two CPUs.
func withTwo(name string, role workload.Role) workload.Container {
	two := workload.Quantities{workload.CPU: 2000, workload.Memory: 64 << 20}
	return workload.Container{Name: name, Role: role, Requests: two, Limits: two}
}
