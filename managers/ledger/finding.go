package ledger

// Kind says what a finding means.
type Kind string

const (
	// Structural findings break the ledger's own invariants: two owners for one
	// thing, an owner that does not exist, a value that is damaged. They never
	// depend on machine or configuration.
	Structural Kind = "structural"
	// Policy findings are facts that today's machine or configuration would not
	// allow. They are reported and left alone.
	Policy Kind = "policy"
	// Kernel findings are what the kernel does otherwise than the ledger says, for
	// reasons that berth cannot remove. Check knows nothing of them; whoever writes
	// cgroups does.
	Kernel Kind = "kernel"
)

// Rule names what a finding is about.
type Rule string

// Structural rules.
const (
	// RuleRecord: a pod has a uid that can be part of a key.
	RuleRecord Rule = "record"
	// RuleOwner: the pod and container of a claim or binding exist.
	RuleOwner Rule = "owner"
	// RulePayload: a claim has exactly one payload, of a form that fits its owner.
	RulePayload Rule = "payload"
	// RuleDuplicate: one claim for an owner, resource and provider.
	RuleDuplicate Rule = "duplicate"
	// RuleCPUOverlap: a CPU has one owner, except where an init container of the
	// same pod hands it on.
	RuleCPUOverlap Rule = "cpu-overlap"
	// RuleDeviceOverlap: a device is in one place, with the same exception.
	RuleDeviceOverlap Rule = "device-overlap"
	// RuleContained: what a container holds of its pod's set is part of that set.
	RuleContained Rule = "contained"
	// RuleUnknownLive: an unknown living pod is not in the ledger, and has a uid that can be part of a key.
	RuleUnknownLive Rule = "unknown-live-pod"
	// RuleStored: every stored value is whole and under the key that belongs to
	// it.
	RuleStored Rule = "stored"
)

// Policy rules.
const (
	// RuleReserved: reserved CPUs are nobody's.
	RuleReserved Rule = "reserved"
	// RuleVanished: the machine has the CPUs and NUMA nodes that claims name.
	RuleVanished Rule = "vanished"
	// RuleOffline: the CPUs that claims name are on line.
	RuleOffline Rule = "offline"
	// RuleMemory: the blocks confined to a set of NUMA nodes fit into its memory.
	RuleMemory Rule = "memory"
	// RuleValidator: no provider objects to what a pod holds. Check does not ask
	// them; whoever takes facts over from outside does.
	RuleValidator Rule = "validator"
)

// Kernel rules.
const (
	// RuleFrozen: the cgroups that pods lie in are not frozen.
	RuleFrozen Rule = "frozen"
	// RuleUnbound: processes in the cgroup of a container belong to a container id.
	RuleUnbound Rule = "unbound"
	// RuleMemoryLimit: memory limits are in force.
	RuleMemoryLimit Rule = "memory-limit"
)

// Finding is something that Check or a start has to say.
type Finding struct {
	Kind Kind `json:"kind"`
	Rule Rule `json:"rule"`
	// Owner and Other hold what the finding is about; either may be empty.
	Owner Owner `json:"owner,omitzero"`
	Other Owner `json:"other,omitzero"`
	// Resource as in the claim; empty where no claim is concerned.
	Resource string `json:"resource,omitempty"`
	// Text is the finding in a sentence, owners and amounts included.
	Text string `json:"text"`
}

// String returns kind, rule and text.
func (f Finding) String() string { return string(f.Kind) + " " + string(f.Rule) + ": " + f.Text }

// firstStructural returns the first finding that forbids a commit.
func firstStructural(findings []Finding) (Finding, bool) {
	for _, f := range findings {
		if f.Kind == Structural {
			return f, true
		}
	}
	return Finding{}, false
}
