package config

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/topology"
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

// TestDocumentedDefaults: the documented file has the defaults that hold where
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
	got.Listen, got.StateDir, got.DevicePluginDir, got.PluginRegistryDir, got.PodResourcesDir = "", "", nil, nil, nil
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
	c.Beside = ""              // it excludes other examples
	c.DRA = DRA{}              // it needs it
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

// TestDocumentedOptions: the tables of policy options have every option of the managers,
// and none besides; the managers of memory and devices have none.
func TestDocumentedOptions(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Policy options\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for field, names := range map[string][]string{"cpu.options": cpu.OptionNames(), "topology.options": topology.OptionNames()} {
		_, table, _ := strings.Cut(section, "\n| `"+field+"` |")
		table, _, _ = strings.Cut(table, "\n\n")
		var rows []string
		for _, row := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\|").FindAllStringSubmatch(table, -1) {
			rows = append(rows, row[1])
		}
		slices.Sort(rows)
		slices.Sort(names)
		if !slices.Equal(rows, names) {
			t.Errorf("the table of %s in docs/configuration.md has %q, and the options are %q", field, rows, names)
		}
	}
	for _, typ := range []reflect.Type{reflect.TypeFor[memory.Config](), reflect.TypeFor[Devices]()} {
		if _, has := typ.FieldByName("Options"); has {
			t.Errorf("%s has options: docs/configuration.md lacks a table of them", typ)
		}
	}
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

var update = flag.Bool("update", false, "write files that are made from others anew")

// packaged is the file that is installed: the documented one with every field commented,
// and the group berth, which the package makes, with the role read.
func packaged(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("# Configuration of berthd: berthd.yaml(5). Every field is here with its default, or with an example\n" +
		"# where there is none. 'berthd config validate --config FILE' checks a change.\n")
	for line := range strings.Lines(documented(t)) {
		switch {
		case strings.TrimSpace(line) == "", strings.HasPrefix(line, "apiVersion:"), strings.HasPrefix(line, "kind:"):
			b.WriteString(line)
		default:
			b.WriteString("#" + strings.TrimPrefix(line, "#"))
		}
	}
	b.WriteString("\n# Members of the group berth may read all state: berthctl get pods.\naccess: [{group: berth, roles: [read]}]\n")
	return b.String()
}

// TestPackagedFile: the file that is installed is the documented one, sets nothing but who may
// read, and has every field.
func TestPackagedFile(t *testing.T) {
	t.Parallel()
	const path = "../../deploy/berthd.yaml"
	want := packaged(t)
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != want {
		t.Errorf("%s is not what docs/configuration.md says; go test ./api/config -update writes it anew", path)
	}
	c := Default()
	if err := c.ApplyBerth(path, text); err != nil {
		t.Fatal(err)
	}
	if len(c.Access) != 1 || c.Access[0].Group != "berth" {
		t.Errorf("access is %+v", c.Access)
	}
	c.Access = nil
	if want := Default(); !reflect.DeepEqual(c, want) {
		t.Errorf("it sets:\n%+v\ndefault:\n%+v", c, want)
	}
	// With every comment that is a field uncommented, every field is there.
	lines := strings.Split(string(text), "\n")
	for i, line := range lines {
		lines[i] = regexp.MustCompile(`^#( *)#?([a-zA-Z0-9]+:)`).ReplaceAllString(line, "$1$2")
	}
	all, _, _ := strings.Cut(strings.Join(lines, "\n"), "\n# Members of the group")
	doc, err := parse(path, []byte(all), APIVersion, Kind)
	if err != nil {
		t.Fatal(err)
	}
	missing(t, "", reflect.TypeFor[Config](), doc)
}

// TestDocumentedGate: the feature gate that the documentation names as not implemented causes a warning.
func TestDocumentedGate(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	gate := regexp.MustCompile("feature gates that berth does not implement, such as `([A-Za-z]+)`").FindSubmatch(text)
	if gate == nil {
		t.Fatal("docs/configuration.md names no feature gate that berth does not implement")
	}
	if len(gateNotes(map[string]bool{string(gate[1]): true})) == 0 {
		t.Errorf("feature gate %s causes no warning", gate[1])
	}
}

// TestGatesOfTheReference: of the gates that docs/deviations.md lists, each of the kubelet is a setting here, or one that a note tells of.
func TestGatesOfTheReference(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/deviations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(text), "\n## Feature gates of 1.37\n")
	if !ok {
		t.Fatal("docs/deviations.md has no section about feature gates")
	}
	elsewhere := []string{"PodLevelResourcesFixDefaulting", "InPlacePodVerticalScalingSchedulerPreemption", "PodsAPI"}
	rows := regexp.MustCompile("(?m)^\\| `([A-Za-z]+)` \\|").FindAllStringSubmatch(table, -1)
	if len(rows) < 10 {
		t.Fatalf("found %d gates", len(rows))
	}
	for _, row := range rows {
		gate := row[1]
		if slices.Contains(elsewhere, gate) {
			continue
		}
		var got [2]Config
		var notes []string
		for i, on := range []bool{true, false} {
			got[i] = Default()
			file := fmt.Sprintf("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nfeatureGates: {%s: %t}\n", gate, on)
			said, err := got[i].ApplyKubelet("kubelet.yaml", []byte(file))
			if err != nil {
				t.Fatalf("%s: %v", gate, err)
			}
			notes = append(notes, said...)
		}
		told := slices.ContainsFunc(notes, func(note string) bool { return strings.Contains(note, "featureGates."+gate+": ") })
		if !told && reflect.DeepEqual(got[0], got[1]) {
			t.Errorf("%s neither changes the configuration nor causes a note", gate)
		}
	}
}
