package simulation

import (
	"context"
	"time"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	fitv1 "github.com/berthd/berth/api/berth/fit/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/convert/decisions"
	"github.com/berthd/berth/api/convert/fits"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/explain"
	"github.com/berthd/berth/managers/fit"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/node"
	"github.com/berthd/berth/managers/workload"
)

// Scene holds what pods are tried on.
type Scene struct {
	Machine *machine.Topology
	Config  config.Config
	// Devices by resource, all of them healthy unless they say otherwise.
	Devices map[string][]device.Device
	// Facts of the node in addition to its machine; zero if they are not known.
	Facts node.Facts
	// Kubelet means that a kubelet decides on the node.
	Kubelet bool
}

// Options of a run.
type Options struct {
	// More is tried again and again after all other pods; nil requests no room.
	More *typesv1.Pod
	// Most bounds how often.
	Most int
	// Then are changes of the machine and of pods, after the pods and before More.
	Then []Event
	// On is a record whose pods are admitted already; nil for none.
	On *Record
}

// stage is a scene with everything built.
type stage struct {
	Scene
	managerSet *managerset.Set
	devices    *device.Snapshot
	engine     admission.Config
	read       convert.Reader
}

// Placement shows where everything is after a run.
type Placement struct {
	// View has the admitted pods with their claims.
	View *ledger.View
	// Memory is what the NUMA nodes have and hold; empty under the memory policy None.
	Memory []memory.NodeState
	// Reserved are the CPUs that no pod gets for itself.
	Reserved cpuset.Set
}

// Run admits pods one after the other, and returns what became of them and where everything
// is afterwards, without the pods of Options.More. Errors are of class Invalid: for a
// configuration that berthd would not start with on this machine, and for a pod that it would
// not decide about.
func (s Scene) Run(ctx context.Context, pods []*typesv1.Pod, o Options) (*admissionv1.Simulation, Placement, error) {
	out, st, view, err := s.run(ctx, pods, o)
	if err != nil {
		return nil, Placement{}, err
	}
	return out, Placement{View: view, Memory: st.managerSet.Memory.State(view), Reserved: st.managerSet.CPU.Reserved()}, nil
}

// State returns where everything is in a state of a record, which is of the scene's machine.
func (s Scene) State(rec *Record, view *ledger.View) (p Placement, err error) {
	if s.Config, err = inForce(s.Config, view.Override(), rec.Today); err != nil {
		return p, err
	}
	st, err := s.build()
	if err != nil {
		return p, err
	}
	return Placement{View: view, Memory: st.managerSet.Memory.State(view), Reserved: view.Rules().ReservedCPUs}, nil
}

func (s Scene) run(ctx context.Context, pods []*typesv1.Pod, o Options) (*admissionv1.Simulation, *stage, *ledger.View, error) {
	st, err := s.buildOn(o.On)
	if err != nil {
		return nil, nil, nil, err
	}
	out := &admissionv1.Simulation{
		Machine:        s.Machine.Snapshot().Name,
		TopologyPolicy: string(st.managerSet.Topology.Policy()), TopologyScope: string(st.managerSet.Topology.Scope()),
		CpuPolicy: st.managerSet.CPU.Describe().Policy,
	}
	begin := st.begin(o.On)
	trial := st.trial(begin, st.engine.Tries)
	for _, m := range pods {
		v, err := st.admit(ctx, trial, m)
		if err != nil {
			return nil, nil, nil, err
		}
		out.Pods = append(out.Pods, v)
	}
	st, view, changes, err := st.follow(ctx, trial.View(), o.Then)
	if err != nil {
		return nil, nil, nil, err
	}
	out.Changes, out.Nodes = changes, st.uses(view)
	if o.More != nil {
		if out.Room, err = st.room(ctx, view, o); err != nil {
			return nil, nil, nil, err
		}
	}
	return out, st, view, nil
}

// Fit returns which pods fit on the scene, or with a record on what it has there, now or after up to maxMoves moves
// of other pods, and what the NUMA nodes have left. Errors are those of Run.
func (s Scene) Fit(ctx context.Context, pods []*typesv1.Pod, maxMoves int, on *Record) (*fitv1.FitResponse, error) {
	st, err := s.buildOn(on)
	if err != nil {
		return nil, err
	}
	begin := st.begin(on)
	var read []workload.Pod
	for _, m := range pods {
		pod, err := st.read.Pod(m)
		if err != nil {
			return nil, err
		}
		read = append(read, pod)
	}
	registered := st.engine.Resources.Started.Add(st.engine.Resources.Grace) // nothing more registers here
	outcomes, limited, err := fit.Try(ctx, st.engine, begin, st.managerSet, registered, read, fit.Search{MaxMoves: maxMoves})
	if err != nil {
		return nil, err
	}
	return fits.Fit(fits.FreeResources(begin, st.managerSet, st.devices, fits.Counted{}), outcomes, limited), nil
}

// begin is the state before the first pod.
func (s *stage) begin(on *Record) *ledger.View {
	if on == nil {
		return ledger.Empty(s.managerSet.Rules)
	}
	return on.View.Under(s.managerSet.Rules)
}

// buildOn makes the managers that decide on a record: with the policy in force there, and on its
// machine without the CPUs that were offline.
func (s Scene) buildOn(on *Record) (*stage, error) {
	if on == nil {
		return s.build()
	}
	if !on.isOn(s.Machine) {
		return nil, errdefs.Invalidf("the pods of the bundle are on another machine than the one of --machine: leave out --machine")
	}
	var err error
	if s.Config, err = inForce(s.Config, on.View.Override(), on.Today); err != nil {
		return nil, err
	}
	st, err := s.build()
	if err != nil {
		return nil, err
	}
	kept := cpuset.Set{}
	if reserved := on.View.Rules().ReservedCPUs; reserved == st.managerSet.CPU.Reserved() {
		kept = s.Config.KeptReserved(reserved)
	}
	s.Machine = on.View.Machine()
	return s.buildKeeping(kept)
}

// build makes the managers.
func (s Scene) build() (*stage, error) { return s.buildKeeping(cpuset.Set{}) }

// buildKeeping makes the managers with CPUs that stay reserved; empty for those that follow from the
// configuration.
func (s Scene) buildKeeping(reserved cpuset.Set) (*stage, error) {
	if err := s.Config.Validate(); err != nil {
		return nil, err
	}
	cfg, err := s.Config.ManagerSet(s.Machine)
	if err != nil {
		return nil, err
	}
	cfg.Facts, cfg.CPU.KeptReserved = s.Facts, reserved
	managers, err := managerset.New(cfg, s.Machine)
	if err != nil {
		return nil, err
	}
	inventory := device.NewInventory(nil, time.Time{})
	for resource, list := range s.Devices {
		for _, d := range list {
			if foreign := d.Nodes &^ s.Machine.NodeMask(); foreign != 0 {
				return nil, errdefs.Invalidf("device %s of %s: the machine has NUMA nodes %s, not %s", d.ID, resource,
					s.Machine.NodeMask(), foreign)
			}
		}
		inventory.Listed(inventory.Registered(resource, device.Options{}, time.Time{}), list, time.Time{})
	}
	devices := device.New(inventory, noPlugins{})
	managers, err = managers.Join([]hint.Entry{{Provider: devices, Mode: hint.Required}}, nil)
	if err != nil {
		return nil, err
	}
	st := &stage{Scene: s, managerSet: managers, devices: inventory.Snapshot()}
	st.engine = admission.Config{
		Features:  s.Config.WorkloadFeatures(),
		Bounds:    workload.Bounds{Containers: s.Config.Limits.Containers},
		Resources: s.Config.Resources(time.Time{}),
		Kubelet:   s.Kubelet,
	}
	// No plugin will register: the scene has all resources that there are.
	st.engine.Resources.Unknown = admission.RejectUnknown
	st.read = convert.Reader{Features: st.engine.Features, Bounds: st.engine.Bounds}
	return st, nil
}

// trial starts on a view; below 0 tries, rejections are not explained.
func (s *stage) trial(view *ledger.View, tries int) *live.Trial {
	cfg := s.engine
	cfg.Tries = tries
	return live.NewTrial(cfg, view, s.managerSet.Bus, s.managerSet.Topology).ForClaims(s.managerSet.For)
}

// pod reads a pod as an admission does.
func (s *stage) pod(m *typesv1.Pod) (*workload.Pod, []string, error) {
	read, err := s.read.Pod(m)
	if err != nil {
		return nil, nil, err
	}
	pod, notes := workload.Defaulted(read, s.engine.Features)
	pod.QoS = pod.QoSClass(s.engine.Features)
	return &pod, notes, nil
}

// decide decides about a pod. An admitted one is there for those after it.
func (s *stage) decide(ctx context.Context, trial *live.Trial, m *typesv1.Pod) (*workload.Pod, admission.Verdict, error) {
	pod, notes, err := s.pod(m)
	if err != nil {
		return nil, admission.Verdict{}, err
	}
	if _, twice := trial.View().Pod(pod.UID); twice {
		return nil, admission.Verdict{}, errdefs.Invalidf("pod %s is listed twice: every pod has a uid of its own", pod)
	}
	unserved := convert.Unserved(m)
	v, err := trial.Admit(ctx, pod, append(notes, unserved...)...)
	for _, text := range unserved {
		v.Notes = append(v.Notes, admission.Note{Text: text})
	}
	return pod, v, err
}

func (s *stage) admit(ctx context.Context, trial *live.Trial, m *typesv1.Pod) (*admissionv1.SimulatedPod, error) {
	pod, v, err := s.decide(ctx, trial, m)
	if err != nil {
		return nil, err
	}
	return &admissionv1.SimulatedPod{
		Uid: pod.UID, Namespace: pod.Namespace, Name: pod.Name, Verdict: decisions.Verdict(v, admissionv1.TraceLevel_TRACE_LEVEL_FULL),
	}, nil
}

// room counts copies of a pod, and then has the first that was not admitted
// explained.
func (s *stage) room(ctx context.Context, view *ledger.View, o Options) (*admissionv1.Room, error) {
	pod, notes, err := s.pod(o.More)
	if err != nil {
		return nil, err
	}
	trial := s.trial(view, -1)
	n, last, err := trial.Fill(ctx, pod, o.Most)
	if err != nil {
		return nil, err
	}
	room := &admissionv1.Room{Namespace: pod.Namespace, Name: pod.Name, Pods: uint32(n)}
	if room.AtLeast = last.Outcome == admission.Admitted; !room.AtLeast {
		pod.UID += "-more"
		if last, err = s.trial(trial.View(), s.engine.Tries).Admit(ctx, pod, notes...); err != nil {
			return nil, err
		}
		for i := range last.Trace.Steps { // most of the holders are the copies, which are no real pods
			for k := range last.Trace.Steps[i].Shortages {
				short := &last.Trace.Steps[i].Shortages[k]
				short.Holders, short.MoreHolders = nil, 0
			}
		}
		explain.Say(last.View, last.Trace)
		room.Refusal = decisions.Verdict(last, admissionv1.TraceLevel_TRACE_LEVEL_FULL)
	}
	return room, nil
}

// uses adds up what there is on each node and what is taken of it. Memory that is placed anywhere is
// left out.
func (s *stage) uses(view *ledger.View) (out []*admissionv1.NodeUse) {
	for _, node := range fit.Nodes(view, s.managerSet, s.devices) {
		cpus := s.Machine.CPUsInNode(node.ID)
		use := &admissionv1.NodeUse{
			NumaNode: uint32(node.ID), Cpus: convert.CPUSet(cpus), TakenCpus: convert.CPUSet(cpus.Intersect(view.ExclusiveCPUs())),
		}
		for _, r := range node.Resources {
			isCPU := r.Name == string(workload.CPU)
			if isCPU && r.Allocatable == 0 || !isCPU && !r.Aligned {
				continue
			}
			use.Resources = append(use.Resources, &admissionv1.ResourceUse{Resource: r.Name, Allocatable: r.Allocatable, Taken: r.Held})
		}
		out = append(out, use)
	}
	return out
}

// noPlugins stands for the plugins of simulated devices. Simulated devices have no preference.
type noPlugins struct{}

func (noPlugins) Preferred(context.Context, string, []string, []string, int) ([]string, error) {
	return nil, nil
}

func (noPlugins) Allocate(context.Context, string, []string) ([]byte, error) { return nil, nil }
