package ledger

import (
	"iter"
	"slices"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/internal/ordered"
	"github.com/berthd/berth/managers/machine"
)

// Rules are the facts of machine and configuration that claims are held against.
// They are not part of the stored state: a start may bring others.
type Rules struct {
	Machine *machine.Topology
	// ReservedCPUs are never given exclusively.
	ReservedCPUs cpuset.Set
	// StrictReservation keeps the reserved CPUs out of the shared pool too.
	StrictReservation bool
	// OfflineCPUs are CPUs of the machine that the kernel has taken off line since the
	// machine was looked at; SetOffline changes them. Nobody is given any, and nobody
	// runs there.
	OfflineCPUs cpuset.Set
	// Memory is what pods can have of each NUMA node, where memory of certain nodes
	// is given out; by node and resource.
	Memory []NodeMemory
	// ConfigDigest tells whether the configuration changed since the last start.
	ConfigDigest string
}

// NodeMemory is what a NUMA node has of a resource, and what of that pods can have,
// in bytes.
type NodeMemory struct {
	Node        int    `json:"node"`
	Resource    string `json:"resource"`
	Total       uint64 `json:"total"`
	Allocatable uint64 `json:"allocatable"`
}

// View is a read-only snapshot of the ledger at a generation, or of a draft on
// top of one. Views never change and may be shared freely between goroutines.
type View struct {
	rules             Rules
	epoch             epoch
	generation        uint64
	pods              ordered.Map[string, *Pod] // by uid
	facts             facts                     // that follow from pods
	bindings          bindings
	unbound           uint64 // generation of the last commit that dropped a binding
	resources         map[string]SeenResource
	leases            map[string]Lease
	externalProviders map[string]ExternalProvider
	unknown           ordered.Map[string, *UnknownLivePod] // by uid
	traces            traces
	uncertain         string
	override          *Override
}

// ofNode reports whether the CPUs are out of the node's shared pool.
func (c *CPUs) ofNode() bool {
	return c != nil && (c.Use == CPUExclusive || c.Use == CPUPod)
}

// SameFacts reports whether two committed views have the very same pods with their
// claims, unknown living pods, rules and certainty, so that they differ in nothing but container
// ids, seen resources, leases and traces. It may fail to see that they do.
func (v *View) SameFacts(o *View) bool {
	return v.pods.Same(o.pods) && v.rules.same(o.rules) && v.uncertain == o.uncertain && v.override == o.override && v.unknown.Same(o.unknown)
}

// same reports whether the rules are the same, on the same machine.
func (r Rules) same(o Rules) bool {
	return r.Machine == o.Machine && r.ReservedCPUs == o.ReservedCPUs && r.StrictReservation == o.StrictReservation &&
		r.OfflineCPUs == o.OfflineCPUs &&
		slices.Equal(r.Memory, o.Memory) && r.ConfigDigest == o.ConfigDigest
}

// Generation counts commits; a draft's view carries that of its base.
func (v *View) Generation() uint64 { return v.generation }

// Revision names a generation for readers outside: it grows with the generation, and
// is above every revision of a ledger that was in this one's place before, as long
// as later ledgers have higher epochs (Options.Epoch).
func (v *View) Revision() uint64 { return v.RevisionOf(v.generation) }

// RevisionOf is Revision of an earlier generation of the same ledger.
func (v *View) RevisionOf(generation uint64) uint64 { return v.epoch.base<<epochShift + generation }

// epochShift leaves room for a thousand commits in each unit of an epoch, and with
// milliseconds since 1970 as epochs keeps revisions below 2^53: readers of JSON that
// know only floating point take them for exact.
const epochShift = 10

// Uncertain tells why the ledger may not know every pod that lives on this machine,
// as after a damaged one was set aside; it is empty where there is none.
func (v *View) Uncertain() string { return v.uncertain }

// Rules returns what claims are held against.
func (v *View) Rules() Rules { return v.rules }

// Machine returns the machine that the ledger is about.
func (v *View) Machine() *machine.Topology { return v.rules.Machine }

// Pod returns the record of an admitted pod. It must not be changed.
func (v *View) Pod(uid string) (*Pod, bool) {
	return v.pods.Get(uid)
}

// Admitted returns the record of a pod that an admission brought here; of several, as
// berth once allowed, the first by uid.
func (v *View) Admitted(admissionID string) (*Pod, bool) {
	for _, p := range v.facts.admissions.From(admissionKey(admissionID, "")) {
		return p, p.AdmissionID == admissionID
	}
	return nil, false
}

// NumPods returns the number of admitted pods.
func (v *View) NumPods() int { return v.pods.Len() }

// Pods yields the records in order of their uids.
func (v *View) Pods() iter.Seq[*Pod] {
	return v.pods.Values()
}

// DeviceHolders yields the records of the pods that hold devices, in order of their
// uids. They are found without a look at the others.
func (v *View) DeviceHolders() iter.Seq[*Pod] { return v.facts.holders.Values() }

// Claim returns what an owner holds of a resource.
func (v *View) Claim(owner Owner, resource string) (Claim, bool) {
	p, ok := v.pods.Get(owner.Pod)
	if !ok {
		return Claim{}, false
	}
	return p.Claim(owner.Container, resource)
}

// Claims yields every claim, by pod uid and then in the order records keep them.
func (v *View) Claims() iter.Seq[Claim] {
	return func(yield func(Claim) bool) {
		for p := range v.Pods() {
			for _, c := range p.Claims {
				if !yield(c) {
					return
				}
			}
		}
	}
}

// ExclusiveCPUs returns the CPUs that are out of the shared pool: all exclusive
// claims and all pod-level sets.
func (v *View) ExclusiveCPUs() cpuset.Set { return v.facts.exclusive }

// SharedCPUs returns the shared pool: all CPUs of the machine that are on line without
// the exclusive ones and, under strict reservation, without the reserved ones.
func (v *View) SharedCPUs() cpuset.Set {
	set := v.rules.Machine.CPUs().Minus(v.rules.OfflineCPUs).Minus(v.facts.exclusive)
	if v.rules.StrictReservation {
		set = set.Minus(v.rules.ReservedCPUs)
	}
	return set
}

// AllocatableCPUs returns the CPUs that may ever be given exclusively: all of
// the machine without the reserved ones, whatever is in use.
func (v *View) AllocatableCPUs() cpuset.Set {
	return v.rules.Machine.CPUs().Minus(v.rules.ReservedCPUs)
}

// ContainerCPUs returns the CPUs on which a container of an admitted pod runs:
// its own set, or the shared pool. Exclusive reports which; ok is false for an
// unknown pod.
func (v *View) ContainerCPUs(owner Owner) (set cpuset.Set, exclusive, ok bool) {
	p, ok := v.pods.Get(owner.Pod)
	if !ok {
		return cpuset.Set{}, false, false
	}
	for i := range p.Claims {
		if c := &p.Claims[i]; c.Owner == owner && c.CPUs != nil {
			return c.CPUs.Set, c.CPUs.Use != CPUPodShared, true
		}
	}
	return v.SharedCPUs(), false, true
}

// RunsOn returns the CPUs on which the kernel is to run a container of an admitted pod:
// its ContainerCPUs that are on line, or the shared pool if none of them is.
func (v *View) RunsOn(owner Owner) cpuset.Set {
	set, _, ok := v.ContainerCPUs(owner)
	if online := set.Minus(v.rules.OfflineCPUs); !ok || !online.IsEmpty() {
		return online
	}
	if shared := v.SharedCPUs(); !shared.IsEmpty() {
		return shared
	}
	return set
}

// SeenResources yields the device resources ever seen, by name.
func (v *View) SeenResources() iter.Seq[SeenResource] {
	return func(yield func(SeenResource) bool) {
		for _, name := range sortedKeys(v.resources) {
			if !yield(v.resources[name]) {
				return
			}
		}
	}
}

// Leases yields the outstanding leases, by id.
func (v *View) Leases() iter.Seq[Lease] {
	return func(yield func(Lease) bool) {
		for _, id := range sortedKeys(v.leases) {
			if !yield(v.leases[id]) {
				return
			}
		}
	}
}

// ExternalProviders yields the registrations of outside providers, by name.
func (v *View) ExternalProviders() iter.Seq[ExternalProvider] {
	return func(yield func(ExternalProvider) bool) {
		for _, name := range sortedKeys(v.externalProviders) {
			if !yield(v.externalProviders[name]) {
				return
			}
		}
	}
}
