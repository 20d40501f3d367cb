package monitoring

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const folder = "../../deploy/monitoring"

// rule is a recording or an alerting rule.
type rule struct {
	Record      string            `json:"record"`
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func rules(t *testing.T) (all []rule) {
	t.Helper()
	var file struct {
		Groups []struct {
			Rules []rule `json:"rules"`
		} `json:"groups"`
	}
	if err := yaml.Unmarshal([]byte(read(t, filepath.Join(folder, "berth.rules.yaml"))), &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// dashboard are the queries by the panel's title.
func dashboard(t *testing.T) map[string][]string {
	t.Helper()
	var d struct {
		Panels []struct {
			Title   string `json:"title"`
			Targets []struct {
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
	}
	if err := json.Unmarshal([]byte(read(t, filepath.Join(folder, "dashboard.json"))), &d); err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	for _, p := range d.Panels {
		if len(p.Targets) == 0 || all[p.Title] != nil {
			t.Errorf("panel %q has no queries, or there are two of it", p.Title)
		}
		for _, target := range p.Targets {
			all[p.Title] = append(all[p.Title], target.Expr)
		}
	}
	return all
}

// metric is a name in a query that can only be one of a metric.
var metric = regexp.MustCompile(`\b(?:berth|kubelet|container|plugin_manager|resource_manager|process|go)_[a-z0-9_]+|\bberth:[a-z0-9_:]+`)

// TestNames: rules and dashboard name metrics of docs/metrics.md and records of the rules, and no others.
func TestNames(t *testing.T) {
	t.Parallel()
	known := map[string]bool{"process_resident_memory_bytes": true}
	for _, page := range []string{"../../docs/nri.md", "../../docs/dra.md"} {
		for _, m := range regexp.MustCompile("`(berth_(?:nri|dra)_[a-z0-9_]+)").FindAllStringSubmatch(read(t, page), -1) {
			known[m[1]] = true
		}
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)` \\| (counter|gauge|histogram) ").FindAllStringSubmatch(read(t, "../../docs/metrics.md"), -1) {
		known[m[1]] = true
		if m[2] == "histogram" {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				known[m[1]+suffix] = true
			}
		}
	}
	for _, r := range rules(t) {
		if r.Record != "" {
			known[r.Record] = true
		}
	}
	check := func(where, query string) {
		t.Helper()
		for _, name := range metric.FindAllString(query, -1) {
			if !known[name] {
				t.Errorf("%s: %s is no metric of berthd's", where, name)
			}
		}
	}
	everyExpression(t, check)
}

// everyExpression calls check with each expression of the rules and of the dashboard, and where it stands.
func everyExpression(t *testing.T, check func(where, expression string)) {
	t.Helper()
	for _, r := range rules(t) {
		check(r.Record+r.Alert, r.Expr)
	}
	for title, queries := range dashboard(t) {
		for _, q := range queries {
			check(title, q)
		}
	}
}

// TestServedEverywhere: rules and dashboard have data in every way of installation. Manifests for a node with a kubelet leave out
// metrics with names of the kubelet, so each expression has an alternative without them.
func TestServedEverywhere(t *testing.T) {
	t.Parallel()
	out := 0
	for _, dir := range []string{"../../deploy/kubernetes", "../../deploy"} {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err == nil && filepath.Base(path) == "berthd.yaml" && strings.Contains(read(t, path), "\nkubeletMetrics: false") {
				out++
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if out == 0 {
		t.Fatal("no manifest leaves out the kubelet's names: this test is not needed any more")
	}
	check := func(where, expression string) {
		t.Helper()
		served := func(alternative string) bool {
			return !slices.ContainsFunc(metric.FindAllString(alternative, -1), func(name string) bool {
				return !strings.HasPrefix(name, "berth") && !strings.HasPrefix(name, "process_") && !strings.HasPrefix(name, "go_")
			})
		}
		if !slices.ContainsFunc(regexp.MustCompile(`\bor\b`).Split(expression, -1), served) {
			t.Errorf("%s has no data beside a kubelet: %s", where, expression)
		}
		for _, name := range metric.FindAllString(expression, -1) {
			if !served(name) && !strings.Contains(expression, " or ") {
				t.Errorf("%s uses %s, which is not served beside a kubelet", where, name)
			}
		}
	}
	everyExpression(t, check)
}

// TestRunbooksOfClusters: each section has a line for a node with systemd or berthctl, and one for kubectl.
func TestRunbooksOfClusters(t *testing.T) {
	t.Parallel()
	sections := regexp.MustCompile(`(?m)^## `).Split(read(t, "../../docs/alerts.md"), -1)[1:]
	for _, s := range sections {
		name, text, _ := strings.Cut(s, "\n")
		if !strings.Contains(text, "\nkubectl ") {
			t.Errorf("%s has no line for kubectl", name)
		}
		if !regexp.MustCompile("journalctl|systemctl|berthctl|panel|metrics are complete").MatchString(text) {
			t.Errorf("%s says nothing about a node with systemd", name)
		}
	}
}

// TestEveryAlertHasAPage: each alert has a severity, texts, and a section in docs/alerts.md that its address names; no
// section is about an alert that is gone. Each alert is in the rules' tests.
func TestEveryAlertHasAPage(t *testing.T) {
	t.Parallel()
	text, tests := read(t, "../../docs/alerts.md"), read(t, filepath.Join(folder, "berth.rules.test.yaml"))
	var sections, alerts []string
	for _, m := range regexp.MustCompile(`(?m)^## (Berth\w+)\n\n\S`).FindAllStringSubmatch(text, -1) {
		sections = append(sections, m[1])
	}
	for _, r := range rules(t) {
		if r.Alert == "" {
			continue
		}
		alerts = append(alerts, r.Alert)
		if !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) ||
			r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("%s: labels %v, annotations %v", r.Alert, r.Labels, r.Annotations)
		}
		want := "https://github.com/berthd/berth/blob/main/docs/alerts.md#" + strings.ToLower(r.Alert)
		if got := r.Annotations["runbook_url"]; got != want {
			t.Errorf("%s: runbook_url %s, want %s", r.Alert, got, want)
		}
		if !strings.Contains(tests, `alertname="`+r.Alert+`"`) {
			t.Errorf("%s is not in berth.rules.test.yaml", r.Alert)
		}
	}
	if !slices.Equal(sections, alerts) {
		t.Errorf("sections of docs/alerts.md: %q\nalerts: %q", sections, alerts)
	}
}
