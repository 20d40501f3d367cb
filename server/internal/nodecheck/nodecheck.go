// Package nodecheck finds what is wrong on a node whose kubelet decides. It does no I/O: it compares the machine, the kubelet's
// configuration, its state files and the node's pods.
//
// Words:
//
//   - check: one question about a node. All checks are in one table, from which docs/check.md is written.
//   - finding: an answer of a check, with its evidence and what to do next.
//   - need: what a check compares. A check whose needs are not known is skipped, and the result says so.
//
// Invariants: the same input gives the same findings in the same order, errors first. A check reads the input and never changes it.
package nodecheck

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/workload"
)

// Severity tells how bad a finding is.
type Severity string

// The severities, the worst first.
const (
	// Error is a wrong allocation, or a start of the kubelet that fails.
	Error Severity = "error"
	// Warning is everything else.
	Warning Severity = "warning"
)

// Input holds what is known about a node.
type Input struct {
	Machine *machine.Topology
	// Config is the kubelet's configuration; nil if it cannot be read.
	Config *config.Config
	// Refused is why the configuration cannot be used; nil if it can.
	Refused error
	// CPU, Memory, Devices and Claims are the state files; nil if there is none, or if it is damaged.
	CPU     *kubelet.CPUState
	Memory  *kubelet.MemoryState
	Devices *kubelet.DeviceState
	Claims  *kubelet.ClaimState
	// Damaged are the state files that cannot be read, and why.
	Damaged map[kubelet.Kind]error
	// Unread are the state files that there are and that could not be opened.
	Unread map[kubelet.Kind]error
	// PCI are the NUMA nodes of devices whose ids are PCI addresses, as far as the kernel knows them.
	PCI map[string]int
	// Dir is the kubelet's directory, for commands.
	Dir string
	// Pods are the pods that have not ended. PodsKnown is false if they are not known.
	Pods      []workload.Pod
	PodsKnown bool
	// Names are the names of containers by the runtime's.
	Names map[string]string
	// Kernel are the containers that run. Unseen is why they are not known; empty if they are.
	Kernel []Running
	Unseen string
	// Scattered is how far free CPUs are apart; nil if the kubelet does not align CPUs, or if it is not known.
	Scattered *Scattered
}

// Scattered tells how far free CPUs are apart.
type Scattered struct {
	// Free are all free CPUs, and Fits how many of them a pod on one NUMA node gets.
	Free, Fits int
	// Possible is how many it would get if the pods Moves were on other NUMA nodes; 0 if that does not help.
	Possible int
	Moves    []string
}

// Finding is something that is wrong.
type Finding struct {
	// ID is the check's.
	ID       string
	Severity Severity
	// Object is what it is wrong with: a file, a field, a container.
	Object string
	// Text is one sentence.
	Text string
	// Evidence are the compared values.
	Evidence []string
	// Report are public reports about it.
	Report []string
	// Do is what to do next, in this order.
	Do []string
	// Compared means that sources were compared which change one after the other: one reading can be of the moment in between.
	Compared bool
	// Seen is what the kernel has, if it can lag behind the kubelet. If a second reading has another value, the kubelet has set it.
	Seen string
}

// Skipped tells why checks were not made.
type Skipped struct {
	Why string
	IDs []string
}

// Result holds what the checks have found.
type Result struct {
	Findings []Finding
	Skipped  []Skipped
}

// need is what a check compares.
type need int

const (
	needConfig need = iota
	needCPU
	needMemory
	needDevices
	needClaims
	needPods
	needKernel
)

// check is a row of the table.
type check struct {
	id       string
	severity Severity
	// finds completes the sentence "It finds".
	finds  string
	report []string
	do     []step
	needs  []need
	// lags means that the kernel has what the first of the evidence says until the kubelet sets it to what it has decided.
	lags bool
	find func(*node) []found
}

// step is something to do: a text, or a drain of the node after which state files are removed.
type step struct {
	text  string
	reset []kubelet.Kind
}

// found is a finding without what the table has.
type found struct {
	object, text string
	evidence     []string
}

// node is an input with what follows from it.
type node struct {
	Input
	// cpus is the CPU manager of the configuration; nil if its policy or reservation is refused. refusedCPU are the reasons why a kubelet
	// would not start with it.
	cpus       *cpu.Manager
	refusedCPU errdefs.Violations
	// pods by uid.
	pods map[string]*workload.Pod
}

// Run makes all checks.
func Run(in Input) Result {
	n := &node{Input: in, pods: map[string]*workload.Pod{}}
	for i := range in.Pods {
		n.pods[in.Pods[i].UID] = &in.Pods[i]
		// The API server has a mirror of a static pod, with another uid than that in the state files.
		if uid := in.Pods[i].Annotations[workload.MirrorAnnotation]; uid != "" {
			n.pods[uid] = &in.Pods[i]
		}
	}
	if in.Config != nil {
		n.build()
	}
	var out Result
	skipped := map[string][]string{}
	for _, c := range checks {
		if why := n.lacks(c.needs); why != "" {
			skipped[why] = append(skipped[why], c.id)
			continue
		}
		for _, f := range c.find(n) {
			out.Findings = append(out.Findings, Finding{
				ID: c.id, Severity: c.severity, Object: f.object, Text: f.text, Evidence: f.evidence,
				Report: slices.Clone(c.report), Do: n.commands(c.do), Compared: len(c.needs) > 1,
			})
			if c.lags {
				out.Findings[len(out.Findings)-1].Seen = f.evidence[0]
			}
		}
	}
	slices.SortStableFunc(out.Findings, func(a, b Finding) int { return cmp.Compare(a.Severity, b.Severity) }) // in the alphabet, too
	for _, why := range slices.Sorted(maps.Keys(skipped)) {
		out.Skipped = append(out.Skipped, Skipped{why, skipped[why]})
	}
	return out
}

// build makes the CPU manager of the configuration. If its options are wrong, the one without them has the reservation.
func (n *node) build() {
	cfg, err := n.Config.CPUConfig()
	if err == nil {
		// The kubelet accepts a list with CPUs that the machine does not have. A check of its own compares them.
		cfg.KeptReserved = cfg.ReservedCPUs
		n.cpus, err = cpu.New(cfg, n.Machine)
	}
	if n.refusedCPU = violations(err, "cpuManagerPolicy"); err == nil {
		return
	}
	strict := cfg.Options[strictReservation]
	if cfg.Options = nil; strict == "true" {
		cfg.Options = map[string]string{strictReservation: strict}
	}
	if without, err := cpu.New(cfg, n.Machine); err == nil {
		n.cpus = without
	}
}

// strictReservation is the option that keeps reserved CPUs out of the shared pool.
const strictReservation = "strict-cpu-reservation"

// violations are the fields that an error names. An error without any is one of a field.
func violations(err error, field string) (out errdefs.Violations) {
	var e *errdefs.Error
	switch {
	case err == nil:
	case errors.As(err, &e) && len(e.Fields) > 0:
		out = e.Fields
	default:
		out.Addf(field, "%v", err)
	}
	return out
}

// lacks returns why a check cannot be made; empty if it can.
func (n *node) lacks(needs []need) string {
	for _, of := range needs {
		switch {
		case of == needConfig && n.Config == nil:
			return "the kubelet's configuration cannot be read"
		case of == needCPU && n.CPU == nil:
			return n.noFile(kubelet.CPU)
		case of == needMemory && n.Memory == nil:
			return n.noFile(kubelet.Memory)
		case of == needDevices && n.Devices == nil:
			return n.noFile(kubelet.Device)
		case of == needClaims && (n.Damaged[kubelet.Claims] != nil || n.Unread[kubelet.Claims] != nil):
			return n.noFile(kubelet.Claims) // a kubelet without the file has no claims
		case of == needPods && !n.PodsKnown:
			return "the node's pods are not known: add --pods FILE"
		case of == needKernel && n.Unseen != "":
			return n.Unseen
		}
	}
	return ""
}

func (n *node) noFile(kind kubelet.Kind) string {
	if n.Damaged[kind] != nil {
		return files[kind] + " is damaged"
	}
	return files[kind] + " is not there or cannot be opened"
}

// files are the names of the state files below the kubelet's directory.
var files = map[kubelet.Kind]string{
	kubelet.CPU: "cpu_manager_state", kubelet.Memory: "memory_manager_state", kubelet.Device: "device-plugins/kubelet_internal_checkpoint",
	kubelet.Claims: "dra_manager_state", kubelet.Allocated: "allocated_pods_state", kubelet.Actuated: "actuated_pods_state",
}

// commands are the steps as commands of a shell and as texts.
func (n *node) commands(do []step) (out []string) {
	for _, s := range do {
		if s.text != "" {
			out = append(out, s.text)
			continue
		}
		remove := "rm -f"
		for _, kind := range s.reset {
			remove += " " + n.path(kind)
		}
		out = append(out, "kubectl drain NODE --ignore-daemonsets --delete-emptydir-data", "systemctl stop kubelet", remove,
			"systemctl start kubelet", "kubectl uncordon NODE")
	}
	return out
}

func (n *node) path(kind kubelet.Kind) string {
	return "/" + strings.Trim(cmp.Or(n.Dir, "var/lib/kubelet"), "/") + "/" + files[kind]
}

// static reports whether the CPU manager's policy of configuration and file is static, with a reservation that the kubelet accepts.
func (n *node) static() bool {
	return n.cpus != nil && n.Config.CPU.Policy == cpu.PolicyStatic && n.CPU.Policy == cpu.PolicyStatic && !n.unused()
}

// unused reports whether the kubelet has not started with the CPU state yet.
func (n *node) unused() bool {
	return n.CPU.Shared.IsEmpty() && len(n.CPU.Containers) == 0 && len(n.CPU.Pods) == 0
}

// staticMemory reports whether the memory manager's policy of configuration and file is Static.
func (n *node) staticMemory() bool {
	return n.Config.Memory.Policy == memory.PolicyStatic && n.Memory.Policy == memory.PolicyStatic && len(n.Memory.Nodes) > 0
}

// owner names a container for people.
func (n *node) owner(uid, container string) string {
	name := "pod " + kubelet.Printable(uid)
	if p := n.pods[uid]; p != nil && p.Name != "" {
		name = "pod " + p.Namespace + "/" + p.Name
	}
	if container != "" {
		name += ", container " + kubelet.Printable(container)
	}
	return name
}

// owned are all CPUs that a container or a pod has.
func owned(s *kubelet.CPUState) (out cpuset.Set) {
	for _, containers := range s.Containers {
		for _, set := range containers {
			out = out.Union(set)
		}
	}
	for _, set := range s.Pods {
		out = out.Union(set)
	}
	return out
}
