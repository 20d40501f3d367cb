package driver

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	sigsyaml "sigs.k8s.io/yaml"
)

// TestParametersOfExamples: the examples in deploy/kubernetes/examples have no fields that the API does not have, and the driver takes
// their parameters, which the API server does not check.
func TestParametersOfExamples(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("../../../deploy/kubernetes/examples/dra/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	parsed := 0
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
		for {
			document, err := documents.Read()
			if errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			var kind metav1.TypeMeta
			var template resourceapi.ResourceClaimTemplate
			into := any(&template)
			if err := sigsyaml.Unmarshal(document, &kind); err == nil && kind.Kind == "Pod" {
				into = new(corev1.Pod)
			}
			if err := sigsyaml.UnmarshalStrict(document, into); err != nil {
				t.Errorf("%s: %v", path, err)
			}
			for i, c := range template.Spec.Spec.Devices.Config {
				if c.Opaque == nil || c.Opaque.Driver != Name {
					t.Errorf("%s: config[%d] is not for %s", path, i, Name)
					continue
				}
				if _, err := parseParameters(c.Opaque.Parameters); err != nil {
					t.Errorf("%s: config[%d]: %v", path, i, err)
				}
				parsed++
			}
		}
	}
	if parsed == 0 {
		t.Errorf("none of %d examples has parameters", len(paths))
	}
}
