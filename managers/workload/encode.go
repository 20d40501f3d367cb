package workload

import (
	"github.com/berthd/berth/managers/internal/jsontext"
)

// WriteJSON writes the pod as encoding/json does, byte for byte: pods are digested
// and recorded in every admission.
func (p *Pod) WriteJSON(w *jsontext.Writer) {
	w.Begin()
	w.Member("uid", p.UID)
	w.Some("namespace", p.Namespace)
	w.Some("name", p.Name)
	if len(p.Labels) > 0 {
		w.Key("labels")
		w.Value(p.Labels)
	}
	if len(p.Annotations) > 0 {
		w.Key("annotations")
		w.Value(p.Annotations)
	}
	w.Key("containers")
	jsontext.Array(w, p.Containers, writeContainer)
	p.Overhead.write(w, "overhead")
	if p.Resources != nil {
		w.Key("resources")
		w.Begin()
		p.Resources.Requests.write(w, "requests")
		p.Resources.Limits.write(w, "limits")
		w.End()
	}
	p.Excess.write(w)
	w.Some("qosClass", string(p.QoS))
	if p.Priority != nil {
		w.Key("priority")
		w.Int(int64(*p.Priority))
	}
	w.Some("priorityClassName", p.PriorityClassName)
	w.Some("restartPolicy", p.RestartPolicy)
	w.Flag("hostNetwork", p.HostNetwork)
	w.End()
}

func writeContainer(w *jsontext.Writer, c *Container) {
	w.Begin()
	w.Member("name", c.Name)
	if c.Role != App {
		w.Key("role")
		w.Value(c.Role)
	}
	c.Requests.write(w, "requests")
	c.Limits.write(w, "limits")
	c.Excess.write(w)
	if len(c.ResizePolicy) > 0 {
		w.Key("resizePolicy")
		w.Value(c.ResizePolicy)
	}
	w.End()
}

func (e *Excess) write(w *jsontext.Writer) {
	if e == nil {
		return
	}
	w.Key("excess")
	w.Begin()
	e.Requests.write(w, "requests")
	e.Limits.write(w, "limits")
	e.Overhead.write(w, "overhead")
	w.End()
}

// write writes a member with the amounts in the order of the names; none is no
// member.
func (q Quantities) write(w *jsontext.Writer, name string) {
	if len(q) == 0 {
		return
	}
	w.Key(name)
	w.Begin()
	for r, n := range q.Sorted() {
		w.Entry(string(r))
		w.Int(n)
	}
	w.End()
}
