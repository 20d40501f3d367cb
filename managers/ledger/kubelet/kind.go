package kubelet

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// Kind names a state file by the manager that keeps it. The provider of the same
// name holds the claims that are made of it.
type Kind string

// The kinds.
const (
	CPU    Kind = "cpu"
	Memory Kind = "memory"
	Device Kind = "device"
)

// kinds is what can be done with each kind of file.
var kinds = map[Kind]struct {
	// file is the name of the file in the kubelet's root directory.
	file  string
	read  func(data []byte, in Input) (Facts, error)
	write func(view *ledger.View, settings Settings, format int) (File, error)
}{
	CPU:    {"cpu_manager_state", readCPU, writeCPU},
	Memory: {"memory_manager_state", readMemory, writeMemory},
	Device: {"device-plugins/kubelet_internal_checkpoint", readDevice, writeDevice},
}

// Settings are the settings of the kind's manager in berth.
type Settings struct {
	// Policy that it runs under.
	Policy string
	// ReservedMemory is what the memory manager keeps for the system, in bytes by
	// NUMA node and resource.
	ReservedMemory map[int]map[string]uint64
	// HealthyDevices are the ids of devices that may be allocated, by resource.
	HealthyDevices map[string][]string
}

// Input holds what a file is read with.
type Input struct {
	Settings
	// View of the ledger that receives the facts; its rules contain the machine.
	View *ledger.View
	// Pods by uid, in addition to those of the view.
	Pods map[string]*workload.Pod
	// ContainerIDs are the containers of the runtime's ids, for formats that name
	// them so.
	ContainerIDs map[string]ledger.Owner
	// PodLevel reports whether pods with pod-level resources are managed (feature gate
	// PodLevelResourceManagers). Without it, files with entries of such pods are refused.
	PodLevel bool
	// SkipUnknown skips entries of unknown pods or containers. Otherwise the file is refused.
	SkipUnknown bool
}

// Facts are the content of a file.
type Facts struct {
	// File is the name of the file.
	File string
	// Format is the file's, counted as its kind does.
	Format int
	// Pods are the uids of all pods in the file, known or not, sorted.
	Pods []string
	// Claims of known owners.
	Claims []ledger.Claim
	// Resources are device resources that had plugins.
	Resources []string
	// Flaws are entries with parts that no kubelet would start with. Claims of such entries are without
	// these parts.
	Flaws []Flaw
	// Skipped describes the skipped entries of unknown owners.
	Skipped []string
	// Notes are other information for an operator.
	Notes []string
}

// Flaw tells what is wrong with an entry of a file.
type Flaw struct{ Entry, Text string }

// File is a state file as a kubelet writes it.
type File struct {
	Name   string
	Format int
	Data   []byte
}

// Read converts a state file to facts. In addition to the parser's errors, there are class
// Invalid for an unknown kind, and Precondition for entries of unknown owners, which it lists.
func Read(kind Kind, data []byte, in Input) (Facts, error) {
	k, ok := kinds[kind]
	if !ok {
		return Facts{}, unknownKind(kind)
	}
	facts, err := k.read(data, in)
	if err != nil {
		return Facts{}, fmt.Errorf("import %s: %w", k.file, err)
	}
	facts.File = k.file
	if len(facts.Skipped) > 0 && !in.SkipUnknown {
		return Facts{}, errdefs.Preconditionf("import %s: the owner of %s is unknown; add these pods, or skip unknown entries",
			k.file, first(facts.Skipped))
	}
	return facts, nil
}

// Write creates the state file of a view with the settings of the kind's manager. Format 0 is the
// oldest format that can contain everything. Class Invalid is an unknown kind, Unsupported a
// format that cannot be written, and Precondition a claim that the file cannot contain on this
// machine.
func Write(kind Kind, view *ledger.View, settings Settings, format int) (File, error) {
	k, ok := kinds[kind]
	if !ok {
		return File{}, unknownKind(kind)
	}
	file, err := k.write(view, settings, format)
	if err != nil {
		return File{}, fmt.Errorf("export %s: %w", k.file, err)
	}
	file.Name = k.file
	return file, nil
}

func unknownKind(kind Kind) error {
	var vs errdefs.Violations
	vs.Addf("kind", "%.40q: expected one of %s, %s, %s", string(kind), CPU, Memory, Device)
	return vs.Err("request")
}

// first lists a few of many things.
func first(list []string) string {
	const few = 8
	if more := len(list) - few; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:few], ", "), more)
	}
	return strings.Join(list, ", ")
}

// pod finds a pod in Pods or in the view; nil if it is unknown.
func (in *Input) pod(uid string) *workload.Pod {
	if p := in.Pods[uid]; p != nil {
		return p
	}
	if record, ok := in.View.Pod(uid); ok {
		return &record.Pod
	}
	return nil
}

// allow refuses entries of pods as a whole where the gate is off. A kubelet since 1.37 ignores these
// entries, and gives the CPUs that the pod's containers share to each of them exclusively.
func (in *Input) allow(pods int) error {
	if in.PodLevel || pods == 0 {
		return nil
	}
	return errdefs.Preconditionf("the file has entries of %d pods as a whole (podEntries), and the feature gate PodLevelResourceManagers is off: turn the gate on, or drain the node and import a file that was written without it", pods)
}

// name adds pods that the file names.
func (f *Facts) name(uids iter.Seq[string]) {
	f.Pods = slices.AppendSeq(f.Pods, uids)
	slices.Sort(f.Pods)
	f.Pods = slices.Compact(f.Pods)
}

// skip records an entry of an unknown owner.
func (f *Facts) skip(format string, args ...any) {
	f.Skipped = append(f.Skipped, fmt.Sprintf(format, args...))
}

func (f *Facts) note(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(f.Notes, text) {
		f.Notes = append(f.Notes, text)
	}
}

// badFormat refuses the format in which a file is to be written.
func badFormat(format string, args ...any) error {
	var vs errdefs.Violations
	vs.Addf("format", format, args...)
	return vs.Err("request")
}
