package ledger

import (
	"iter"
	"slices"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/internal/ordered"
	"github.com/berthd/berth/managers/machine"
)

// Rules are the properties of the machine and the configuration that claims are checked
// against. They are not stored; each start sets them.
type Rules struct {
	Machine *machine.Topology
	// ReservedCPUs are never assigned exclusively.
	ReservedCPUs cpuset.Set
	// StrictReservation also removes the reserved CPUs from the shared CPUs.
	StrictReservation bool
	// Memory is the memory of each NUMA node that pods may have, by node and resource, if
	// memory is allocated by node.
	Memory []NodeMemory
	// ClaimCPUs and ClaimMemory are what resource claims may have. Pods get none of it: it is part of
	// what is reserved. With OnePool, it is what pods may have, and nothing is given to both.
	ClaimCPUs   cpuset.Set
	ClaimMemory []NodeMemory
	OnePool     bool
	// TakenPages are the huge pages that are in use and that pods cannot have. The configuration does not decide about them:
	// only SetTakenPages changes them, and other changes of the rules keep them.
	TakenPages []TakenPages
	// ConfigDigest shows whether the configuration has changed since the last start.
	ConfigDigest string
	// Settings are what the digest was computed from: by name, without defaults. They only describe a change of the
	// configuration, so Equal does not compare them; nil if they are not known.
	Settings map[string]string
}

// NodeMemory is the amount of a resource on a NUMA node, and the part that pods may have,
// in bytes.
type NodeMemory struct {
	Node        int    `json:"node"`
	Resource    string `json:"resource"`
	Total       uint64 `json:"total"`
	Allocatable uint64 `json:"allocatable"`
}

// TakenPages are huge pages of a NUMA node that are in use, without those that are reserved for the system.
type TakenPages struct {
	Node     int    `json:"node"`
	Resource string `json:"resource"`
	// Bytes are used by others than pods with memory of the node.
	Bytes uint64 `json:"bytes"`
	// Outside is the part that no pod uses. Of pods without memory of a node it is not known which pages they use, so
	// only the sum over all nodes is exact.
	Outside uint64 `json:"outside,omitempty"`
}

// View is an immutable snapshot of the ledger at a generation, or of a draft. Goroutines
// may share it.
type View struct {
	rules      Rules
	epoch      Epoch
	generation uint64
	records
	bindings          bindings
	unbound           uint64 // generation of the last commit that removed a binding
	resources         map[string]*SeenResource
	leases            map[string]*Lease
	externalProviders map[string]*ExternalProvider
	traces            traces
	uncertain         string
	override          *Override
	recorded          uint64 // number of the last entry of the history; 0 without one
}

// OfNode reports whether the CPUs are out of the node's shared pool.
func (c *CPUs) OfNode() bool {
	return c != nil && (c.Use == CPUExclusive || c.Use == CPUPod)
}

// SameFacts returns whether two committed views have identical pods with their claims,
// unknown living pods, rules and uncertainty. They may differ in container ids, seen
// resources, leases and traces. It may return false for equal views.
func (v *View) SameFacts(o *View) bool {
	return v.pods.Same(o.pods) && v.rules.Equal(o.rules) && v.uncertain == o.uncertain && v.override == o.override &&
		v.unknown.Same(o.unknown)
}

// Equal returns whether the rules are equal, for the same machine.
func (r Rules) Equal(o Rules) bool {
	return r.Machine == o.Machine && r.ReservedCPUs == o.ReservedCPUs && r.StrictReservation == o.StrictReservation &&
		slices.Equal(r.Memory, o.Memory) && r.ClaimCPUs == o.ClaimCPUs && slices.Equal(r.ClaimMemory, o.ClaimMemory) &&
		r.OnePool == o.OnePool && slices.Equal(r.TakenPages, o.TakenPages) && r.ConfigDigest == o.ConfigDigest
}

// SameManagers returns whether the same managers decide under both rules: those of one
// configuration on one machine.
func (r Rules) SameManagers(o Rules) bool {
	return r.ConfigDigest == o.ConfigDigest && r.Machine == o.Machine
}

// Generation is the number of commits; that of a draft's view is its base's.
func (v *View) Generation() uint64 { return v.generation }

// Revision is the generation as sent to clients. It grows with the generation, and is above
// every revision of an earlier ledger in the same place, as long as later ledgers have
// higher epochs (Options.Epoch).
func (v *View) Revision() uint64 { return v.RevisionOf(v.generation) }

// RevisionOf returns the revision of an earlier generation of the same ledger.
func (v *View) RevisionOf(generation uint64) uint64 { return v.epoch.Base<<epochShift + generation }

// epochShift leaves room for a thousand commits in each unit of an epoch. With milliseconds
// since 1970 as epochs, revisions stay below 2^53, so JSON readers with floating-point
// numbers read them exactly.
const epochShift = 10

// Uncertain returns why the ledger may lack running pods, for example after a damaged one
// was set aside; empty if it does not.
func (v *View) Uncertain() string { return v.uncertain }

// Recorded is the number of the last entry of the history that led to the view; 0 without one.
func (v *View) Recorded() uint64 { return v.recorded }

// Entries returns how many values a journal stores of the view, without those about it as a whole.
func (v *View) Entries() int {
	return v.pods.Len() + v.facts.claims + v.traces.kept.Len() + v.bindings.byID.Len() +
		len(v.resources) + len(v.leases) + len(v.externalProviders) + v.unknown.Len()
}

// Rules returns the rules that claims are checked against.
func (v *View) Rules() Rules { return v.rules }

// Machine returns the machine of the ledger.
func (v *View) Machine() *machine.Topology { return v.rules.Machine }

// Pod returns the record of an admitted pod. It must not be changed.
func (v *View) Pod(uid string) (*Pod, bool) {
	return v.pods.Get(uid)
}

// Admitted returns the record of the pod of an admission. If there are several, as was once
// possible, it returns the first by uid.
func (v *View) Admitted(admissionID string) (*Pod, bool) {
	for _, p := range v.facts.admissions.known().From(admissionKey(admissionID, "")) {
		return p, p.AdmissionID == admissionID
	}
	return nil, false
}

// NumPods returns the number of admitted pods and resource claims.
func (v *View) NumPods() int { return v.pods.Len() }

// NumResourceClaims returns how many of them are resource claims.
func (v *View) NumResourceClaims() int { return v.facts.resourceClaims }

// ContestedCPUs returns the CPUs that more than one pod holds. A sound view has none.
func (v *View) ContestedCPUs() cpuset.Set { return v.facts.contested }

// ResourceClaimCPUs returns the CPUs that resource claims hold. Its cost grows with the number of records.
func (v *View) ResourceClaimCPUs() (out cpuset.Set) {
	if v.facts.resourceClaims == 0 {
		return out
	}
	for p := range v.Pods() {
		if p.Pod.ResourceClaim != nil {
			out = out.Union(p.HeldCPUs())
		}
	}
	return out
}

// Pods yields the records, those of resource claims too, in order of their uids.
func (v *View) Pods() iter.Seq[*Pod] {
	return v.pods.Values()
}

// DeviceHolders yields the records of the pods with devices, in the order of their uids,
// without reading others.
func (v *View) DeviceHolders() iter.Seq[*Pod] { return v.facts.holders.Values() }

// Claim returns the claim of an owner on a resource.
func (v *View) Claim(owner Owner, resource string) (Claim, bool) {
	p, ok := v.pods.Get(owner.Pod)
	if !ok {
		return Claim{}, false
	}
	return p.Claim(owner.Container, resource)
}

// Claims yields every claim, by pod uid and then in the order of records.
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

// ExclusiveCPUs returns the CPUs that are not shared: all exclusive claims and all
// pod-level sets.
func (v *View) ExclusiveCPUs() cpuset.Set { return v.facts.exclusive }

// SharedCPUs returns the shared CPUs: all online CPUs of the machine without the exclusive
// ones and, with strict reservation, without the reserved ones.
func (v *View) SharedCPUs() cpuset.Set {
	set := v.rules.Machine.CPUs().Minus(v.facts.exclusive)
	if v.rules.StrictReservation {
		set = set.Minus(v.rules.ReservedCPUs)
	}
	return set
}

// AnyShares returns whether a container of an admitted pod runs on the shared CPUs.
func (v *View) AnyShares() bool {
	for p := range v.Pods() {
		for i := range p.Pod.Containers {
			if !slices.ContainsFunc(p.Claims, func(c Claim) bool {
				return c.CPUs != nil &&
					c.Owner.Container == p.Pod.Containers[i].Name
			}) {
				return true
			}
		}
	}
	return false
}

// CommonCPUs returns the CPUs on which everything without CPUs of its own has to run: the shared
// ones, or if no CPU is shared the reserved ones that are online and that no resource claim has.
func (v *View) CommonCPUs() cpuset.Set {
	if shared := v.SharedCPUs(); !shared.IsEmpty() {
		return shared
	}
	return v.rules.ReservedCPUs.Intersect(v.rules.Machine.CPUs()).Minus(v.facts.exclusive)
}

// AllocatableCPUs returns the CPUs that may be assigned exclusively: all online ones
// without the reserved ones, whether or not they are in use.
func (v *View) AllocatableCPUs() cpuset.Set {
	return v.rules.Machine.CPUs().Minus(v.rules.ReservedCPUs)
}

// ContainerCPUs returns the CPUs of a container of an admitted pod: its own set, or the
// shared CPUs; exclusive is true for the former. ok is false for an unknown pod.
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

// RunsOn returns the CPUs on which a container of an admitted pod has to run: its
// ContainerCPUs that are online, or CommonCPUs if none of them is.
func (v *View) RunsOn(owner Owner) cpuset.Set {
	set, _, ok := v.ContainerCPUs(owner)
	if online := set.Intersect(v.rules.Machine.CPUs()); !ok || !online.IsEmpty() {
		return online
	}
	if common := v.CommonCPUs(); !common.IsEmpty() {
		return common
	}
	return set
}

// OwnCPUs returns the CPUs of RunsOn on which no other container may run, except those of the same pod that have them,
// too. It is empty for a container on shared CPUs.
func (v *View) OwnCPUs(owner Owner) cpuset.Set {
	set, exclusive, ok := v.ContainerCPUs(owner)
	if !ok || !exclusive && set.IsSubsetOf(v.SharedCPUs()) {
		return cpuset.Set{}
	}
	return set.Intersect(v.ExclusiveCPUs()).Intersect(v.RunsOn(owner))
}

// SeenResources yields the device resources ever seen, by name.
func (v *View) SeenResources() iter.Seq[SeenResource] { return inOrder(v.resources) }

// Leases yields the outstanding leases, by id.
func (v *View) Leases() iter.Seq[Lease] { return inOrder(v.leases) }

// ExternalProviders yields the registrations of external providers, by name.
func (v *View) ExternalProviders() iter.Seq[ExternalProvider] { return inOrder(v.externalProviders) }

// inOrder yields the values of a map in the order of the keys.
func inOrder[V any](m map[string]*V) iter.Seq[V] {
	return func(yield func(V) bool) {
		for _, key := range ordered.Keys(m) {
			if !yield(*m[key]) {
				return
			}
		}
	}
}
