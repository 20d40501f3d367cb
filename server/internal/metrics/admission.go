package metrics

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/system"
)

// Admission counts the outcome of an admission that is no dry run, and how long
// it took. An error means that there is no verdict.
func (s *Set) Admission(pod *workload.Pod, v admission.Verdict, took time.Duration, err error) {
	if err != nil {
		s.admissions.WithLabelValues(verdictOf(err)).Observe(took.Seconds())
		return
	}
	s.admissions.WithLabelValues(v.Outcome.String()).Observe(took.Seconds())
	if v.Outcome == admission.Deferred {
		return // the kubelet has no such label
	}
	d := decision{Verdict: v, settings: s.sources.Settings(), pod: pod}
	if v.Pod != nil {
		d.pod = &v.Pod.Pod
	}
	if v.Outcome == admission.Rejected {
		d.last = lastStep(v.Trace)
		s.rejected.WithLabelValues(reason(v.Reason)).Inc()
		s.refused.WithLabelValues(reason(v.Reason)).Inc()
	}
	s.topology.count(&d, took)
	s.aligned.count(&d)
	for i := range s.pinned {
		s.pinned[i].count(&d)
	}
	if d.settings.PodLevelResourceManagers {
		s.managers.count(&d)
	}
}

// Results, and verdicts of admissions without one.
const (
	resultOK, resultError = "ok", "error"
	// verdictError is of what berthd has failed at, verdictInvalid of a mistake or of the end of the caller, such as another specification
	// for the uid of an admitted pod.
	verdictError, verdictInvalid = "error", "invalid"
)

// verdictOf tells whether berthd or its caller is the cause of an error.
func verdictOf(err error) string {
	if errors.Is(err, context.Canceled) {
		return verdictInvalid
	}
	switch errdefs.ClassOf(err) {
	case errdefs.Invalid, errdefs.NotFound, errdefs.Exists, errdefs.Precondition, errdefs.PermissionDenied, errdefs.Unsupported:
		return verdictInvalid
	}
	return verdictError
}

// decision is a verdict with the settings at its time.
type decision struct {
	admission.Verdict
	settings system.Settings
	// pod with defaults if it was admitted, else as it came.
	pod *workload.Pod
	// last is the step that refused the pod.
	last ledger.Step
}

// refusedBy reports whether a provider refused the pod.
func (d *decision) refusedBy(provider string) bool {
	return d.Outcome == admission.Rejected && d.last.Provider == provider
}

// refusedByMerge reports whether the topology manager did.
func (d *decision) refusedByMerge() bool {
	return d.Outcome == admission.Rejected && d.Reason == errdefs.TopologyAffinityError
}

// planned yields the claims that a provider planned, also for a pod that was
// refused later.
func (d *decision) planned(provider string) (claims []*ledger.Claim) {
	for i := range d.Trace.Steps {
		if s := &d.Trace.Steps[i]; s.Kind == ledger.StepPlanned && s.Provider == provider && s.Claim != nil {
			claims = append(claims, s.Claim)
		}
	}
	return claims
}

// committed are the claims that this admission has made real.
func (d *decision) committed() []ledger.Claim {
	if d.Outcome != admission.Admitted || d.Repeated {
		return nil
	}
	return d.Pod.Claims
}

// merges is how many merges there were.
func (d *decision) merges() (n int) {
	for i := range d.Trace.Steps {
		if d.Trace.Steps[i].Kind == ledger.StepMerged {
			n++
		}
	}
	return n
}

// lastStep returns the step by which a pod was refused.
func lastStep(t *ledger.Trace) ledger.Step {
	for _, s := range slices.Backward(t.Steps) {
		if s.Kind == ledger.StepRefused {
			return s
		}
	}
	return ledger.Step{}
}

// counted are the reasons of berth that the kubelet counts by name.
var counted = []errdefs.Reason{
	errdefs.TopologyAffinityError, errdefs.UnexpectedAdmissionError,
	errdefs.OutOfCPU, errdefs.OutOfMemory, errdefs.OutOfPods, errdefs.OutOf("ephemeral-storage"),
}

// reason is a label's value: all other reasons are one, as in the kubelet.
func reason(r errdefs.Reason) string {
	if slices.Contains(counted, r) {
		return string(r)
	}
	return reasonOther
}
