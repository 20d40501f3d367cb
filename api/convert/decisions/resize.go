package decisions

import (
	"fmt"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/workload"
)

// ReadResize reads a request to resize a pod. Violations name the field's path; what needs
// the pod is left to the engine.
func ReadResize(m *admissionv1.ResizeRequest) (live.ResizeRequest, error) {
	vs := convert.Names("pod_uid", m.GetPodUid())
	convert.Owner("owner", m.GetOwner(), &vs)
	AdmissionID("admission_id", m.GetAdmissionId(), &vs)
	out := live.ResizeRequest{
		UID: m.GetPodUid(), Owner: m.GetOwner(), AdmissionID: m.GetAdmissionId(), IfRevision: m.GetIfRevision(),
		MaxDisruption: live.Disruption(m.GetMaxDisruption()), MaxMove: live.Disruption(m.GetMaxMoveDisruption()),
		DryRun: m.GetDryRun(), QoS: convert.ReadQoS("qos_class", m.GetQosClass(), &vs),
	}
	known := func(field string, d admissionv1.Disruption) {
		if _, known := admissionv1.Disruption_name[int32(d)]; !known {
			vs.Addf(field, "%d is no disruption", d)
		}
	}
	known("max_disruption", m.GetMaxDisruption())
	known("max_move_disruption", m.GetMaxMoveDisruption())
	if n := len(m.GetContainers()); n > workload.DefaultMaxContainers {
		vs.Addf("containers", "%d containers are more than the %d that a pod may have", n, workload.DefaultMaxContainers)
		return out, vs.Err("request")
	}
	seen := map[string]bool{}
	for i, c := range m.GetContainers() {
		path := fmt.Sprintf("containers[%d]", i)
		name := c.GetContainerName()
		vs = append(vs, convert.Names(path+".container_name", name)...)
		if seen[name] {
			vs.Addf(path+".container_name", "%.80q is given twice", name)
		}
		seen[name] = true
		out.Changes = append(out.Changes, readChange(name, path, c.GetResources(), &vs))
	}
	if m.GetResources() != nil {
		out.Changes = append(out.Changes, readChange("", "", m.GetResources(), &vs))
	}
	return out, vs.Err("request")
}

// maxAdmissionID limits the caller's name for an attempt.
const maxAdmissionID = 128

// AdmissionID notes a name of an attempt that is too long.
func AdmissionID(field, id string, vs *errdefs.Violations) {
	if n := len(id); n > maxAdmissionID {
		vs.Addf(field, "%d characters: expected at most %d", n, maxAdmissionID)
	}
}

func readChange(container, path string, m *typesv1.ResourceRequirements, vs *errdefs.Violations) workload.Change {
	if path != "" {
		path += "."
	}
	path += "resources"
	out := workload.Change{Container: container}
	var excess workload.Excess
	out.Requests, excess.Requests = resizable(path+".requests", m.GetRequests(), vs)
	out.Limits, excess.Limits = resizable(path+".limits", m.GetLimits(), vs)
	if excess.Requests != nil || excess.Limits != nil {
		out.Excess = &excess
	}
	if len(m.GetClaims()) > 0 {
		vs.Addf(path+".claims", "%s", convert.NoClaims)
	}
	return out
}

// resizable reads amounts of the resources that may change.
func resizable(field string, texts map[string]string, vs *errdefs.Violations) (amounts, excess workload.Quantities) {
	amounts, excess, bad := convert.Amounts(field, texts)
	*vs = append(*vs, bad...)
	for r := range amounts.Sorted() {
		if r != workload.CPU && r != workload.Memory {
			vs.Addf(fmt.Sprintf("%s[%q]", field, r), "expected cpu or memory: a resize changes nothing else")
		}
	}
	return amounts, excess
}
