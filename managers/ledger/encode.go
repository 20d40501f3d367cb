package ledger

import (
	"encoding/base64"
	"encoding/json"
	"strconv"
)

// Traces and claims are written in every admission, so they write themselves: the
// very bytes that encoding/json gives, which reads them, at a fraction of its time.

// encoder is JSON in the making; the first error stays.
type encoder struct {
	out []byte
	err error
}

// marshal writes what encoding/json makes of a value.
func (t *encoder) marshal(v any) {
	out, err := json.Marshal(v)
	if err != nil && t.err == nil {
		t.err = err
	}
	t.out = append(t.out, out...)
}

// key begins the next member of an object: with a comma unless it is the first.
func (t *encoder) key(name string) {
	if t.out[len(t.out)-1] != '{' {
		t.out = append(t.out, ',')
	}
	t.out = append(t.out, '"')
	t.out = append(t.out, name...)
	t.out = append(t.out, '"', ':')
}

// string writes a string; whatever has to be escaped is left to encoding/json.
func (t *encoder) string(s string) {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			t.marshal(s)
			return
		}
	}
	t.out = append(t.out, '"')
	t.out = append(t.out, s...)
	t.out = append(t.out, '"')
}

func (t *encoder) member(name, s string) {
	t.key(name)
	t.string(s)
}

// some writes a member that is left out if it is empty.
func (t *encoder) some(name, s string) {
	if s != "" {
		t.member(name, s)
	}
}

func (t *encoder) number(name string, n uint64) {
	t.key(name)
	t.out = strconv.AppendUint(t.out, n, 10)
}

func (t *encoder) count(name string, n int) {
	if n != 0 {
		t.key(name)
		t.out = strconv.AppendInt(t.out, int64(n), 10)
	}
}

func (t *encoder) flag(name string, is bool) {
	if is {
		t.key(name)
		t.out = append(t.out, "true"...)
	}
}

// array writes the elements of a list.
func array[E any](t *encoder, list []E, element func(*encoder, *E)) {
	if list == nil {
		t.out = append(t.out, "null"...)
		return
	}
	t.out = append(t.out, '[')
	for i := range list {
		if i > 0 {
			t.out = append(t.out, ',')
		}
		element(t, &list[i])
	}
	t.out = append(t.out, ']')
}

func (t *encoder) trace(v *Trace) {
	t.out = append(t.out, '{')
	t.member("admission_id", v.AdmissionID)
	t.member("pod", v.Pod)
	t.some("namespace", v.Namespace)
	t.some("name", v.Name)
	t.number("generation", v.Generation)
	t.key("admitted")
	t.out = strconv.AppendBool(t.out, v.Admitted)
	t.flag("dry_run", v.DryRun)
	t.some("reason", v.Reason)
	t.some("message", v.Message)
	t.key("steps")
	array(t, v.Steps, (*encoder).step)
	if len(v.Suggestions) > 0 {
		t.key("suggestions")
		t.marshal(v.Suggestions)
	}
	t.count("tried", v.Tried)
	t.out = append(t.out, '}')
}

func (t *encoder) step(v *Step) {
	t.out = append(t.out, '{')
	t.member("kind", string(v.Kind))
	t.some("container", v.Container)
	t.some("provider", v.Provider)
	t.some("resource", v.Resource)
	t.some("answer", v.Answer)
	if len(v.Hints) > 0 {
		t.key("hints")
		array(t, v.Hints, (*encoder).affinity)
	}
	t.count("omitted", v.Omitted)
	if v.Affinity != nil {
		t.key("affinity")
		t.affinity(v.Affinity)
	}
	t.flag("approximate", v.Approximate)
	if v.Claim != nil {
		t.key("claim")
		t.claim(v.Claim)
	}
	if len(v.Shortages) > 0 {
		t.key("shortages")
		t.marshal(v.Shortages)
	}
	t.some("text", v.Text)
	t.out = append(t.out, '}')
}

func (t *encoder) affinity(v *Affinity) {
	t.out = append(t.out, '{')
	t.member("nodes", v.Nodes.String())
	t.flag("any", v.Any)
	t.flag("preferred", v.Preferred)
	t.out = append(t.out, '}')
}

func (t *encoder) claim(v *Claim) {
	t.out = append(t.out, `{"owner":{`...)
	t.member("pod", v.Owner.Pod)
	t.some("container", v.Owner.Container)
	t.out = append(t.out, '}')
	t.member("provider", v.Provider)
	t.member("resource", v.Resource)
	if v.Affinity != nil {
		t.key("affinity")
		t.affinity(v.Affinity)
	}
	if v.CPUs != nil {
		t.key("cpus")
		t.out = append(t.out, '{')
		t.member("set", v.CPUs.Set.String())
		t.member("use", string(v.CPUs.Use))
		t.out = append(t.out, '}')
	}
	if len(v.Memory) > 0 {
		t.key("memory")
		t.marshal(v.Memory)
	}
	if v.Devices != nil {
		t.key("devices")
		t.marshal(v.Devices)
	}
	if len(v.Opaque) > 0 {
		t.key("opaque")
		t.out = append(t.out, '"')
		t.out = base64.StdEncoding.AppendEncode(t.out, v.Opaque)
		t.out = append(t.out, '"')
	}
	t.out = append(t.out, '}')
}
