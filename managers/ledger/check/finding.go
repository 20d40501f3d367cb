package check

import "github.com/berthd/berth/managers/ledger"

// Kind is the kind of a finding. View reports those below; server/internal/reconcile has one of its own, for the kernel.
type Kind string

const (
	// Structural findings violate the ledger's own invariants: two owners for one thing, an
	// owner that does not exist, a damaged value. They do not depend on the machine or the
	// configuration.
	Structural Kind = "structural"
	// Policy findings are claims that the current machine or configuration would not allow.
	// They are reported and not changed.
	Policy Kind = "policy"
)

// Rule is the invariant that a finding violates.
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
	// RuleCPUOverlap: a CPU has one owner, except if an init container of the same pod
	// passes it on.
	RuleCPUOverlap Rule = "cpu-overlap"
	// RuleDeviceOverlap: a device has one owner, with the same exception.
	RuleDeviceOverlap Rule = "device-overlap"
	// RuleContained: a container's part of its pod's set is inside that set.
	RuleContained Rule = "contained"
	// RuleUnknownLive: an unknown living pod is not in the ledger, and its uid can be part
	// of a key.
	RuleUnknownLive Rule = "unknown-live-pod"
	// RuleStored: every stored value is intact and under its own key.
	RuleStored Rule = "stored"
)

// Policy rules.
const (
	// RuleReserved: reserved CPUs are not claimed.
	RuleReserved Rule = "reserved"
	// RuleVanished: the machine has the CPUs and NUMA nodes that claims name.
	RuleVanished Rule = "vanished"
	// RuleOffline: claimed CPUs are online.
	RuleOffline Rule = "offline"
	// RuleShared: a CPU is shared if containers without CPUs of their own exist.
	RuleShared Rule = "shared"
	// RuleMemory: the blocks confined to a set of NUMA nodes fit into its memory.
	RuleMemory Rule = "memory"
	// RuleValidator: no provider refuses a pod's claims. View does not call providers; an
	// import does.
	RuleValidator Rule = "validator"
)

// Finding is a result of View or of a start.
type Finding struct {
	Kind Kind `json:"kind"`
	Rule Rule `json:"rule"`
	// Owner and Other are the owners concerned; either may be empty.
	Owner ledger.Owner `json:"owner,omitzero"`
	Other ledger.Owner `json:"other,omitzero"`
	// Resource of the claim; empty if no claim is concerned.
	Resource string `json:"resource,omitempty"`
	// Text describes the finding in a sentence, with owners and amounts.
	Text string `json:"text"`
	// subject is the part of Text that says what was found, without what follows from it at the moment. It is
	// empty if that is all of Text.
	subject string
}

// Same returns whether two findings are about the same. CPUs on which an owner runs instead of lost ones may differ.
func (f Finding) Same(o Finding) bool { return f.bare() == o.bare() }

func (f Finding) bare() Finding {
	if f.subject != "" {
		f.Text, f.subject = f.subject, ""
	}
	return f
}

// String returns kind, rule and text.
func (f Finding) String() string { return string(f.Kind) + " " + string(f.Rule) + ": " + f.Text }

// FirstStructural returns the first finding that forbids a commit.
func FirstStructural(findings []Finding) (Finding, bool) {
	for _, f := range findings {
		if f.Kind == Structural {
			return f, true
		}
	}
	return Finding{}, false
}
