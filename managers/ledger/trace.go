package ledger

// StepKind names what happened in one step of an admission.
type StepKind string

// The steps of an admission in the order they can occur.
const (
	// StepNoted states something about the request that the caller may not
	// expect, such as a defaulted request or a resource nobody provides.
	StepNoted StepKind = "noted"
	// StepAsked holds one provider's answer for one resource.
	StepAsked StepKind = "asked"
	// StepMerged holds the outcome of merging all answers.
	StepMerged StepKind = "merged"
	// StepPlanned holds one claim that a provider planned.
	StepPlanned StepKind = "planned"
	// StepValidated says that a validator let the plan pass.
	StepValidated StepKind = "validated"
	// StepPrepared says that the outside world agreed to a claim.
	StepPrepared StepKind = "prepared"
	// StepPlaced says that the pod's cgroup exists with its values.
	StepPlaced StepKind = "placed"
	// StepCommitted ends the trace of an admitted pod.
	StepCommitted StepKind = "committed"
	// StepRefused ends the trace of a rejected pod.
	StepRefused StepKind = "refused"
	// StepReplanned says that the ledger moved and the plan was made again.
	StepReplanned StepKind = "replanned"
)

// Trace is the explanation of one admission: the steps in order and the verdict.
// It is data; printing it is the reader's business.
type Trace struct {
	AdmissionID string `json:"admission_id"`
	Pod         string `json:"pod"`
	Namespace   string `json:"namespace,omitempty"`
	Name        string `json:"name,omitempty"`
	// Generation of the view that the decision was made on.
	Generation uint64 `json:"generation"`
	Admitted   bool   `json:"admitted"`
	DryRun     bool   `json:"dry_run,omitempty"`
	Reason     string `json:"reason,omitempty"`
	Message    string `json:"message,omitempty"`
	Steps      []Step `json:"steps"`
	// Suggestions are changes that would make a rejected pod fit, as of the
	// generation. Tried counts the dry runs that looked for them: none with some
	// tried means that no change of the usual kinds helps.
	Suggestions []Suggestion `json:"suggestions,omitempty"`
	Tried       int          `json:"tried,omitempty"`
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
	// Hints are the options of an answer, or of a merge the candidates that lost,
	// best first; long lists are cut and Omitted counts what was left out.
	Hints   []Affinity `json:"hints,omitempty"`
	Omitted int        `json:"omitted,omitempty"`
	// Affinity is the outcome of a merge, or what a plan followed.
	Affinity *Affinity `json:"affinity,omitempty"`
	// Approximate marks a merge that ran out of its work budget.
	Approximate bool `json:"approximate,omitempty"`
	// Claim is what was planned.
	Claim *Claim `json:"claim,omitempty"`
	// Shortages say what was missing where, and who holds it.
	Shortages []Shortage `json:"shortages,omitempty"`
	// Text is a sentence for people.
	Text string `json:"text,omitempty"`
}

// Add appends a step.
func (t *Trace) Add(s Step) { t.Steps = append(t.Steps, s) }
