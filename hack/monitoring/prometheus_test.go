package monitoring

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/hack/testing/nodetest"
)

// programsVariable names the folder of prometheus and promtool.
const programsVariable = "BERTH_PROMETHEUS"

// timeout is how long a test waits for something.
const timeout = 3 * time.Minute

func programs(t *testing.T) string {
	t.Helper()
	folder := os.Getenv(programsVariable)
	if folder == "" {
		t.Skipf("%s is not set: hack/monitoring/test.sh builds prometheus and promtool", programsVariable)
	}
	return folder
}

// TestPromtool: the rules are valid, and do what their tests say.
func TestPromtool(t *testing.T) {
	promtool := filepath.Join(programs(t), "promtool")
	for _, args := range [][]string{
		{"check", "rules", "berth.rules.yaml"}, {"test", "rules", "berth.rules.test.yaml"}, {"check", "config", "prometheus.yaml"},
	} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = folder
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %q: %v\n%s", args, err, out)
		}
	}
}

// address gives one that is free now.
func address(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// start runs a program until the end of the test.
func start(t *testing.T, name string, args ...string) {
	t.Helper()
	log := nodetest.Log(filepath.Join(t.TempDir(), filepath.Base(name)+".log"))
	p := nodetest.Start(t, exec.Command(name, args...), log)
	t.Cleanup(func() {
		_ = p.End(syscall.SIGTERM)
		if t.Failed() {
			t.Logf("%s:\n%s", filepath.Base(name), log)
		}
	})
}

// berthd runs one on a simulated machine with pods, and gives the address of its metrics.
func berthd(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "berthd")
	build := exec.Command("go", "build", "-o", program, "github.com/berthd/berth/server/berthd")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	at := address(t)
	start(t, program, "--root-dir", dir, "--cgroup-tree", "memory", "--machine", "2s1n8c2t", "--http", at,
		"--cpu-manager-policy", "static", "--reserved-cpus", "0", "--topology-manager-policy", "restricted", "--fail-swap-on=false")
	client, err := berth.Dial(t.Context(), filepath.Join(dir, "berth.sock"), berth.Options{Wait: true})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for i, cpus := range []string{"4", "2", "100", "1"} {
		amounts := map[string]string{"cpu": cpus, "memory": "64Mi"}
		uid := fmt.Sprintf("p%d", i)
		if _, err := client.Admit(t.Context(), &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: &typesv1.Pod{
			Metadata: &typesv1.PodMetadata{Name: uid, Namespace: "default", Uid: uid},
			Spec: &typesv1.PodSpec{Containers: []*typesv1.Container{{Name: "main",
				Resources: &typesv1.ResourceRequirements{Requests: amounts, Limits: amounts}}}},
		}}}); err != nil {
			t.Fatal(err)
		}
	}
	return at
}

// server is a Prometheus.
type server struct {
	t  *testing.T
	at string
}

// get reads an answer of the API.
func (s server) get(path string, query url.Values, into any) error {
	resp, err := http.Get("http://" + s.at + "/api/v1/" + path + "?" + query.Encode())
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return fmt.Errorf("%s: %w: %s", path, err, text)
	}
	if answer.Status != "success" {
		return fmt.Errorf("%s: %s", path, answer.Error)
	}
	return json.Unmarshal(answer.Data, into)
}

// series is how many series a query has.
func (s server) series(query string) (int, error) {
	var data struct {
		Result []json.RawMessage
	}
	err := s.get("query", url.Values{"query": {query}}, &data)
	return len(data.Result), err
}

// prometheus runs one with the rules of deploy/monitoring and a short interval.
func prometheus(t *testing.T, target string) server {
	t.Helper()
	dir := t.TempDir()
	rules, err := filepath.Abs(filepath.Join(folder, "berth.rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf("global: {scrape_interval: 1s, evaluation_interval: 1s}\nscrape_configs:\n- job_name: berth\n  static_configs: [{targets: [%q]}]\nrule_files: [%q]\n", target, rules)
	if err := os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	s := server{t, address(t)}
	start(t, filepath.Join(programs(t), "prometheus"), "--config.file", filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path", filepath.Join(dir, "data"), "--web.listen-address", s.at)
	return s
}

// TestPrometheus: a real Prometheus scrapes a real berthd. All rules can be evaluated, every query of the dashboard can
// be made, and those that need no rare event have data.
func TestPrometheus(t *testing.T) {
	programs(t)
	s := prometheus(t, berthd(t))
	nodetest.Eventually(t, timeout, "two scrapes and the recording rules on them", func() bool {
		n, err := s.series("berth:admissions:rate5m")
		return err == nil && n > 0
	})
	for _, query := range []string{
		`up{job="berth"} == 1`, "kubelet_node_allocatable", "berth_node_allocatable", "berth_admission_step_duration_seconds_count",
		"berth:exclusive_cpus:ratio",
		"berth:admission_duration_seconds:p99_5m", `kubelet_admission_rejections_total`,
	} {
		nodetest.Eventually(t, timeout, query+" has data", func() bool { n, err := s.series(query); return err == nil && n > 0 })
	}
	var groups struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
	want := len(rules(t))
	nodetest.Eventually(t, timeout, "every rule was evaluated", func() bool {
		if err := s.get("rules", nil, &groups); err != nil {
			return false
		}
		ok := 0
		for _, g := range groups.Groups {
			for _, r := range g.Rules {
				if r.Health == "err" {
					t.Fatalf("rule %s: %s", r.Name, r.LastError)
				}
				if r.Health == "ok" {
					ok++
				}
			}
		}
		return ok == want
	})
	empty := 0
	for title, queries := range dashboard(t) {
		for _, q := range queries {
			n, err := s.series(strings.ReplaceAll(q, "$instance", ".+"))
			if err != nil {
				t.Errorf("panel %s: %v", title, err)
			}
			if n == 0 {
				empty++
				t.Logf("panel %s: no data", title)
			}
		}
	}
	// Containers that run, plugins, changes of cgroups by others, berth-nri and berth-dra are not there.
	const without = 8
	if empty > without {
		t.Errorf("%d queries have no data, at most %d were expected", empty, without)
	}
}
