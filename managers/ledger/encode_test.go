package ledger

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/internal/jsontext"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// drawAffinity draws an affinity, or none.
func drawAffinity(t *rapid.T) *Affinity {
	if rapid.Bool().Draw(t, "no affinity") {
		return nil
	}
	return &Affinity{
		Nodes: numa.Mask(rapid.Uint64Range(0, 9).Draw(t, "nodes")),
		Any:   rapid.Bool().Draw(t, "any"), Preferred: rapid.Bool().Draw(t, "preferred"),
	}
}

// drawClaim draws a claim, or none.
func drawClaim(t *rapid.T) *Claim {
	s := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", "cpu", "<a&b>", "\x00\u2028\xff\"\\"}))
	c := &Claim{
		Owner:    Owner{Pod: s.Draw(t, "pod"), Container: s.Draw(t, "container")},
		Provider: s.Draw(t, "provider"), Resource: s.Draw(t, "resource"), Affinity: drawAffinity(t),
	}
	switch rapid.IntRange(0, 4).Draw(t, "payload") {
	case 0:
		c.CPUs = &CPUs{Set: cpuset.Of(rapid.SliceOfN(rapid.IntRange(0, 300), 0, 5).Draw(t, "cpus")...), Use: CPUUse(s.Draw(t, "use"))}
	case 1:
		c.Memory = []Block{{Nodes: 3, Bytes: 1 << 63, Parts: []Part{{Node: 1, Bytes: 2}}}, {}}
	case 2:
		c.Devices = &Devices{Devices: []Device{{ID: s.Draw(t, "id"), Nodes: 1}, {Topology: true}}, Response: []byte{255}}
	case 3:
		c.Opaque = rapid.SliceOf(rapid.Byte()).Draw(t, "opaque")
	default:
		return nil
	}
	return c
}

// TestEncodesAsJSONDoes: the bytes are those of encoding/json.
func TestEncodesAsJSONDoes(t *testing.T) {
	t.Parallel()
	s := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", "pod-1", "<a&b>", "\x00\u2028\xff\"\\\x7f"}))
	step := rapid.Custom(func(t *rapid.T) Step {
		v := Step{
			Kind: StepKind(s.Draw(t, "kind")), Container: s.Draw(t, "container"), Provider: s.Draw(t, "provider"),
			Resource: s.Draw(t, "resource"), Answer: s.Draw(t, "answer"), Omitted: rapid.IntRange(-1, 2).Draw(t, "omitted"),
			Affinity: drawAffinity(t), Approximate: rapid.Bool().Draw(t, "approximate"), Claim: drawClaim(t), Text: s.Draw(t, "text"),
		}
		for range rapid.IntRange(0, 2).Draw(t, "hints") {
			if a := drawAffinity(t); a != nil {
				v.Hints = append(v.Hints, *a)
			}
		}
		if rapid.Bool().Draw(t, "short") {
			v.Shortages = []Shortage{{Resource: v.Resource, Need: 1}}
		}
		return v
	})
	rapid.Check(t, func(t *rapid.T) {
		v := Trace{
			AdmissionID: s.Draw(t, "id"), Pod: s.Draw(t, "pod"), Namespace: s.Draw(t, "namespace"), Name: s.Draw(t, "name"),
			Generation: rapid.Uint64().Draw(t, "generation"), Admitted: rapid.Bool().Draw(t, "admitted"), DryRun: rapid.Bool().Draw(t, "dry"),
			Reason: s.Draw(t, "reason"), Message: s.Draw(t, "message"), Tried: rapid.IntRange(0, 2).Draw(t, "tried"),
		}
		if rapid.Bool().Draw(t, "stepped") {
			v.Steps = rapid.SliceOfN(step, 0, 4).Draw(t, "steps")
		}
		if rapid.Bool().Draw(t, "suggested") {
			v.Suggestions = make([]Suggestion, 1)
		}
		check := func(v any) {
			want, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			w := jsontext.New(0)
			if encode(w, v); w.Err != nil || string(w.Out) != string(want) {
				t.Fatalf("got  %s, %v\nwant %s", w.Out, w.Err, want)
			}
		}
		check(&v)
		p := storedPod{Pod: &Pod{
			Pod: workload.Pod{UID: v.Pod, Namespace: v.Namespace, Containers: []workload.Container{{Name: v.Name}}}, Digest: s.Draw(t, "digest"),
			QoS: workload.QoSClass(s.Draw(t, "class")), OwnedBy: s.Draw(t, "owner"), AdmissionID: v.AdmissionID, ResizeID: s.Draw(t, "resize"), AdmittedAt: time.Unix(rapid.Int64Range(0, 1e10).Draw(t, "s"), 1).UTC(),
			AdmittedGeneration: v.Generation % 3, CgroupParent: s.Draw(t, "parent"),
		}}
		if v.Admitted {
			p.TraceNumber = &v.Generation
			p.ClaimsSum = s.Draw(t, "sum")
		}
		check(&p)
		check(storedGeneration{v.Generation, v.Tried, v.Tried % 7, v.Tried % 3})
		if c := drawClaim(t); c != nil {
			check(c)
		}
	})
}

// TestEveryFieldIsWritten: whoever adds a field has to write it, here too.
func TestEveryFieldIsWritten(t *testing.T) {
	t.Parallel()
	for typ, written := range map[reflect.Type]int{
		reflect.TypeFor[ClaimRecord]():       11,
		reflect.TypeFor[storedClaimRecord](): 12,
		reflect.TypeFor[recordedClaim]():     8,
		reflect.TypeFor[Pod]():               13,
		reflect.TypeFor[storedPod]():         3,
		reflect.TypeFor[Trace]():             12,
		reflect.TypeFor[Step]():              12,
		reflect.TypeFor[Affinity]():          3,
		reflect.TypeFor[Claim]():             8,
		reflect.TypeFor[Owner]():             2,
		reflect.TypeFor[CPUs]():              2,

		reflect.TypeFor[storedGeneration](): 4,
	} {
		if got := typ.NumField(); got != written {
			t.Errorf("%s has %d fields, encode.go knows %d", typ, got, written)
		}
	}
}
