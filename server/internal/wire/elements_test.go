package wire_test

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/server/internal/wire"
)

// elements counts those of a decoded message, as the wire count does.
func elements(m protoreflect.Message) (n int) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap():
			n += v.Map().Len()
			if f.MapValue().Message() != nil {
				v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
					n += 1 + elements(v.Message())
					return true
				})
			}
		case f.IsList():
			n += v.List().Len()
			if f.Message() != nil {
				for i := range v.List().Len() {
					n += elements(v.List().Get(i).Message())
				}
			}
		case f.Message() != nil:
			n += 1 + elements(v.Message())
		}
		return true
	})
	return n
}

func TestElementsAreCountedOnTheWire(t *testing.T) {
	t.Parallel()
	many := &typesv1.PodSpec{}
	for i := range 300 {
		many.Containers = append(many.Containers, &typesv1.Container{
			Name: fmt.Sprint(i),
			Resources: &typesv1.ResourceRequirements{Requests: map[string]string{"cpu": "1", "memory": "1Gi"},
				Limits: map[string]string{"cpu": "1"}},
		})
	}
	nodes := make([]uint32, 500)
	for i := range nodes {
		nodes[i] = uint32(i)
	}
	for name, m := range map[string]proto.Message{
		"empty":      &admissionv1.AdmitRequest{},
		"containers": &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: &typesv1.Pod{Spec: many}}},
		"annotations": &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: &typesv1.Pod{
			Metadata: &typesv1.PodMetadata{Annotations: map[string]string{"a": "b", "c": "d"}}}}},
		"strings": &admissionv1.SyncPodsRequest{ActivePodUids: []string{"a", "", "c"}},
		"packed": &topologyv1.MergeRequest{Providers: []*topologyv1.ProviderHints{{TopologyHints: []*typesv1.TopologyHints{{
			Hints: []*typesv1.TopologyHint{{NumaNodes: &typesv1.NUMANodeSet{Ids: nodes}}}}}}}},
		"bytes": &inspectv1.ImportRequest{State: make([]byte, 1<<20)},
	} {
		encoded, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		want := elements(m.ProtoReflect())
		if got := 1<<20 - wire.Count(m.ProtoReflect().Descriptor(), encoded, 1<<20); got != want {
			t.Errorf("%s: %d elements, want %d", name, got, want)
		}
		if left := wire.Count(m.ProtoReflect().Descriptor(), encoded, want); left != 0 {
			t.Errorf("%s: just enough leaves %d", name, left)
		}
		if want > 0 && wire.Count(m.ProtoReflect().Descriptor(), encoded, want-1) >= 0 {
			t.Errorf("%s: one too many passes", name)
		}
	}
}

// FuzzElements: what is on the wire is counted without a panic, whatever it is, and what
// can be decoded has no more elements than were counted.
func FuzzElements(f *testing.F) {
	for _, m := range []proto.Message{
		&admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: &typesv1.Pod{
			Spec: &typesv1.PodSpec{Containers: make([]*typesv1.Container, 3)},
		}}},
		&topologyv1.MergeRequest{Options: map[string]string{"a": "b"}},
	} {
		encoded, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(encoded)
	}
	f.Fuzz(func(t *testing.T, encoded []byte) {
		for _, m := range []proto.Message{&admissionv1.AdmitRequest{}, &topologyv1.MergeRequest{}} {
			counted := 1<<20 - wire.Count(m.ProtoReflect().Descriptor(), encoded, 1<<20)
			if proto.Unmarshal(encoded, m) == nil {
				if n := elements(m.ProtoReflect()); n > counted && counted < 1<<20 {
					t.Errorf("%d elements, counted %d", n, counted)
				}
			}
		}
	})
}
