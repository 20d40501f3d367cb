package manifests

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// schema is the part of an OpenAPI schema that deploy/kubernetes/crd uses.
type schema struct {
	Type        string            `json:"type"`
	Description string            `json:"description"`
	Format      string            `json:"format"`
	Required    []string          `json:"required"`
	Properties  map[string]schema `json:"properties"`
	Items       *schema           `json:"items"`
	Pattern     string            `json:"pattern"`
	AnyOf       []schema          `json:"anyOf"`
	IntOrString bool              `json:"x-kubernetes-int-or-string"`
}

// check lists what a value has that the schema does not permit.
func (s schema) check(path string, value any) (wrong []string) {
	switch v := value.(type) {
	case map[string]any:
		if s.Type != "object" {
			return []string{path + " is an object"}
		}
		for _, name := range s.Required {
			if v[name] == nil {
				wrong = append(wrong, path+" lacks "+name)
			}
		}
		for name, field := range v {
			if of, ok := s.Properties[name]; ok {
				wrong = append(wrong, of.check(path+"."+name, field)...)
			} else if path != ".metadata" { // the API server's own
				wrong = append(wrong, path+" has "+name)
			}
		}
	case []any:
		if s.Type != "array" {
			return []string{path + " is a list"}
		}
		for i, item := range v {
			wrong = append(wrong, s.Items.check(fmt.Sprintf("%s[%d]", path, i), item)...)
		}
	case string:
		if s.Type != "string" && !s.IntOrString {
			return []string{path + " is a string"}
		}
		if !regexp.MustCompile(s.Pattern).MatchString(v) {
			return []string{fmt.Sprintf("%s is %q", path, v)}
		}
	case float64:
		if s.Type != "integer" && !s.IntOrString || v != float64(int64(v)) {
			return []string{fmt.Sprintf("%s is %v", path, v)}
		}
	default:
		return []string{fmt.Sprintf("%s is %v", path, v)}
	}
	return wrong
}

// TestDefinition: the object that berth-nri publishes is as the definition in deploy/kubernetes/crd says,
// and objects that schedulers could not read are not.
func TestDefinition(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(root + "deploy/kubernetes/crd/noderesourcetopologies.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var definition struct {
		Spec struct {
			Group    string
			Scope    string
			Versions []struct {
				Name   string
				Schema struct{ OpenAPIV3Schema schema }
			}
		}
	}
	if err := yaml.Unmarshal(text, &definition); err != nil {
		t.Fatal(err)
	}
	spec := definition.Spec
	if len(spec.Versions) != 1 || spec.Scope != "Cluster" {
		t.Fatalf("%d versions, scope %s", len(spec.Versions), spec.Scope)
	}
	golden, err := os.ReadFile(root + "clients/nri/publish/testdata/object.json")
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("%q: %q", "apiVersion", spec.Group+"/"+spec.Versions[0].Name); !strings.Contains(string(golden), want) {
		t.Errorf("the object has not %s", want)
	}
	for _, c := range []struct{ old, new, want string }{
		{"", "", ""},
		{`"available": "3"`, `"available": 3`, ""},
		{`"available": "3"`, `"available": "3 CPUs"`, `.zones[0].resources[0].available is "3 CPUs"`},
		{`"available": "3"`, `"free": "3"`, `.zones[0].resources[0] has free, .zones[0].resources[0] lacks available`},
		{`"type": "Node"`, `"type": 1`, `.zones[0].type is 1`},
		{`"value": 10`, `"value": 10.5`, `.zones[0].costs[0].value is 10.5`},
		{`"zones"`, `"nodes"`, ` has nodes,  lacks zones`},
	} {
		var o any
		if err := json.Unmarshal([]byte(strings.Replace(string(golden), c.old, c.new, 1)), &o); err != nil {
			t.Fatal(err)
		}
		wrong := spec.Versions[0].Schema.OpenAPIV3Schema.check("", o)
		slices.Sort(wrong)
		if got := strings.Join(wrong, ", "); got != c.want {
			t.Errorf("%s in place of %s: %q, want %q", c.new, c.old, got, c.want)
		}
	}
}
