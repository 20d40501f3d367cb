package ledger

import "time"

// StepKind is the kind of a step of an admission.
type StepKind string

// The steps of an admission in the order they can occur.
const (
	// StepNoted is a fact about the request that the caller may not expect, such as a
	// defaulted request or an unknown resource.
	StepNoted StepKind = "noted"
	// StepAnswered has one provider's answer for one resource.
	StepAnswered StepKind = "answered"
	// StepMerged has the result of merging all answers.
	StepMerged StepKind = "merged"
	// StepPlanned has one planned claim.
	StepPlanned StepKind = "planned"
	// StepValidated: a validator accepted the plan.
	StepValidated StepKind = "validated"
	// StepPrepared: a plugin or provider accepted a claim.
	StepPrepared StepKind = "prepared"
	// StepPlaced: the pod's cgroup exists with its values.
	StepPlaced StepKind = "placed"
	// StepCommitted ends the trace of an admitted pod.
	StepCommitted StepKind = "committed"
	// StepRefused ends the trace of a rejected pod.
	StepRefused StepKind = "refused"
	// StepReplanned: the ledger has changed, and the plan was repeated.
	StepReplanned StepKind = "replanned"
)

// UnmarshalText also reads the word of earlier builds for StepAnswered.
func (k *StepKind) UnmarshalText(text []byte) error {
	if *k = StepKind(text); *k == "asked" {
		*k = StepAnswered
	}
	return nil
}

// Trace is the explanation of one admission: the steps in order, and the verdict. It is
// data; clients format it.
type Trace struct {
	AdmissionID string `json:"admission_id"`
	Pod         string `json:"pod"`
	Namespace   string `json:"namespace,omitempty"`
	Name        string `json:"name,omitempty"`
	// Generation of the view of the decision.
	Generation uint64 `json:"generation"`
	// Time of the decision; zero in a trial.
	Time     time.Time `json:"time,omitzero"`
	Admitted bool      `json:"admitted"`
	DryRun   bool      `json:"dry_run,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	Message  string    `json:"message,omitempty"`
	Steps    []Step    `json:"steps"`
	// Missing is what a rejected pod lacked, in words: the texts of the shortages, or without any why the topology policy
	// refused.
	Missing []string `json:"missing,omitempty"`
	// Suggestions are changes with which a rejected pod would fit, at this generation.
	// Tried is the number of dry runs for them. No suggestions with Tried above 0 means
	// that no change of the usual kinds helps.
	Suggestions []Suggestion `json:"suggestions,omitempty"`
	Tried       int          `json:"tried,omitempty"`
	// ResourceClaim marks the decision about a resource claim; Namespace and Name are the claim's.
	ResourceClaim bool `json:"resource_claim,omitempty"`
}

// Step is one event of a trace. Fields that do not apply to its kind are empty.
type Step struct {
	Kind      StepKind `json:"kind"`
	Container string   `json:"container,omitempty"`
	Provider  string   `json:"provider,omitempty"`
	Resource  string   `json:"resource,omitempty"`
	// Answer is the kind of a provider's answer: no-preference, impossible,
	// options or rule.
	Answer string `json:"answer,omitempty"`
	// Hints are the options of an answer, or the losing candidates of a merge, best first.
	// Long lists are cut; Omitted is the number of missing hints.
	Hints   []Affinity `json:"hints,omitempty"`
	Omitted int        `json:"omitted,omitempty"`
	// Affinity is the result of a merge, or the affinity of a plan.
	Affinity *Affinity `json:"affinity,omitempty"`
	// Approximate marks a merge whose search reached its limit.
	Approximate bool `json:"approximate,omitempty"`
	// Claim is the planned claim.
	Claim *Claim `json:"claim,omitempty"`
	// Shortages are the missing amounts, with their nodes and holders.
	Shortages []Shortage `json:"shortages,omitempty"`
	// Text is a sentence for people.
	Text string `json:"text,omitempty"`
}

// Add appends a step.
func (t *Trace) Add(s Step) { t.Steps = append(t.Steps, s) }
