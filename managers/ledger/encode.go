package ledger

import (
	"github.com/berthd/berth/managers/internal/jsontext"
)

// Records, traces and claims are written in every admission, so they write
// themselves (see jsontext).

func writeTrace(w *jsontext.Writer, v *Trace) {
	w.Begin()
	w.Member("admission_id", v.AdmissionID)
	w.Member("pod", v.Pod)
	w.Some("namespace", v.Namespace)
	w.Some("name", v.Name)
	w.Number("generation", v.Generation)
	w.Key("admitted")
	w.Bool(v.Admitted)
	w.Flag("dry_run", v.DryRun)
	w.Some("reason", v.Reason)
	w.Some("message", v.Message)
	w.Key("steps")
	jsontext.Array(w, v.Steps, writeStep)
	if len(v.Suggestions) > 0 {
		w.Key("suggestions")
		w.Value(v.Suggestions)
	}
	w.Count("tried", v.Tried)
	w.End()
}

func writeStep(w *jsontext.Writer, v *Step) {
	w.Begin()
	w.Member("kind", string(v.Kind))
	w.Some("container", v.Container)
	w.Some("provider", v.Provider)
	w.Some("resource", v.Resource)
	w.Some("answer", v.Answer)
	if len(v.Hints) > 0 {
		w.Key("hints")
		jsontext.Array(w, v.Hints, writeAffinity)
	}
	w.Count("omitted", v.Omitted)
	if v.Affinity != nil {
		w.Key("affinity")
		writeAffinity(w, v.Affinity)
	}
	w.Flag("approximate", v.Approximate)
	if v.Claim != nil {
		w.Key("claim")
		writeClaim(w, v.Claim)
	}
	if len(v.Shortages) > 0 {
		w.Key("shortages")
		w.Value(v.Shortages)
	}
	w.Some("text", v.Text)
	w.End()
}

func writeAffinity(w *jsontext.Writer, v *Affinity) {
	w.Begin()
	w.Member("nodes", v.Nodes.String())
	w.Flag("any", v.Any)
	w.Flag("preferred", v.Preferred)
	w.End()
}

func writeClaim(w *jsontext.Writer, v *Claim) {
	w.Raw(`{"owner":{`)
	w.Member("pod", v.Owner.Pod)
	w.Some("container", v.Owner.Container)
	w.End()
	w.Member("provider", v.Provider)
	w.Member("resource", v.Resource)
	if v.Affinity != nil {
		w.Key("affinity")
		writeAffinity(w, v.Affinity)
	}
	if v.CPUs != nil {
		w.Key("cpus")
		w.Begin()
		w.Member("set", v.CPUs.Set.String())
		w.Member("use", string(v.CPUs.Use))
		w.End()
	}
	if len(v.Memory) > 0 {
		w.Key("memory")
		w.Value(v.Memory)
	}
	if v.Devices != nil {
		w.Key("devices")
		w.Value(v.Devices)
	}
	w.Bytes("opaque", v.Opaque)
	w.End()
}

func writeGeneration(w *jsontext.Writer, v storedGeneration) {
	w.Begin()
	w.Number("number", v.Number)
	w.Key("entries")
	w.Int(int64(v.Entries))
	w.Key("pods")
	w.Int(int64(v.Pods))
	w.Count("unknown", v.Unknown)
	w.End()
}

// writePod writes a pod's record with the number of its trace and the sum of its
// claims.
func writePod(w *jsontext.Writer, p *storedPod) {
	w.Begin()
	w.Key("pod")
	p.Pod.Pod.WriteJSON(w)
	w.Member("digest", p.Digest)
	w.Member("qos", string(p.QoS))
	w.Some("owned_by", p.OwnedBy)
	w.Member("admission_id", p.AdmissionID)
	w.Some("resize_id", p.ResizeID)
	w.Key("admitted_at")
	w.Time(p.AdmittedAt)
	if p.AdmittedGeneration != 0 {
		w.Number("admitted_generation", p.AdmittedGeneration)
	}
	if p.ChangedGeneration != 0 {
		w.Number("changed_generation", p.ChangedGeneration)
	}
	if p.Acknowledged != nil {
		w.Key("acknowledged")
		jsontext.Array(w, p.Acknowledged, writeClaim)
	}
	w.Some("cgroup_parent", p.CgroupParent)
	if p.TraceNumber != nil {
		w.Number("trace", *p.TraceNumber)
	}
	w.Some("claims", p.ClaimsSum)
	w.End()
}
