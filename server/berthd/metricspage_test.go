package main

import (
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// family is a metric with its labels.
type family struct {
	kind   string
	labels []string
}

var pageRow = regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)` \\| (counter|gauge|histogram) \\| [^|]+ \\| ([^|]+) \\|")

// metricsPage reads docs/metrics.md.
func metricsPage(t *testing.T) map[string]family {
	t.Helper()
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]family{}
	for _, m := range pageRow.FindAllStringSubmatch(string(text), -1) {
		var labels []string
		for label := range strings.SplitSeq(m[3], ",") {
			if label = strings.Trim(label, " `"); label != "-" {
				labels = append(labels, label)
			}
		}
		all[m[1]] = family{m[2], labels}
	}
	return all
}

var (
	typeLine = regexp.MustCompile(`(?m)^# TYPE (\S+) (\S+)$`)
	label    = regexp.MustCompile(`[{,]([a-z_]+)="`)
)

// families reads what /metrics has, without the metrics of Go and of the process.
func (d *daemon) families() map[string]family {
	d.t.Helper()
	resp, err := http.Get("http://" + d.http() + "/metrics")
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		d.t.Fatalf("%s, %v: %s", resp.Status, err, text)
	}
	all := map[string]family{}
	for _, m := range typeLine.FindAllStringSubmatch(string(text), -1) {
		if strings.HasPrefix(m[1], "go_") || strings.HasPrefix(m[1], "process_") {
			continue
		}
		f := family{kind: m[2]}
		for line := range strings.Lines(string(text)) {
			name, rest, _ := strings.Cut(line, "{")
			if base := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_sum"), "_count"); name != m[1] && base != m[1] {
				continue
			}
			for _, l := range label.FindAllStringSubmatch("{"+rest, -1) {
				if l[1] != "le" && !slices.Contains(f.labels, l[1]) {
					f.labels = append(f.labels, l[1])
				}
			}
		}
		all[m[1]] = f
	}
	return all
}

// TestMetricsPage: a real berthd has no metric that docs/metrics.md does not have, of the same type and with the same
// labels. Metrics that need no event and no feature are there.
func TestMetricsPage(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--http", "127.0.0.1:0")
	d := n.start()
	d.plugin("0,1")
	d.admitted(burstable("a"))
	d.admit(guaranteed("b", 1, 1))
	d.admit(guaranteed("c", 1, 5))
	page, served := metricsPage(t), d.families()
	for name, got := range served {
		want, ok := page[name]
		switch {
		case !ok:
			t.Errorf("%s is served and not on the page", name)
		case got.kind != want.kind:
			t.Errorf("%s is a %s, a %s on the page", name, got.kind, want.kind)
		}
		for _, l := range got.labels {
			if !slices.Contains(want.labels, l) {
				t.Errorf("%s has the label %s, which is not on the page", name, l)
			}
		}
		if len(got.labels) != len(want.labels) {
			t.Errorf("%s has the labels %q, on the page %q", name, got.labels, want.labels)
		}
	}
	for _, name := range []string{
		"berth_ledger_pods", "berth_ledger_claims", "berth_containers", "berth_rpc_duration_seconds", "berth_admission_duration_seconds",
		"berth_admission_step_duration_seconds", "berth_reconcile_duration_seconds", "kubelet_node_allocatable", "kubelet_cgroup_version",
		"kubelet_device_plugin_registration_total", "kubelet_admission_rejections_total",
	} {
		if _, ok := served[name]; !ok {
			t.Errorf("%s is not served", name)
		}
	}
}

// TestContainerUsage: what a running container uses is read from its cgroup.
func TestContainerUsage(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--http", "127.0.0.1:0")
	n.needKernel()
	d := n.start()
	d.admitted(limited("a", "100m", "64Mi"))
	p := n.stoppedWith(16)
	d.run(p, "a", "main", "c-1")
	p.works()
	const labels = `{container="main",namespace="default",pod="a"}`
	m := d.scrape()
	if got := m["container_memory_working_set_bytes"+labels]; got < 16<<20 || got > 64<<20 {
		t.Errorf("working set %v", got)
	}
	if got := m["container_memory_usage_bytes"+labels]; got < m["container_memory_working_set_bytes"+labels] || got > 64<<20 {
		t.Errorf("usage %v", got)
	}
	if got := m["container_cpu_usage_seconds_total"+labels]; got <= 0 {
		t.Errorf("CPU time %v", got)
	}
	if got := m["berth_container_usage_omitted"]; got != 0 {
		t.Errorf("%v containers are omitted", got)
	}
	if m[`kubelet_node_allocatable{resource="memory"}`] <= 0 || m[`kubelet_node_allocatable{resource="cpu"}`] <= 0 {
		t.Error("nothing is allocatable")
	}
	d.remove("a")
	for name := range d.scrape() {
		if strings.HasPrefix(name, "container_") {
			t.Errorf("of a removed pod: %s", name)
		}
	}
}
