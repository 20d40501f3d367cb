package manifests

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"sigs.k8s.io/yaml"
)

var updateChart = flag.Bool("update", false, "write the table of values in the chart's README anew")

// chart is the Helm chart with the objects of deploy/kubernetes.
const chart = root + "deploy/helm/berth"

type values = map[string]any

// helm is the program that renders charts, built once.
var helm = sync.OnceValues(func() (string, error) {
	dir, err := programs.Dir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "helm")
	if text, err := exec.Command("go", "build", "-C", root+"hack/tools/helm", "-o", path, ".").CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, text)
	}
	return path, nil
})

// rendered is what values make of the chart.
type rendered struct{ Objects, Error string }

// render renders a chart with each of the values.
func render(t *testing.T, chart string, all ...values) []rendered {
	t.Helper()
	program, err := helm()
	if err != nil {
		t.Fatalf("build hack/tools/helm: %v", err)
	}
	var in, errs bytes.Buffer
	for _, v := range all {
		if err := json.NewEncoder(&in).Encode(v); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(program, chart)
	cmd.Stdin, cmd.Stderr = &in, &errs
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("render %s: %v: %s", chart, err, &errs)
	}
	var results []rendered
	for line := range bytes.Lines(text) {
		var r rendered
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatal(err)
		}
		results = append(results, r)
	}
	if len(results) != len(all) {
		t.Fatalf("%d results of %d values", len(results), len(all))
	}
	return results
}

// valueSchema is the part of values.schema.json that is used.
type valueSchema struct {
	Type, Description string
	Default           any
	Enum              []string
	Properties        map[string]valueSchema
}

func chartSchema(t *testing.T) valueSchema {
	t.Helper()
	var s valueSchema
	if err := json.Unmarshal([]byte(readChart(t, "values.schema.json")), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

func readChart(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(chart, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// overlayOf is the name of the overlay that a value of the chart is: nodeResourceTopology is node-resource-topology.
func overlayOf(value string) string {
	var name strings.Builder
	for _, r := range value {
		if r >= 'A' && r <= 'Z' {
			name.WriteString("-" + strings.ToLower(string(r)))
		} else {
			name.WriteRune(r)
		}
	}
	return name.String()
}

// overlayValues are the values by the name of their overlay.
func overlayValues(t *testing.T) map[string]values {
	t.Helper()
	all := map[string]values{}
	s := chartSchema(t)
	for name, p := range s.Properties {
		if p.Type == "boolean" {
			all[overlayOf(name)] = values{name: true}
		}
	}
	for _, name := range s.Properties["distribution"].Enum {
		if name != s.Properties["distribution"].Default {
			all[name] = values{"distribution": name}
		}
	}
	return all
}

// byName are the objects by their kinds, namespaces and names.
func byName(t *testing.T, text []byte) map[string]any {
	t.Helper()
	all := map[string]any{}
	for _, document := range documents(t, text) {
		var o map[string]any
		if err := yaml.UnmarshalStrict(document, &o); err != nil {
			t.Fatalf("%v:\n%s", err, document)
		}
		if len(o) == 0 {
			continue
		}
		m, _ := o["metadata"].(map[string]any)
		key := fmt.Sprint(o["apiVersion"], o["kind"], m["namespace"], m["name"])
		if all[key] != nil {
			t.Fatalf("%s is there twice", key)
		}
		sortVolumes(o)
		all[key] = o
	}
	return all
}

// sortVolumes removes the order of the volumes of a pod's template, which has no meaning: kustomize's merges put theirs in front.
func sortVolumes(object map[string]any) {
	at := object
	for _, field := range []string{"spec", "template", "spec"} {
		at, _ = at[field].(map[string]any)
	}
	volumes, _ := at["volumes"].([]any)
	name := func(v any) string { return fmt.Sprint(v.(map[string]any)["name"]) }
	slices.SortFunc(volumes, func(a, b any) int { return strings.Compare(name(a), name(b)) })
}

// TestChartMakesTheObjectsOfKustomize: without values the chart has the objects of deploy/kubernetes, with a value those of its overlay.
func TestChartMakesTheObjectsOfKustomize(t *testing.T) {
	t.Parallel()
	overlays, err := filepath.Glob(root + "deploy/kubernetes/overlays/*")
	if err != nil {
		t.Fatal(err)
	}
	of := overlayValues(t)
	names, dirs, all := []string{"base"}, []string{root + "deploy/kubernetes"}, []values{{}}
	for _, dir := range overlays {
		name := filepath.Base(dir)
		if of[name] == nil {
			t.Fatalf("no value of the chart is the overlay %s", name)
		}
		names, dirs, all = append(names, name), append(dirs, dir), append(all, of[name])
	}
	if len(all) != len(of)+1 {
		t.Errorf("%d overlays, and these values: %v", len(overlays), slices.Sorted(maps.Keys(of)))
	}
	for i, r := range render(t, chart, all...) {
		t.Run(names[i], func(t *testing.T) {
			t.Parallel()
			if r.Error != "" {
				t.Fatal(r.Error)
			}
			want, have := byName(t, buildText(t, dirs[i])), byName(t, []byte(r.Objects))
			if w, h := slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(have)); !slices.Equal(w, h) {
				t.Fatalf("kustomize makes\n%s\nand the chart\n%s", strings.Join(w, "\n"), strings.Join(h, "\n"))
			}
			for key, object := range want {
				if !reflect.DeepEqual(object, have[key]) {
					w, _ := yaml.Marshal(object)
					h, _ := yaml.Marshal(have[key])
					t.Errorf("%s: kustomize makes\n%s\nand the chart\n%s", key, w, h)
				}
			}
		})
	}
}

// excluded says whether two values, by the names of their overlays, exclude each other.
func excluded(a, b string) bool {
	both := func(one, other []string) bool {
		return slices.Contains(one, a) && slices.Contains(other, b) || slices.Contains(one, b) && slices.Contains(other, a)
	}
	claims := []string{"dra", "dra-allocatable"}
	return a == observing || b == observing || both(claims, claims) || both([]string{"microk8s"}, claims) ||
		both([]string{"kubelet-certificate"}, []string{"k3s", "microk8s", "rke2"})
}

// TestChartPairs: two values together make objects that fit together, or are refused with the names of both.
func TestChartPairs(t *testing.T) {
	t.Parallel()
	built, err := programs.Dir()
	if err != nil {
		t.Fatal(err)
	}
	of := overlayValues(t)
	names := slices.Sorted(maps.Keys(of))
	var pairs [][2]string
	var all []values
	for i, a := range names {
		for _, b := range names[:i] {
			both := maps.Clone(of[a])
			maps.Copy(both, of[b])
			if len(both) < 2 {
				continue // two distributions, which one value cannot be
			}
			pairs, all = append(pairs, [2]string{a, b}), append(all, both)
		}
	}
	alone, seen := map[string]string{}, map[string]bool{}
	for _, name := range names {
		all = append(all, of[name])
	}
	results := render(t, chart, all...)
	for i, name := range names {
		alone[name] = results[len(pairs)+i].Objects
	}
	for i, r := range results[:len(pairs)] {
		a, b := pairs[i][0], pairs[i][1]
		t.Run(a+"+"+b, func(t *testing.T) {
			if excluded(a, b) {
				for name, value := range all[i] {
					if text, ok := value.(string); ok {
						name += "=" + text
					}
					if !strings.Contains(r.Error, name) || !strings.Contains(r.Error, "exclude each other") {
						t.Errorf("the error does not have %s: %q", name, r.Error)
					}
				}
				return
			}
			if r.Error != "" {
				t.Fatal(r.Error)
			}
			o := parse(t, a+"+"+b, []byte(r.Objects))
			checkObjects(t, o)
			for _, one := range []string{a, b} {
				if r.Objects == alone[one] {
					t.Errorf("both make the same objects as %s alone", one)
				}
				have := byName(t, []byte(r.Objects))
				for key := range byName(t, []byte(alone[one])) {
					if have[key] == nil && !strings.Contains(key, "ConfigMap") {
						t.Errorf("%s has %s, and both have not", one, key)
					}
				}
			}
			// The programs are slow, so they get each configuration once.
			if text := o.maps[0].Data["berthd.yaml"]; !seen[text] {
				seen[text] = true
				checkPrograms(t, built, o)
			}
		})
	}
}

const minimal = "apiVersion: config.berthd.github.io/v1alpha1\nkind: BerthConfiguration\nbeside: kubelet\ncpu: {policy: static}\n"

// TestChartRefusesValues: the schema and the templates name what is wrong.
func TestChartRefusesValues(t *testing.T) {
	t.Parallel()
	cases := []struct {
		values values
		want   []string
	}{
		{values{"singleNumaNodes": true}, []string{"singleNumaNodes", "not allowed"}},
		{values{"image": values{"tag": "1"}}, []string{"/image", "tag", "not allowed"}},
		{values{"image": "localhost"}, []string{"/image", "want object"}},
		{values{"image": values{"repository": ""}}, []string{"/image/repository"}},
		{values{"image": values{"repository": "a b\nc: d"}}, []string{"/image/repository"}},
		{values{"image": values{"repository": "registry.example/Owner"}}, []string{"/image/repository"}},
		{values{"image": values{"repository": "registry.example/owner:1"}}, []string{"/image/repository"}},
		{values{"image": values{"repository": "registry.example//owner"}}, []string{"/image/repository"}},
		{values{"image": values{"repository": "https://registry.example/owner"}}, []string{"/image/repository"}},
		{values{"image": values{"repository": nil}}, []string{"/image", "repository"}},
		{values{"image": nil}, []string{"image"}},
		{values{"distribution": nil}, []string{"missing property 'distribution'"}},
		{values{"dra": "yes"}, []string{"/dra", "want boolean"}},
		{values{"observe": 1}, []string{"/observe", "want boolean"}},
		{values{"distribution": "kind"}, []string{"/distribution", "'kubeadm'", "'talos'"}},
		{values{"distribution": ""}, []string{"/distribution", "'kubeadm'"}},
		{values{"configuration": values{"beside": "kubelet"}}, []string{"/configuration", "want string"}},
		{values{"configuration": minimal, "wholeCores": true}, []string{"wholeCores and configuration exclude each other", "cpu.options"}},
		{values{"configuration": minimal, "singleNumaNode": true}, []string{"singleNumaNode and configuration exclude each other"}},
		{values{"configuration": minimal, "monitoring": true}, []string{"monitoring and configuration exclude each other", "http.sock"}},
		{values{"configuration": "- a", "monitoring": true}, []string{"monitoring and configuration exclude each other"}},
	}
	var all []values
	for _, c := range cases {
		all = append(all, c.values)
	}
	for i, r := range render(t, chart, all...) {
		for _, want := range cases[i].want {
			if !strings.Contains(r.Error, want) {
				t.Errorf("%v: the error does not have %q: %q", cases[i].values, want, r.Error)
			}
		}
	}
}

// TestChartConfiguration: a text of one's own is in the ConfigMap, also with values that need something of it, and images are elsewhere.
func TestChartConfiguration(t *testing.T) {
	t.Parallel()
	own := minimal + "http: unix:///run/berth/http.sock # {{ not a template }}\n"
	for i, r := range render(t, chart, values{"configuration": minimal, "image": values{"repository": "registry.example:5000/a"}},
		values{"configuration": own, "monitoring": true}) {
		if r.Error != "" {
			t.Fatal(r.Error)
		}
		o := parse(t, "chart", []byte(r.Objects))
		if want := []string{minimal, own}[i]; o.maps[0].Data["berthd.yaml"] != want {
			t.Errorf("the configuration is %q, expected %q", o.maps[0].Data["berthd.yaml"], want)
		}
		repository := []string{"registry.example:5000/a", "localhost/berth"}[i]
		for _, name := range []string{"berthd", "berth-nri"} {
			if image := o.container(t, name).Image; image != repository+"/"+name+":"+version(t) {
				t.Errorf("the image of %s is %s", name, image)
			}
		}
	}
}

// TestChartWithoutValues: a default that is removed (`--set observe=null`), and one that values of an older chart do not have
// (`--reuse-values`), is false.
func TestChartWithoutValues(t *testing.T) {
	t.Parallel()
	names, all := []string{"none"}, []values{{}}
	for _, name := range slices.Sorted(maps.Keys(chartSchema(t).Properties)) {
		if p := chartSchema(t).Properties[name]; p.Default == false || p.Default == "" {
			names, all = append(names, name), append(all, values{name: nil})
		}
	}
	results := render(t, chart, all...)
	for i, r := range results {
		if r.Error != "" || r.Objects != results[0].Objects {
			t.Errorf("without %s: %s; the same objects: %t", names[i], r.Error, r.Objects == results[0].Objects)
		}
	}
}

// TestChartInAnother: the chart is a part of another one, which has values for all of its parts.
func TestChartInAnother(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	if err := os.CopyFS(filepath.Join(parent, "charts/berth"), os.DirFS(chart)); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"Chart.yaml": "apiVersion: v2\nname: platform\nversion: 1.0.0\n", "values.yaml": "global: {region: a}\nberth: {wholeCores: true}\n",
	} {
		if err := os.WriteFile(filepath.Join(parent, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	have, want := render(t, parent, values{})[0], render(t, chart, values{"wholeCores": true})[0]
	if have.Error != "" || !reflect.DeepEqual(byName(t, []byte(have.Objects)), byName(t, []byte(want.Objects))) {
		t.Errorf("in another chart: %s", have.Error)
	}
}

// TestChartFiles: the version is that of berth, the values are those of the schema, and the definition is that of the kustomization.
func TestChartFiles(t *testing.T) {
	t.Parallel()
	var about struct{ Version, AppVersion string }
	if err := yaml.Unmarshal([]byte(readChart(t, "Chart.yaml")), &about); err != nil {
		t.Fatal(err)
	}
	if about.Version != version(t) || about.AppVersion != version(t) {
		t.Errorf("Chart.yaml has the versions %s and %s, expected %s, as api/version/VERSION", about.Version, about.AppVersion, version(t))
	}
	var have values
	if err := yaml.UnmarshalStrict([]byte(readChart(t, "values.yaml")), &have); err != nil {
		t.Fatal(err)
	}
	if want := chartSchema(t).defaults(); !reflect.DeepEqual(have, want) {
		t.Errorf("values.yaml has %v, and values.schema.json %v", have, want)
	}
	definition, err := os.ReadFile(root + "deploy/kubernetes/crd/noderesourcetopologies.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if readChart(t, "crds/noderesourcetopologies.yaml") != string(definition) {
		t.Error("crds/noderesourcetopologies.yaml of the chart is not that of deploy/kubernetes/crd")
	}
}

func (s valueSchema) defaults() values {
	all := values{}
	for name, p := range s.Properties {
		all[name] = p.Default
		if p.Type == "object" {
			all[name] = p.defaults()
		}
	}
	return all
}

// table returns the rows of the values.
func (s valueSchema) table(prefix string) string {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		p := s.Properties[name]
		if p.Type == "object" {
			text.WriteString(p.table(prefix + name + "."))
			continue
		}
		allowed, empty := p.Type, fmt.Sprintf("`%v`", p.Default)
		if len(p.Enum) > 0 {
			allowed = "`" + strings.Join(p.Enum, "`, `") + "`"
		}
		if p.Default == "" {
			empty = "empty"
		}
		fmt.Fprintf(&text, "| `%s%s` | %s | %s | %s |\n", prefix, name, allowed, empty, p.Description)
	}
	return text.String()
}

const (
	valuesBegin = "<!-- values: written by go test ./hack/manifests -run TestChartReadme -update -->\n"
	valuesEnd   = "<!-- end of values -->\n"
)

// TestChartReadme: the README has the table of the schema.
func TestChartReadme(t *testing.T) {
	t.Parallel()
	text := readChart(t, "README.md")
	before, rest, ok := strings.Cut(text, valuesBegin)
	_, after, end := strings.Cut(rest, valuesEnd)
	if !ok || !end {
		t.Fatalf("README.md does not have the lines %q and %q", valuesBegin, valuesEnd)
	}
	want := before + valuesBegin + "| Value | Type | Default | Effect |\n| --- | --- | --- | --- |\n" + chartSchema(t).table("") + valuesEnd + after
	if text == want {
		return
	}
	if !*updateChart {
		t.Fatal("the values in README.md are not those of values.schema.json: go test ./hack/manifests -run TestChartReadme -update writes them")
	}
	if err := os.WriteFile(filepath.Join(chart, "README.md"), []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestChartArchive: the archive of a release has the chart, and the same bytes each time.
func TestChartArchive(t *testing.T) {
	t.Parallel()
	var texts [2][]byte
	file := ""
	for i := range texts {
		file = filepath.Join(t.TempDir(), "berth.tgz")
		run(t, root+"hack/chart.sh", file)
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		texts[i] = text
	}
	if !bytes.Equal(texts[0], texts[1]) {
		t.Error("two archives differ")
	}
	want, have := render(t, chart, values{"dra": true}), render(t, file, values{"dra": true})
	if want[0].Error != "" || !reflect.DeepEqual(want, have) {
		t.Errorf("the archive makes\n%v\nand the chart\n%v", have, want)
	}
}
