package driver

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// TestParametersOfExamples: the driver takes the parameters in deploy/kubernetes/examples, which the API server does not check.
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
		documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
		for {
			var template resourceapi.ResourceClaimTemplate
			if err := documents.Decode(&template); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			if template.Kind != "ResourceClaimTemplate" {
				continue
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
