package decisions

import (
	"google.golang.org/protobuf/types/known/durationpb"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/convert/allocations"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/live"
)

var verdicts = map[admission.Outcome]admissionv1.Verdict{
	admission.Admitted: admissionv1.Verdict_VERDICT_ADMITTED,
	admission.Rejected: admissionv1.Verdict_VERDICT_REJECTED,
	admission.Deferred: admissionv1.Verdict_VERDICT_DEFERRED,
}

// traced reports whether the answer to an admission has its trace.
func traced(o admission.Outcome, level admissionv1.TraceLevel) bool {
	switch level {
	case admissionv1.TraceLevel_TRACE_LEVEL_NONE:
		return false
	case admissionv1.TraceLevel_TRACE_LEVEL_FULL:
		return true
	}
	return o != admission.Admitted
}

// Verdict returns the message form of the answer to an admission.
func Verdict(v admission.Verdict, level admissionv1.TraceLevel) *admissionv1.AdmitResponse {
	out := &admissionv1.AdmitResponse{
		Verdict: verdicts[v.Outcome],
		Reason:  string(v.Reason), Message: v.Message,
		QosClass: convert.QoS(v.QoS),
		Replayed: v.Repeated,
	}
	if v.View != nil {
		out.Revision = v.View.Revision()
	}
	if v.Trace != nil {
		out.AdmissionId = v.Trace.AdmissionID
	}
	if traced(v.Outcome, level) {
		out.Trace = Trace(v.View, v.Trace)
	}
	for _, n := range v.Notes {
		out.Notes = append(out.Notes, n.Text)
	}
	if v.Pod != nil {
		out.AdmissionId = v.Pod.AdmissionID
		out.CgroupParent = allocations.CgroupParent(v.Pod)
		out.Allocations = allocations.Containers(v.View, v.Pod)
		out.SharedCpus = convert.CPUSet(v.View.CommonCPUs())
	}
	if v.Outcome == admission.Deferred {
		out.RetryAfter = durationpb.New(v.RetryAfter)
		out.Condition = condition(v.Condition)
	}
	return out
}

// condition returns the message form of what a pod waits for; nil for nothing.
func condition(c *admission.Condition) *admissionv1.Condition {
	if c == nil {
		return nil
	}
	out := &admissionv1.Condition{Reason: c.Type, Domain: convert.Domain, Metadata: map[string]string{}}
	for key, value := range map[string]string{"provider": c.Provider, "resource": c.Resource} {
		if value != "" {
			out.Metadata[key] = value
		}
	}
	return out
}

// Resized returns the message form of the answer to a resize.
func Resized(r live.Resized, level admissionv1.TraceLevel) *admissionv1.ResizeResponse {
	v := Verdict(r.Verdict, level)
	return &admissionv1.ResizeResponse{
		Verdict: v.GetVerdict(), Reason: v.GetReason(), Message: v.GetMessage(), QosClass: v.GetQosClass(),
		Allocations: v.GetAllocations(), Trace: v.GetTrace(), RetryAfter: v.GetRetryAfter(),
		RestartContainers: r.Restarts, Revision: v.GetRevision(), Replayed: v.GetReplayed(),
		AdmissionId: r.ID, SharedCpus: v.GetSharedCpus(), Disruption: admissionv1.Disruption(r.Disruption), Plan: MovePlan(r.Plan),
		MoveDisruption: admissionv1.Disruption(r.MoveDisruption), Condition: v.GetCondition(),
	}
}
