package manifests

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// TestClaimExamples: the examples of claims have only fields that Kubernetes has, name the class of the overlay and requests and
// templates that are there, and docs/dra.md lists each. TestClusterDaemonSetClaims has an API server check them.
func TestClaimExamples(t *testing.T) {
	t.Parallel()
	o := build(t, root+"deploy/kubernetes/overlays/dra")
	if len(o.classes) != 1 {
		t.Fatalf("the overlay has %d classes", len(o.classes))
	}
	page, err := os.ReadFile(root + "docs/dra.md")
	if err != nil {
		t.Fatal(err)
	}
	paths, err := filepath.Glob(root + "deploy/kubernetes/examples/dra/*.yaml")
	if err != nil || len(paths) < 5 {
		t.Fatalf("%d examples: %v", len(paths), err)
	}
	for _, path := range paths {
		name := filepath.Base(path)
		if !strings.Contains(string(page), name) {
			t.Errorf("docs/dra.md does not name %s", name)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		checkClaims(t, name, text, o.classes[0].Name)
	}
}

// checkClaims checks the objects of an example.
func checkClaims(t *testing.T, name string, text []byte, class string) {
	t.Helper()
	templates, used := map[string]*resourcev1.ResourceClaimTemplate{}, map[string]bool{}
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(document, &kind); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		switch kind.Kind {
		case "ResourceClaimTemplate":
			var r resourcev1.ResourceClaimTemplate
			if err := yaml.UnmarshalStrict(document, &r); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			templates[r.Name] = &r
			checkRequests(t, name, r.Spec.Spec.Devices, class)
		case "Pod":
			var p corev1.Pod
			if err := yaml.UnmarshalStrict(document, &p); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			for _, c := range p.Spec.ResourceClaims {
				used[*c.ResourceClaimTemplateName] = true
			}
		default:
			t.Errorf("%s: an object of kind %q is not expected here", name, kind.Kind)
		}
	}
	for template := range templates {
		if !used[template] {
			t.Errorf("%s: no pod uses the template %s", name, template)
		}
	}
	if len(templates) == 0 || len(used) != len(templates) {
		t.Errorf("%s: %d templates, and pods use %d", name, len(templates), len(used))
	}
}

// checkRequests checks what a claim requests: something of the class, and constraints of its own requests.
func checkRequests(t *testing.T, name string, devices resourcev1.DeviceClaim, class string) {
	t.Helper()
	var names []string
	ours := false
	for _, r := range devices.Requests {
		names = append(names, r.Name)
		if r.Exactly != nil {
			ours = ours || r.Exactly.DeviceClassName == class
		}
		for _, s := range r.FirstAvailable {
			ours = ours || s.DeviceClassName == class
		}
	}
	if !ours {
		t.Errorf("%s requests nothing of the class %s", name, class)
	}
	for _, c := range devices.Constraints {
		for _, r := range c.Requests {
			if !slices.Contains(names, r) {
				t.Errorf("%s: a constraint is about the request %q, and the requests are %v", name, r, names)
			}
		}
	}
}
