package config

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// documented is the file in docs/configuration.md.
func documented(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, begins := strings.Cut(string(text), "```yaml\n")
	block, _, ends := strings.Cut(rest, "```\n")
	if !begins || !ends {
		t.Fatal("docs/configuration.md has no file in it")
	}
	return block
}

// TestDocumentedDefaults: the file in the documentation says what holds where
// nothing is set.
func TestDocumentedDefaults(t *testing.T) {
	t.Parallel()
	block := documented(t)
	// Sections of which nothing is set.
	block = strings.ReplaceAll(block, "\nreserved:", "\nreserved: {}")
	got, want := Default(), Default()
	if err := got.ApplyBerth("docs", []byte(block)); err != nil {
		t.Fatal(err)
	}
	// Their defaults depend on rootDir, so berthd fills them in.
	got.Listen, got.StateDir, got.DevicePluginDir, got.PluginRegistryDir, got.PodResourcesDir = "", "", "", "", ""
	if !reflect.DeepEqual(got, want) {
		t.Errorf("documented:\n%+v\ndefault:\n%+v", got, want)
	}
}

// TestDocumentedFields: every field is there, and what is shown is valid.
func TestDocumentedFields(t *testing.T) {
	t.Parallel()
	all := regexp.MustCompile(`(?m)^( *)#([a-zA-Z]+: )`).ReplaceAllString(documented(t), "$1$2")
	c := Default()
	if err := c.ApplyBerth("docs", []byte(all)); err != nil {
		t.Fatal(err)
	}
	c.Cgroups.MemoryQoS = true // for its policy
	c.Reserved.CPUs = c.Reserved.CPUs.Minus(c.Reserved.CPUs)
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	doc, err := parse("docs", []byte(all), APIVersion, Kind)
	if err != nil {
		t.Fatal(err)
	}
	missing(t, "", reflect.TypeFor[Config](), doc)
}

// missing reports the fields of a struct, and of those in it, that an object lacks.
func missing(t *testing.T, at string, typ reflect.Type, object map[string]any) {
	t.Helper()
	for name, field := range fields(typ) {
		value, ok := object[name]
		if !ok {
			t.Errorf("docs/configuration.md lacks %s%s", at, name)
			continue
		}
		if inner, ok := value.(map[string]any); ok && field.Kind() == reflect.Struct && !readsItself(field) {
			missing(t, at+name+".", field, inner)
		}
	}
}
