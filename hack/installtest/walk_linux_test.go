package installtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
)

// walkVariable names docs/walk.md on a machine that this test may change: test.sh boots one.
const walkVariable = "BERTH_TEST_WALK"

// updateVariable is set where the page is to be printed, and test.sh writes it.
const updateVariable = "BERTH_TEST_UPDATE"

// command is one that a reader types.
type command struct {
	run string
	// until is in the output of a command that is repeated until then; spaces stand for any number of them.
	until string
	code  int
}

// section is a part of the page.
type section struct {
	title, text string
	commands    []command
}

const (
	walkTitle        = "# What does berth print, from the installation to the metrics?"
	walkIntroduction = "This page is a transcript: every command of a new user, with its output. The machine is a virtual machine with two NUMA " +
		"nodes of two CPUs each, cgroup v2 and systemd. All commands run as root. `hack/installtest/test.sh walk` runs the commands again, and " +
		"compares their output with this page, without times and ids. `hack/installtest/test.sh update` writes the page. `make test-all` " +
		"includes the comparison."
	walkDashboard = "The table lists the metrics of each panel of the dashboard (some through recording rules in `berth.rules.yaml`), and " +
		"whether berthd serves them at this point:"
)

// prose breaks a paragraph into lines of at most 140 characters.
func prose(text string) string {
	var page strings.Builder
	at := 0
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case at+1+n > 140:
			page.WriteByte('\n')
			at = 0
		default:
			page.WriteByte(' ')
			at++
		}
		page.WriteString(word)
		at += n
	}
	return page.String()
}

// pod is a manifest whose container prints its CPUs and environment, and runs until it is stopped.
func pod(name, limits string) command {
	return command{run: `cat > /etc/berth/manifests/` + name + `.yaml << END
apiVersion: v1
kind: Pod
metadata: {name: ` + name + `}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: probe
    command: [/probe, show, ",", wait]
    resources: {limits: {` + limits + `}}
END`}
}

const scrape = "curl -s http://localhost:10470/metrics"

var walk = []section{
	{
		"Install it",
		"[install.md](install.md) describes the packages. Where apt is, `apt install` with the same files does the same. The installation " +
			"starts no service.",
		[]command{
			{run: "dpkg -i berthd_*_amd64.deb berth-client_*_amd64.deb berthlet_*_amd64.deb"},
			{run: "systemctl is-active berthd berthlet", code: 3},
		},
	},
	{
		"Configure and start it",
		"[configuration.md](configuration.md) has all fields. The drop-in `metrics.conf` gives berthd the right to serve `http` on a port.",
		[]command{
			{run: `cat > /etc/berth/berthd.yaml << END
apiVersion: config.berthd.github.io/v1alpha1
kind: BerthConfiguration
cpu: {policy: static}
reserved: {cpus: "0"}
topology: {policy: single-numa-node}
cgroups: {driver: systemd}
http: localhost:10470
END`},
			{run: "berthd config validate --config /etc/berth/berthd.yaml"},
			{run: "mkdir /etc/systemd/system/berthd.service.d"},
			{run: "cp /usr/share/berth/drop-ins/metrics.conf /etc/systemd/system/berthd.service.d/"},
			{run: "systemctl daemon-reload"},
			{run: "systemctl enable --now berthd berthlet"},
			{run: "berthctl get node --wait-ready"},
			{run: "berthctl topology"},
		},
	},
	{
		"Start a device plugin", "`gpu-plugin` is a sample (`hack/plugin`). It registers with `kubelet.sock`, as every device plugin does.",
		[]command{
			{run: "systemd-run --quiet --unit gpu-plugin gpu-plugin -resource example.com/gpu -devices gpu0@0,gpu1@1"},
			{run: "berthctl get devices", until: "gpu1"},
			{run: "berthctl get resources"},
		},
	},
	{
		"Run a pod with a device",
		"berthlet runs the manifests of a folder ([berthlet.md](berthlet.md)). The image `probe` is a directory below `/var/lib/berth-images`, with one " +
			"program that prints the CPUs, memory nodes and environment of its process.",
		[]command{
			pod("web", "memory: 64Mi"),
			pod("trainer", "cpu: 1, memory: 128Mi, example.com/gpu: 1"),
			{run: "berthlet status", until: "trainer 1/1 Running .* web 1/1 Running"},
			{run: "berthlet logs trainer | grep -E '^(affinity|mems|env.EXAMPLE_COM_GPU)='", until: "GPU="},
			{run: "berthctl get pods"},
			{run: "berthctl get cpus"},
			{run: "berthctl allocate trainer main"},
		},
	},
	{
		"Why was a pod rejected?", "The pod `greedy` requests two GPUs ([rejected.md](rejected.md)).",
		[]command{
			pod("greedy", "cpu: 1, memory: 64Mi, example.com/gpu: 2"),
			{run: "berthlet status", until: "greedy 0/1 [A-Z][A-Za-z]+Error"},
			{run: "berthctl get rejections"},
			{run: "berthctl explain greedy"},
		},
	},
	{
		"Watch it", "[metrics.md](metrics.md) describes all metrics, [alerts.md](alerts.md) the rules for Prometheus and the dashboard for Grafana.",
		[]command{
			{run: scrape + " | grep -E '^(berth_ledger_pods|berth_containers|kubelet_admission_rejections_total|kubelet_cpu_manager_allocation_per_numa)'", until: "rejections_total.* 1"},
			{run: scrape + " | grep -oE '^container_memory_working_set_bytes[^ ]*'", until: "trainer.*web"},
		},
	},
}

// walkEnd are the commands after the dashboard's table.
var walkEnd = section{
	"Stop the pods", "berthlet ends the pods whose manifests are removed.",
	[]command{
		{run: "rm /etc/berth/manifests/greedy.yaml /etc/berth/manifests/trainer.yaml /etc/berth/manifests/web.yaml"},
		{run: "berthctl get pods", until: "^no pod is admitted$"},
		{run: "berthctl ledger check"},
	},
}

// changing is what differs from one run of a command to the next, and between machines of the same kind.
var changing = []struct {
	pattern *regexp.Regexp
	word    string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z?`), "TIME"},
	{regexp.MustCompile(`\b\d\d:\d\d:\d\d\b`), "TIME"},
	{regexp.MustCompile(`\b[A-Z2-7]{26}\b`), "ID"},
	{regexp.MustCompile(`\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b|\b[0-9a-f]{32}\b|[0-9a-f]{8}_[0-9a-f]{4}_[0-9a-f]{4}_[0-9a-f]{4}_[0-9a-f]{12}\b`), "UID"},
	{regexp.MustCompile(`\b\d{16}\b`), "REVISION"},
	{regexp.MustCompile(`\b\d+\.\d+\.\d+\b`), "VERSION"},
	// The kernel and the firmware keep some memory, and its size changes with their version.
	{regexp.MustCompile(`\b(\d+\.\d+|\d{4,})(Ki|Mi|Gi)\b|\b\d{5,}\b`), "SIZE"},
	{regexp.MustCompile(`\b(\d+h)?(\d+m)?\d+(\.\d+)?m?s\b`), "TIME"},
	// The width of a column changes with what is in it.
	{regexp.MustCompile(`[ \t]+`), " "},
	{regexp.MustCompile(` \n`), "\n"},
}

// constant is a text without what changes.
func constant(text string) string {
	for _, c := range changing {
		text = c.pattern.ReplaceAllString(text, c.word)
	}
	return text
}

// commands are the lines of a page that a reader types, with what follows in the same command.
func commands(sections []section) (lines []string) {
	for _, s := range sections {
		for _, c := range s.commands {
			first, _, _ := strings.Cut(c.run, "\n")
			lines = append(lines, "$ "+first)
		}
	}
	return lines
}

// TestWalkPage: the page has the texts and the commands of the walk. Their output is compared in the virtual machine.
func TestWalkPage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/walk.md")
	must(t, err)
	var have []string
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "$ ") {
			have = append(have, strings.TrimSuffix(line, "\n"))
		}
	}
	sections := append(slices.Clone(walk), walkEnd)
	texts := []string{walkTitle, prose(walkIntroduction), prose(walkDashboard)}
	for _, s := range sections {
		texts = append(texts, "## "+s.title+"\n\n"+prose(s.text))
	}
	for _, want := range texts {
		if !strings.Contains("\n"+string(text), "\n"+want+"\n") {
			t.Errorf("docs/walk.md does not have\n%s\nhack/installtest/test.sh update writes the page", want)
		}
	}
	if want := commands(sections); !slices.Equal(have, want) {
		t.Errorf("the commands of docs/walk.md are\n%s\nwant\n%s\nhack/installtest/test.sh update writes the page",
			strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
}

// TestDifference: times, ids and the width of columns do not count, and everything else does.
func TestDifference(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ one, other string }{
		{"web  Running  5s   -\n", "web  Running  1m12s  -\n"},
		{"admission BCEUNM4BQCPQ2JI5HKEXH7V3M6, decided on revision 1806172160000006",
			"admission AAEUNM4BQCPQ2JI5HKEXH7V3M7, decided on revision 1806172160000016"},
		{"2026-11-23T13:06:09Z  web", "2026-11-24T00:00:00.5Z web"},
	} {
		if d := difference(row.one, row.other); d != "" {
			t.Error(d)
		}
	}
	const pod = "NAME  STATUS\nweb  Running 1 cpu 64Mi\n"
	for _, other := range []string{"NAME  STATUS\nweb  Failed 1 cpu 64Mi\n", "NAME  STATUS\nweb  Running 2 cpu 64Mi\n", "NAME  STATUS\n",
		pod + "another\n", ""} {
		if difference(pod, other) == "" || difference(other, pod) == "" {
			t.Errorf("%q is the same as %q", other, pod)
		}
	}
}

// TestWalk types the commands of docs/walk.md on a machine without berth, and compares their output with the page.
func TestWalk(t *testing.T) {
	page := os.Getenv(walkVariable)
	if page == "" {
		t.Skipf("%s is not set: this test installs the package, in the virtual machine of test.sh", walkVariable)
	}
	want, err := os.ReadFile(page)
	must(t, err)
	m := &machine{t: t, disk: "/mnt/disk"}
	t.Cleanup(m.onFailure)
	m.keep()
	m.unpacked()

	var text strings.Builder
	fmt.Fprintf(&text, "%s\n\n%s\n", walkTitle, prose(walkIntroduction))
	for _, s := range walk {
		m.section(&text, s)
	}
	text.WriteString(m.dashboard())
	m.section(&text, walkEnd)
	got := text.String()
	if os.Getenv(updateVariable) != "" {
		for line := range strings.Lines(got) {
			fmt.Print("walk| ", line)
		}
		return
	}
	if d := difference(string(want), got); d != "" {
		t.Errorf("docs/walk.md differs (hack/installtest/test.sh update writes the page): %s", d)
	}
}

// difference gives the first lines in which two pages differ, empty if they do not.
func difference(want, got string) string {
	a, b := strings.Split(constant(want), "\n"), strings.Split(constant(got), "\n")
	for i := range max(len(a), len(b)) {
		if i >= len(a) || i >= len(b) || a[i] != b[i] {
			return fmt.Sprintf("line %d\npage:\n%s\nmachine:\n%s", i+1,
				strings.Join(a[min(i, len(a)):min(i+10, len(a))], "\n"), strings.Join(b[min(i, len(b)):min(i+10, len(b))], "\n"))
		}
	}
	return ""
}

// section types the commands of a section, and adds them to the page.
func (m *machine) section(page *strings.Builder, s section) {
	fmt.Fprintf(page, "\n## %s\n\n%s\n\n```\n", s.title, prose(s.text))
	for _, c := range s.commands {
		fmt.Fprintf(page, "$ %s\n%s", c.run, m.typed(c))
	}
	page.WriteString("```\n")
}

// typed gives the output of a command.
func (m *machine) typed(c command) (out string) {
	m.t.Helper()
	until := regexp.MustCompile(c.until)
	m.t.Logf("$ %s", c.run)
	var code int
	m.t.Cleanup(func() {
		if m.t.Failed() {
			m.t.Logf("%s: exit code %d\n%s", c.run, code, out)
		}
	})
	m.eventually(c.run, func() bool {
		ctx, cancel := context.WithTimeout(m.t.Context(), timeout)
		defer cancel()
		cmd := exec.CommandContext(ctx, "sh", "-c", c.run)
		cmd.Dir = os.Getenv(packagesVariable)
		text, err := cmd.CombinedOutput()
		out, code = string(text), 0
		if exit := new(exec.ExitError); errors.As(err, &exit) {
			code = exit.ExitCode()
		} else if err != nil {
			m.t.Fatalf("%s: %v", c.run, err)
		}
		if c.until == "" && code != c.code {
			m.t.Fatalf("%s: exit code %d, want %d\n%s", c.run, code, c.code, out)
		}
		return code == c.code && until.MatchString(strings.Join(strings.Fields(out), " "))
	})
	return out
}

var (
	// metricName is a name in a query that can only be one of a metric, or of a recording rule.
	metricName = regexp.MustCompile(`\b(?:berth|kubelet|container|plugin_manager|resource_manager|process|go)_[a-z0-9_]+|\bberth:[a-z0-9_:]+`)
	// sampleName begins a line of /metrics.
	sampleName = regexp.MustCompile(`(?m)^[a-z][a-z0-9_]*`)
	// laterName is a counter with labels in docs/metrics.md, which appears with its first event, or what else has no series before.
	laterName = regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)` \\| (?:counter \\| [^|]* \\| `|.*\\bno series\\b)")
)

// rare are the metrics whose first event is no part of the walk. A cgroup may be repaired meanwhile.
var rare = map[string]bool{"berth_ledger_findings": true, "berth_cgroup_drifts_total": true}

// dashboard scrapes berthd for what the dashboard's queries read, and gives a table of it for the page.
func (m *machine) dashboard() string {
	t := m.t
	read := func(path string) string {
		text, err := os.ReadFile(path)
		must(t, err)
		return string(text)
	}
	const folder = "/usr/share/berth/monitoring"
	var board struct {
		Panels []struct {
			Title   string                  `json:"title"`
			Targets []struct{ Expr string } `json:"targets"`
		} `json:"panels"`
	}
	must(t, json.Unmarshal([]byte(read(filepath.Join(folder, "dashboard.json"))), &board))
	var file struct {
		Groups []struct {
			Rules []struct{ Record, Expr string } `json:"rules"`
		} `json:"groups"`
	}
	must(t, yaml.Unmarshal([]byte(read(filepath.Join(folder, "berth.rules.yaml"))), &file))
	records := map[string]string{}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			records[r.Record] = r.Expr
		}
	}
	later := map[string]bool{}
	for _, match := range laterName.FindAllStringSubmatch(read("/usr/share/doc/berth/docs/metrics.md"), -1) {
		later[match[1]] = true
	}
	served := map[string]bool{}
	for _, name := range sampleName.FindAllString(m.typed(command{run: scrape}), -1) {
		served[name] = true
	}

	var table strings.Builder
	fmt.Fprintf(&table, "\n%s\n\n%s", prose(walkDashboard),
		"| Panel | Metric | Served |\n| --- | --- | --- |\n")
	if len(board.Panels) == 0 || len(later) == 0 {
		t.Fatalf("%d panels, %d counters with labels: the files have another form", len(board.Panels), len(later))
	}
	for _, panel := range board.Panels {
		names := map[string]bool{}
		var add func(query string)
		add = func(query string) {
			for _, name := range metricName.FindAllString(query, -1) {
				expr, recorded := records[name]
				switch {
				case recorded:
					add(expr)
				case strings.HasPrefix(name, "berth:"):
					t.Errorf("panel %s: no rule records %s", panel.Title, name)
				default:
					names[name] = true
				}
			}
		}
		for _, target := range panel.Targets {
			add(target.Expr)
		}
		for _, name := range slices.Sorted(maps.Keys(names)) {
			state := "yes"
			switch {
			case rare[name]:
				state = "after the first event"
				if !later[name] {
					t.Errorf("panel %s: docs/metrics.md does not say that %s appears with its first event", panel.Title, name)
				}
			case strings.HasPrefix(name, "berth_nri_"):
				state = "by berth-nri"
			case strings.HasPrefix(name, "berth_dra_"):
				state = "by berth-dra"
			case !served[name]:
				t.Errorf("panel %s: /metrics has no %s", panel.Title, name)
			}
			fmt.Fprintf(&table, "| %s | `%s` | %s |\n", panel.Title, name, state)
		}
		if len(names) == 0 {
			fmt.Fprintf(&table, "| %s | - | by Prometheus |\n", panel.Title)
		}
	}
	return table.String()
}
