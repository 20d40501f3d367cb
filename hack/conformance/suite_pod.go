package main

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/berthd/berth/hack/conformance/vector"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/topology"
)

// podAdmit: whole pods through the engine with every manager.
var podAdmit = Define("pod_admit", Plan[podAdmitIn, podAdmitWant, []podStepGot]{
	Decide:  decidePodAdmit,
	Compare: comparePodAdmit,
	Differs: podAdmitDiffers,
	Better:  podAdmitBetter,
	Unsound: podAdmitUnsound,
})

type podAdmitIn struct {
	Gates    vector.Gates `json:"gates"`
	Topology string       `json:"topology"`
	Machine  struct {
		Nodes []vector.Node `json:"nodes"`
	} `json:"machine"`
	TopologyPolicy  string            `json:"topology_policy"`
	TopologyScope   string            `json:"topology_scope"`
	TopologyOptions map[string]string `json:"topology_options"`
	CPUOptions      map[string]string `json:"cpu_policy_options"`
	NumReserved     int               `json:"num_reserved"`
	ReservedCPUs    cpuset.Set        `json:"reserved_cpus"`
	// ReservedMemory by node and resource.
	ReservedMemory map[int]map[string]uint64 `json:"reserved_memory"`
	deviceState
	// Providers in the order of their calls.
	Providers []string              `json:"providers"`
	Pods      map[string]vector.Pod `json:"pods"`
	Steps     []podStep             `json:"steps"`
}

type podStep struct {
	Op  string `json:"op"`
	Pod string `json:"pod"`
}

type podAdmitWant struct {
	Steps []podStepWant `json:"steps"`
}

// podStepWant is the recorded state after a step. After the admission of a pod
// that was rejected it still has what the pod was given before something failed;
// the removal that follows takes that back.
type podStepWant struct {
	Result   *podResult                     `json:"result"`
	Affinity map[string]vector.Affinity     `json:"affinity"`
	CPU      cpuState                       `json:"cpu"`
	Memory   memoryState                    `json:"memory"`
	Devices  map[string]map[string][]string `json:"devices"`
}

type podResult struct {
	Admit   bool   `json:"admit"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// podStepGot is berth's state after a step. Affinity and Devices are the pod's,
// by container.
type podStepGot struct {
	Result   *podResult
	Affinity map[string]vector.Affinity
	CPU      cpuState
	Memory   memoryState
	Devices  map[string]map[string][]string
	// Left lists changes by a rejected admission. Wrong lists claims of a pod that it does not
	// request. Both must be empty.
	Left, Wrong string
}

// podBench is an engine on an empty machine. The recorded pods are the managers' inputs, and an
// API server would refuse some of them. They are therefore neither defaulted nor validated.
type podBench struct {
	*live.Trial
	cpus   *cpuBench
	memory *memory.Manager
	// known are the listed devices by resource and id.
	known map[string]map[string]ledger.Device
	// on starts a trial on another view.
	on func(*ledger.View) *live.Trial
}

// providerNames are the managers in the recordings' spelling.
var providerNames = map[string]string{"devices": device.Name, "cpu": cpu.Name, "memory": memory.Name}

func (in podAdmitIn) bench(env *Env) (*podBench, error) {
	m, err := in.machine(env)
	if err != nil {
		return nil, err
	}
	setup := cpuSetup{Gates: in.Gates, Options: in.CPUOptions, NumReserved: in.NumReserved, Given: &in.ReservedCPUs}
	config := setup.config(in.TopologyPolicy)
	config.AsKubelet = env.asKubelet
	cpus, err := cpu.New(config, m)
	if err != nil {
		return nil, err
	}
	mem, err := memorySetup{Gates: in.Gates}.manager(in.ReservedMemory, m, env.asKubelet)
	if err != nil {
		return nil, err
	}
	policy, err := topology.New(topology.Config{
		Policy: topology.Policy(in.TopologyPolicy), Scope: hint.Scope(in.TopologyScope), Options: in.TopologyOptions,
	}, m.NodeMask(), m.Distances())
	if err != nil {
		return nil, err
	}
	inventory, known, err := in.inventory(nil)
	if err != nil {
		return nil, err
	}
	built := map[string]hint.Provider{cpu.Name: cpus, memory.Name: mem, device.Name: device.New(inventory, nil)} // a trial calls no plugin
	var order []string
	var entries []hint.Entry
	for _, name := range in.Providers {
		order = append(order, providerNames[name])
		entries = append(entries, hint.Entry{Provider: built[providerNames[name]], Mode: hint.Required})
	}
	bus, err := hint.NewBus(order, entries, nil)
	if err != nil {
		return nil, err
	}
	engine := admission.Config{Features: in.Gates.Features(), Tries: -1}
	b := &podBench{cpus: newCPUBench(cpus, m), memory: mem, known: known}
	b.on = func(view *ledger.View) *live.Trial { return live.NewTrial(engine, view, bus, policy) }
	b.Trial = b.on(b.cpus.base)
	return b, nil
}

// machine has the CPUs of the named machine and the case's own memory.
func (in podAdmitIn) machine(env *Env) (*machine.Topology, error) {
	s := env.machine(in.Topology).Snapshot()
	s.Nodes = vector.Nodes(in.Machine.Nodes)
	return machine.New(s)
}

// decidePodAdmit uses one ledger for all steps. State that the reference counts differently is
// tracked separately, as in memory_sequences.
func decidePodAdmit(env *Env, in podAdmitIn) ([]podStepGot, error) {
	b, err := in.bench(env)
	if err != nil {
		return nil, err
	}
	usage := memoryState{}.with(b.memory.State(b.View()), b.memory.State(b.View()), &ledger.Pod{}, nil)
	var got []podStepGot
	for i, step := range in.Steps {
		g, err := in.step(b, step, &usage)
		if findings := check.View(b.View()); err == nil && len(findings) > 0 {
			err = errors.New(findings[0].String())
		}
		if err != nil {
			return nil, fmt.Errorf("step %d: %w", i, err)
		}
		b.read(&g, in.Pods[step.Pod].UID)
		got = append(got, g)
	}
	return got, nil
}

// step admits or removes a pod. The usage is kept as the reference keeps its memory
// tables.
func (in podAdmitIn) step(b *podBench, step podStep, usage *memoryState) (g podStepGot, err error) {
	pod := new(*in.Pods[step.Pod].Pod)
	pod.Name, pod.Namespace = pod.UID, "default"
	before := b.View()
	switch step.Op {
	case "admit":
		v, err := b.Admit(context.Background(), pod)
		if err != nil {
			return g, err
		}
		g.Result = &podResult{v.Outcome == admission.Admitted, string(v.Reason), v.Message}
		if !g.Result.Admit {
			g.Left = changed(before, b.View())
			break
		}
		g.Wrong = amiss(v.Pod)
		*usage = usage.with(b.memory.State(before), b.memory.State(v.View), v.Pod, v.Pod.Claims)
		g.Affinity = mergedFor(v)
	case "remove":
		for _, c := range pod.Walk() {
			*usage = usage.without(pod.UID, c.Name)
		}
		left := ledger.NewDraft(before)
		left.RemovePod(pod.UID)
		b.Trial = b.on(left.View())
	default:
		return g, fmt.Errorf("unknown operation %q", step.Op)
	}
	g.Memory = *usage
	return g, nil
}

// mergedFor gives the merged hints by container. Under the pod scope they are the
// same for all.
func mergedFor(v admission.Verdict) map[string]vector.Affinity {
	out := map[string]vector.Affinity{}
	for _, s := range v.Trace.Steps {
		if s.Kind != ledger.StepMerged {
			continue
		}
		for i := range v.Pod.Pod.Containers {
			if name := v.Pod.Pod.Containers[i].Name; s.Container == "" || s.Container == name {
				out[name] = vector.FromHint(*s.Affinity)
			}
		}
	}
	return out
}

// changed names what differs between two views apart from traces.
func changed(before, after *ledger.View) string {
	if before.NumPods() != after.NumPods() {
		return "pods"
	}
	if !reflect.DeepEqual(slices.Collect(before.Claims()), slices.Collect(after.Claims())) {
		return "claims"
	}
	return ""
}

// read fills in CPUs, and the devices of a pod.
func (b *podBench) read(g *podStepGot, uid string) {
	view := b.View()
	g.CPU = cpuState{}.with(view, nil)
	g.Devices = map[string]map[string][]string{}
	for c := range view.Claims() {
		switch {
		case c.CPUs != nil:
			g.CPU.add(c)
		case c.Devices != nil && c.Owner.Pod == uid:
			put(g.Devices, c.Owner.Container, c.Resource, c.Devices.IDs())
		}
	}
}

func comparePodAdmit(_ podAdmitIn, want podAdmitWant, got []podStepGot) string {
	var diffs []string
	for i, w := range want.Steps {
		if diff := got[i].differs(w); diff != "" {
			diffs = append(diffs, fmt.Sprintf("step %d: %s", i, diff))
		}
	}
	return strings.Join(diffs, ", ")
}

// differs compares a step. The reference's state while it rejects a pod is not compared: berth
// has no such state, and the next step shows the reference's state after undoing it.
func (g podStepGot) differs(want podStepWant) string {
	if want.Result != nil {
		switch {
		case *g.Result != *want.Result:
			return fmt.Sprintf("verdict: %+v, not %+v", *g.Result, *want.Result)
		case g.Left+g.Wrong != "":
			return "a rejected pod leaves " + g.Left + ", an admitted one holds " + g.Wrong
		case !g.Result.Admit:
			return ""
		}
		for name, a := range want.Affinity {
			if g.Affinity[name] != a {
				return "affinity of " + name
			}
		}
		if !reflect.DeepEqual(want.Devices, g.Devices) && len(want.Devices)+len(g.Devices) > 0 {
			return "devices"
		}
	}
	if diff := g.CPU.differs(want.CPU); diff != "" {
		return diff
	}
	return g.Memory.differsInSums(want.Memory)
}
