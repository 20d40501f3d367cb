package podspec

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

// TestEveryFieldIsConvertedOrDropped: each field of Kubernetes' types is in the message, by
// the same JSON name, or in the list of dropped fields. A field of a newer Kubernetes is
// neither, until that is decided.
func TestEveryFieldIsConvertedOrDropped(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		kubernetes any
		message    proto.Message
		dropped    map[string]string
	}{
		"pod":            {corev1.PodSpec{}, new(typesv1.PodSpec), droppedFromPod},
		"container":      {corev1.Container{}, new(typesv1.Container), droppedFromContainer},
		"resources":      {corev1.ResourceRequirements{}, new(typesv1.ResourceRequirements), nil},
		"resource claim": {corev1.PodResourceClaim{}, new(typesv1.PodResourceClaim), nil},
		"claim":          {corev1.ResourceClaim{}, new(typesv1.ResourceClaim), nil},
		"resize policy":  {corev1.ContainerResizePolicy{}, new(typesv1.ResizePolicy), nil},
	} {
		var fields []string
		for list, i := row.message.ProtoReflect().Descriptor().Fields(), 0; i < list.Len(); i++ {
			fields = append(fields, list.Get(i).JSONName())
		}
		typ := reflect.TypeOf(row.kubernetes)
		for i := range typ.NumField() {
			field := typ.Field(i).Name
			_, out := row.dropped[field]
			if in := slices.Contains(fields, jsonName(typ, field)); in == out {
				t.Errorf("%s: %s is in the message: %v, and in the list of dropped fields: %v", name, field, in, out)
			}
		}
		for field := range row.dropped {
			if _, ok := typ.FieldByName(field); !ok {
				t.Errorf("%s: there is no field %s to drop", name, field)
			}
		}
	}
}

func TestDropped(t *testing.T) {
	t.Parallel()
	no := false
	p := &corev1.Pod{Spec: corev1.PodSpec{
		HostUsers: &no, NodeName: "n1", Volumes: []corev1.Volume{{Name: "v"}},
		InitContainers: []corev1.Container{{Name: "first", TTY: true}},
		Containers: []corev1.Container{{Name: "main", Image: "x"},
			{Name: "more", Command: []string{"sleep"}, Env: []corev1.EnvVar{{Name: "A"}}}},
	}}
	want := "spec.containers[1].command spec.containers[1].env spec.hostUsers spec.initContainers[0].tty spec.volumes"
	if got := Dropped(p); strings.Join(got, " ") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(got, " "), want)
	}
	if got := Dropped(&corev1.Pod{}); len(got) != 0 {
		t.Errorf("of an empty pod: %q", got)
	}
}
