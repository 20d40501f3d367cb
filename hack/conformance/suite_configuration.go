package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berthd/berth/hack/conformance/vector"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/topology"
)

// configuration: start-up checks of the managers and of their states.
var configuration = Define("configuration", Plan[configurationIn, configurationWant, configurationGot]{
	Decide:  decideConfiguration,
	Compare: compareConfiguration,
	Differs: configurationDiffers,
	Unsound: configurationUnsound,
})

type configurationIn struct {
	Op    string          `json:"op"`
	Gates vector.Gates    `json:"gates"`
	In    json.RawMessage `json:"in"`
}

// configurationWant is a recording. All refusals are of the class "other", so only a panic has
// more information than the verdict.
type configurationWant struct {
	OK    bool           `json:"ok"`
	Error *vector.Error  `json:"error"`
	Out   map[string]any `json:"out"`
}

type configurationGot struct {
	OK    bool           `json:"ok"`
	Error string         `json:"error,omitempty"`
	Out   map[string]any `json:"out,omitempty"`
}

// configurationOps are the checks by operation. A check's error is the verdict;
// out is what can be read off the manager afterwards.
var configurationOps = map[string]func(env *Env, in configurationIn) (out map[string]any, refusal, err error){
	"cpu_manager":        configureCPUManager,
	"cpu_static_policy":  configureCPUPolicy,
	"cpu_state_check":    checkCPUState,
	"memory_manager":     configureMemoryManager,
	"memory_state_check": checkMemoryState,
	"topology_manager":   configureTopology,
}

func decideConfiguration(env *Env, in configurationIn) (configurationGot, error) {
	op, ok := configurationOps[in.Op]
	if !ok {
		return configurationGot{}, fmt.Errorf("unknown operation %q", in.Op)
	}
	out, refusal, err := op(env, in)
	if err != nil {
		return configurationGot{}, err
	}
	if refusal != nil {
		return configurationGot{Error: refusal.Error()}, nil
	}
	return configurationGot{OK: true, Out: out}, nil
}

func compareConfiguration(_ configurationIn, want configurationWant, got configurationGot) string {
	if want.OK != got.OK {
		return "verdict"
	}
	for key, value := range want.Out {
		if got.Out[key] != value {
			return key
		}
	}
	return ""
}

// configurationUnsound finds reserved CPUs that the reference has chosen with overwritten nodes.
func configurationUnsound(env *Env, in configurationIn, want configurationWant) string {
	if _, _, reserved, wrong := in.misreserved(env, want); wrong {
		return fmt.Sprintf("CPUs %s are reserved, of nodes that were overwritten", reserved)
	}
	return ""
}

// misreserved returns the CPUs that the recorded policy reserves, and whether they are of
// overwritten nodes.
func (in configurationIn) misreserved(env *Env, want configurationWant) (c cpuPolicyIn, b *cpuBench, reserved cpuset.Set, wrong bool) {
	list, known := want.Out["allocatable_cpus"].(string)
	if in.Op != "cpu_static_policy" || !known {
		return c, b, reserved, false
	}
	c, b, refusal, err := in.cpuPolicy(env)
	allocatable, unreadable := cpuset.Parse(list)
	if errors.Join(refusal, err, unreadable) != nil {
		return c, b, reserved, false
	}
	reserved = b.machine.CPUs().Minus(allocatable)
	return c, b, reserved, c.cpuSetup.misreserved(env.Reference, b.machine, reserved)
}

// configurationDiffers judges such a choice. It also judges the check of a state in which the
// nodes of a group have different page sizes, which crashes the reference.
func configurationDiffers(env *Env, in configurationIn, want configurationWant, got configurationGot) (string, error) {
	if in.Op == "memory_state_check" && want.Error != nil && want.Error.Class == "panic" {
		return unknownSize, nil
	}
	c, b, reserved, wrong := in.misreserved(env, want)
	switch {
	case !wrong || !want.OK || !got.OK:
		return "", errors.New("no entry is about this")
	case !c.overwritten(env.Reference, b.machine, b.Reserved(), reserved):
		return "", errors.New("the reserved CPUs are not those that nodes would give that are not overwritten")
	}
	return overwrites, nil
}

func configureCPUManager(env *Env, in configurationIn) (out map[string]any, refusal, err error) {
	var c struct {
		Topology    string            `json:"topology"`
		Policy      string            `json:"policy"`
		Options     map[string]string `json:"policy_options"`
		ReservedCPU string            `json:"reserved_cpu"`
	}
	if err := decode(in.In, &c); err != nil {
		return nil, nil, err
	}
	cfg := cpu.Config{Policy: c.Policy, Options: c.Options, Features: cpuFeatures(in.Gates)}
	if c.ReservedCPU != "" {
		q, err := resource.ParseQuantity(c.ReservedCPU)
		if err != nil {
			return nil, nil, err
		}
		cfg.ReservedMilliCPU = q.MilliValue()
	}
	_, refusal = cpu.New(cfg, env.machine(c.Topology))
	return nil, refusal, nil
}

// cpuPolicyIn sets up the static policy; State is given to state checks only.
type cpuPolicyIn struct {
	cpuSetup
	TopologyPolicy string   `json:"topology_policy"`
	State          cpuState `json:"state"`
}

func (in configurationIn) cpuPolicy(env *Env) (c cpuPolicyIn, b *cpuBench, refusal, err error) {
	if err := decode(in.In, &c); err != nil {
		return c, nil, nil, err
	}
	c.Gates = in.Gates
	topo := env.machine(c.Topology)
	m, refusal := cpu.New(c.config(c.TopologyPolicy), topo)
	if refusal != nil {
		return c, nil, refusal, nil
	}
	return c, newCPUBench(m, topo), nil, nil
}

func configureCPUPolicy(env *Env, in configurationIn) (out map[string]any, refusal, err error) {
	_, b, refusal, err := in.cpuPolicy(env)
	if refusal != nil || err != nil {
		return nil, refusal, err
	}
	return map[string]any{
		"allocatable_cpus": b.Allocatable().String(),
		"default_cpus":     b.base.SharedCPUs().String(),
	}, nil, nil
}

func checkCPUState(env *Env, in configurationIn) (out map[string]any, refusal, err error) {
	c, b, refusal, err := in.cpuPolicy(env)
	if refusal != nil || err != nil {
		return nil, nil, fmt.Errorf("the policy of a state check: %w", errors.Join(refusal, err))
	}
	s := c.State.kubelet()
	return nil, s.Check(b.machine.CPUs(), b.Reserved(), b.StrictReservation()), nil
}

// kubelet returns a recorded state as the content of a checkpoint.
func (s cpuState) kubelet() kubelet.CPUState {
	s = s.clone()
	return kubelet.CPUState{Policy: cpu.PolicyStatic, Shared: s.Default, Containers: s.Assignments, Pods: s.PodAssignments}
}

func configureTopology(_ *Env, in configurationIn) (out map[string]any, refusal, err error) {
	var c struct {
		Policy       string            `json:"policy"`
		Scope        string            `json:"scope"`
		Options      map[string]string `json:"policy_options"`
		NUMANodes    int               `json:"numa_nodes"`
		HasDistances bool              `json:"has_distances"`
	}
	if err := decode(in.In, &c); err != nil {
		return nil, nil, err
	}
	var nodes numa.Mask
	rows := map[int]map[int]int{}
	for i := range c.NUMANodes {
		nodes = nodes.With(i)
		rows[i] = map[int]int{}
		for j := range c.NUMANodes {
			rows[i][j] = 20
		}
	}
	var distances numa.Distances
	if c.HasDistances {
		if distances, err = numa.NewDistances(rows); err != nil {
			return nil, nil, err
		}
	}
	m, refusal := topology.New(topology.Config{
		Policy: topology.Policy(c.Policy), Scope: hint.Scope(c.Scope), Options: c.Options, MaxNodes: topology.ReferenceMaxNodes,
	}, nodes, distances)
	if refusal != nil {
		return nil, refusal, nil
	}
	return map[string]any{"policy": string(m.Policy()), "scope": string(m.Scope())}, nil, nil
}

// checkpoints: the bytes of the kubelet's state files.
var checkpoints = Define("checkpoints", Plan[checkpointIn, checkpointWant, checkpointGot]{
	Decide:  decideCheckpoint,
	Compare: compareCheckpoint,
	Unread:  []string{"file_name"}, // the same as the operation
})

type checkpointIn struct {
	Op     string       `json:"op"`
	Gates  vector.Gates `json:"gates"`
	CPU    cpuState     `json:"cpu"`
	Memory memoryState  `json:"memory"`
}

type checkpointWant struct {
	File string `json:"file"`
}

// checkpointGot is the file written for the state, and the file written again after reading it.
type checkpointGot struct {
	File  string `json:"file"`
	Again string `json:"again"`
}

func decideCheckpoint(env *Env, in checkpointIn) (got checkpointGot, err error) {
	later := 0 // formats that have pods are one higher; since 1.37 another one, which has them, too
	switch {
	case env.Reference >= 37:
		later = 2
	case in.Gates.On(vector.PodLevelResourceManagers):
		later = 1
	}
	switch in.Op {
	case "cpu_manager_state":
		s := in.CPU.kubelet()
		return rewritten(&s, 2+later, func(file []byte) (*kubelet.CPUState, int, error) {
			s, err := kubelet.ParseCPU(file, nil)
			return &s, s.Format, err
		})
	case "memory_manager_state":
		s, err := in.Memory.kubelet()
		if err != nil {
			return got, err
		}
		s.Policy = memory.PolicyStatic
		return rewritten(&s, 1+later, func(file []byte) (*kubelet.MemoryState, int, error) {
			s, err := kubelet.ParseMemory(file)
			return &s, s.Format, err
		})
	}
	return got, fmt.Errorf("unknown operation %q", in.Op)
}

// rewritten writes a state, reads the file and writes it again.
func rewritten[S interface {
	Marshal(format int) ([]byte, error)
}](state S, format int, parse func([]byte) (S, int, error)) (got checkpointGot, err error) {
	file, err := state.Marshal(format)
	if err != nil {
		return got, err
	}
	read, format, err := parse(file)
	if err != nil {
		return got, err
	}
	again, err := read.Marshal(format)
	return checkpointGot{File: string(file), Again: string(again)}, err
}

func compareCheckpoint(_ checkpointIn, want checkpointWant, got checkpointGot) string {
	switch {
	case got.File != want.File:
		return "file"
	case got.Again != want.File:
		return "file that was read and written again"
	}
	return ""
}
