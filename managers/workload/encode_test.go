package workload

import (
	"encoding/json"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/internal/jsontext"
)

// TestWritesAsJSONDoes: the bytes are those of encoding/json, whatever is there.
func TestWritesAsJSONDoes(t *testing.T) {
	t.Parallel()
	text := rapid.OneOf(rapid.Just(""), rapid.String(), rapid.SampledFrom([]string{"pod-1", "<a&b>"}))
	quantities := rapid.Custom(func(t *rapid.T) Quantities {
		if rapid.Bool().Draw(t, "none") {
			return nil
		}
		return rapid.MapOfN(rapid.OneOf(rapid.SampledFrom([]Resource{CPU, Memory, "hugepages-2Mi"}), rapid.Custom(func(t *rapid.T) Resource {
			return Resource(text.Draw(t, "resource"))
		})), rapid.Int64(), 0, 3).Draw(t, "amounts")
	})
	excess := func(t *rapid.T) *Excess {
		if rapid.Bool().Draw(t, "exact") {
			return nil
		}
		return &Excess{quantities.Draw(t, "requests"), quantities.Draw(t, "limits"), quantities.Draw(t, "overhead")}
	}
	container := rapid.Custom(func(t *rapid.T) Container {
		return Container{
			Name: text.Draw(t, "name"), Role: Role(rapid.IntRange(0, 2).Draw(t, "role")), Requests: quantities.Draw(t, "requests"), Limits: quantities.Draw(t, "limits"),
			Excess: excess(t), ResizePolicy: rapid.MapOfN(rapid.SampledFrom([]Resource{CPU, Memory}), text, 0, 2).Draw(t, "policy"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		p := Pod{
			UID: text.Draw(t, "uid"), Namespace: text.Draw(t, "namespace"), Name: text.Draw(t, "name"),
			Labels: rapid.MapOfN(text, text, 0, 2).Draw(t, "labels"), Annotations: rapid.MapOfN(text, text, 0, 2).Draw(t, "annotations"),
			Overhead: quantities.Draw(t, "overhead"), Excess: excess(t), QoS: QoSClass(text.Draw(t, "class")), PriorityClassName: text.Draw(t, "priority"),
			RestartPolicy: text.Draw(t, "restart"), HostNetwork: rapid.Bool().Draw(t, "host"),
		}
		if rapid.Bool().Draw(t, "containers") {
			p.Containers = rapid.SliceOfN(container, 0, 3).Draw(t, "list")
		}
		if rapid.Bool().Draw(t, "resources") {
			p.Resources = &Resources{quantities.Draw(t, "requests"), quantities.Draw(t, "limits")}
		}
		if rapid.Bool().Draw(t, "prioritised") {
			n := rapid.Int32().Draw(t, "n")
			p.Priority = &n
		}
		want, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		w := jsontext.New(0)
		if p.WriteJSON(w); w.Err != nil || string(w.Out) != string(want) {
			t.Fatalf("got  %s, %v\nwant %s", w.Out, w.Err, want)
		}
	})
	w := jsontext.New(0)
	if (&Pod{Containers: []Container{{Role: 7}}}).WriteJSON(w); w.Err == nil {
		t.Error("a role that is none is written")
	}
}

// TestEveryFieldIsWritten: whoever adds a field has to write it, or two different pods
// have one digest.
func TestEveryFieldIsWritten(t *testing.T) {
	t.Parallel()
	for typ, written := range map[reflect.Type]int{
		reflect.TypeFor[Pod]():       14,
		reflect.TypeFor[Resources](): 2,
		reflect.TypeFor[Container](): 6,
		reflect.TypeFor[Excess]():    3,
	} {
		if got := typ.NumField(); got != written {
			t.Errorf("%s has %d fields, encode.go knows %d", typ, got, written)
		}
	}
}
