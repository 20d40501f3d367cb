package podspec

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestUnknownFields compares with the converter of Kubernetes, for documents in which it finds nothing else wrong.
func TestUnknownFields(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{}`,
		`{"apiVersion":"v1","kind":"Pod","Kind":"Pod","TypeMeta":{},"metadata":{"name":"a","labels":{"x":"y"},"creationTimestamp":null,
			"managedFields":[{"fieldsV1":{"f:x":{}},"manager":"m","x":1}],"ownerReferences":[{"name":"n","nome":"n"}]}}`,
		`{"spec":null,"status":{"phase":"Running","phases":1,"containerStatuses":[{"name":"c","allocatedResources":{"cpu":"1"},"x":{}}]}}`,
		`{"spec":{"containers":[{"name":"c"},{"name":"d","Name":"d","resources":{"limits":{"cpu":"1","x.io/y":2},"limit":{}},
			"livenessProbe":{"httpGet":{"port":"http","prt":1},"exec":{"command":["a"]},"handler":{}},
			"env":[{"name":"a","valueFrom":{"fieldRef":{"fieldPath":"p","path":"p"}}}]}]}}`,
		`{"spec":{"volumes":[{"name":"v","emptyDir":{"sizeLimit":"1Gi","size":"1Gi"}},{"name":"w","VolumeSource":{}}],
			"nodeSelector":{"a":"b"},"affinity":{"nodeAffinity":{"required":{}}},"overhead":{"cpu":"1"},"bogus":[{"deeper":1}]}}`,
	} {
		doc, err := parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(doc, new(corev1.Pod), true)
		if strict, ok := runtime.AsStrictDecodingError(err); ok {
			for _, e := range strict.Errors() {
				want = append(want, e.Error())
			}
		} else if err != nil {
			t.Fatal(err)
		}
		if got := unknownFields(doc, reflect.TypeFor[corev1.Pod]()); !slices.Equal(got, want) {
			t.Errorf("%s:\n%s\nwant\n%s", text, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}
