package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/clients/berthlet/agent"
	"github.com/berthd/berth/clients/berthlet/manifest"
)

// call runs a command line in this process.
func call(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := command(&out, &out)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for want, args := range map[string][]string{
		"runtime endpoint":    {"--runtime-endpoint", "containerd.sock"},
		"--log-level":         {"--log-level", "loud"},
		"endpoint":            {"--state-dir", dir, "--endpoint", "tcp:1.2.3.4"},
		"unknown command":     {"dance"},
		"no berthlet has run": {"status", "--state-dir", dir},
	} {
		if out, err := call(t, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %s; want %q", args, err, out, want)
		}
	}
}

// TestExitCodes: 2 for a command line that cannot be understood, 1 for what fails
// later, as those of berthctl.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	for want, args := range map[int][]string{
		exitDone:  {"--help"},
		exitError: {"status", "--state-dir", t.TempDir()},
		exitUsage: {"status", "--frob"},
	} {
		var out bytes.Buffer
		if got := execute(t.Context(), &out, &out, args); got != want ||
			(want == exitUsage) != strings.Contains(out.String(), "hint: see 'berthlet status --help'") {
			t.Errorf("%q: exit code %d, want %d\n%s", args, got, want, &out)
		}
	}
}

// TestRelativePaths: keepers and mounts see other working directories.
func TestRelativePaths(t *testing.T) {
	t.Parallel()
	o := options{state: "s", logs: "l", manifests: "m", images: "i"}
	if err := o.absolute(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{o.state, o.logs, o.manifests, o.images} {
		if !filepath.IsAbs(path) {
			t.Errorf("%s is relative", path)
		}
	}
	none := options{state: "s", logs: "l", manifests: "m"}
	if err := none.absolute(); err != nil || none.images != "" {
		t.Errorf("no folder of images became %q, %v", none.images, err)
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	now := time.Now()
	start := now.Add(-90 * time.Minute)
	running := agent.ContainerState{Running: &agent.Running{StartedAt: start, PID: 7}}
	waiting := func(reason, message string) agent.ContainerState {
		return agent.ContainerState{Waiting: &agent.Waiting{Reason: reason, Message: message}}
	}
	status := agent.Status{Time: now, Pods: []agent.PodStatus{
		{Namespace: "a", Name: "runs", Phase: "Running", StartTime: &start,
			ContainerStatuses: []agent.ContainerStatus{{Name: "m", State: running}, {Name: "n", State: running, RestartCount: 2}}},
		{Namespace: "a", Name: "crashes", Phase: "Running", StartTime: &start,
			ContainerStatuses: []agent.ContainerStatus{{Name: "m", State: waiting("CrashLoopBackOff", ""), RestartCount: 5}}},
		{Namespace: "a", Name: "lost", Phase: "Pending", StartTime: &start,
			ContainerStatuses: []agent.ContainerStatus{{Name: "m", State: waiting("CreateContainerError", "no image")}}},
		{Namespace: "a", Name: "rejected", Phase: "Failed", Reason: "OutOfcpu", Message: "Pod was rejected: no",
			ContainerStatuses: []agent.ContainerStatus{{Name: "m", State: waiting("ContainerCreating", "")}}},
		{Namespace: "a", Name: "done", Phase: "Succeeded", StartTime: &start,
			ContainerStatuses: []agent.ContainerStatus{{Name: "m", State: agent.ContainerState{Terminated: &agent.Terminated{}}}}},
		{Namespace: "a", Name: "goes", Phase: "Running", StartTime: &start, DeletionTimestamp: &now,
			ContainerStatuses: []agent.ContainerStatus{{Name: "m", State: running}}},
		{
			Namespace: "a", Name: "begins", Phase: "Pending", StartTime: &start,
			InitContainerStatuses: []agent.ContainerStatus{{Name: "i", State: running}},
			ContainerStatuses:     []agent.ContainerStatus{{Name: "m", State: waiting("PodInitializing", "")}},
		},
	}, Unreadable: []manifest.Problem{{File: "/m/x.yaml", Error: "kind Deployment: expected Pod"}}}
	text, err := json.Marshal(status)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "status.json"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	want := strings.TrimPrefix(`
NAMESPACE  NAME       READY  STATUS                RESTARTS  AGE  MESSAGE
a          runs       2/2    Running               2         90m  -
a          crashes    0/1    CrashLoopBackOff      5         90m  -
a          lost       0/1    CreateContainerError  0         90m  no image
a          rejected   0/1    OutOfcpu              0         -    Pod was rejected: no
a          done       0/1    Completed             0         90m  -
a          goes       1/1    Terminating           0         90m  -
a          begins     0/1    Pending               0         90m  -
-          /m/x.yaml  -      Unreadable            -         -    kind Deployment: expected Pod
`, "\n")
	if got, err := call(t, "status", "--state-dir", dir); err != nil || got != want {
		t.Errorf("%v, got\n%swant\n%s", err, got, want)
	}
	// What a terminal would act on is shown.
	status.Pods[3].Message = "no\x1b[2J\na  forged  1/1  Running"
	forged, err := json.Marshal(status)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := t.TempDir()
	if err := os.WriteFile(filepath.Join(elsewhere, "status.json"), forged, 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := call(t, "status", "--state-dir", elsewhere); err != nil || !strings.Contains(got, `no\x1b[2J\na  forged`) ||
		strings.Contains(got, "\na  forged") {
		t.Errorf("%v, got\n%s", err, got)
	}
	if got, err := call(t, "status", "--state-dir", dir, "-o", "json"); err != nil || got != string(text) {
		t.Errorf("%v, got %s", err, got)
	}
	if _, err := call(t, "status", "--state-dir", dir, "-o", "xml"); err == nil {
		t.Error("status in XML")
	}
}

// TestLogsAndExec: the output of a container from its log, by pod and container, and what cannot be run there.
func TestLogsAndExec(t *testing.T) {
	t.Parallel()
	dir, root := t.TempDir(), t.TempDir()
	container := func(name string, restarts int, lines string) agent.ContainerStatus {
		path := filepath.Join(root, "pod", name, fmt.Sprint(restarts)+".log")
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(lines), 0o600); err != nil {
			t.Fatal(err)
		}
		return agent.ContainerStatus{Name: name, ContainerID: name + "-id", RestartCount: restarts, LogPath: path}
	}
	line := func(tag, text string) string { return "2026-01-02T15:04:05Z stdout " + tag + " " + text + "\n" }
	app := container("app", 0, line("F", "one")+line("P", "tw")+line("F", "o")+line("F", "three"))
	side := container("side", 1, line("F", "now"))
	container("side", 0, line("F", "before"))
	status := agent.Status{Pods: []agent.PodStatus{
		{Namespace: "default", Name: "web", UID: "u1", ContainerStatuses: []agent.ContainerStatus{app, side, {Name: "late"}}},
		{Namespace: "shop", Name: "one", UID: "u2", ContainerStatuses: []agent.ContainerStatus{app}},
		{Namespace: "shop", Name: "web", UID: "u3"},
	}}
	text, err := json.Marshal(status)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "status.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"one": "one\ntwo\nthree\n", "default/web app --tail 2": "two\nthree\n", "web app -n default --tail 0": "", "u1 side": "now\n",
		"u1 side --previous": "before\n", "one --timestamps --tail 1": "2026-01-02T15:04:05Z three\n", "one -f": "one\ntwo\nthree\n",
	} {
		if got, err := call(t, append([]string{"logs", "--state-dir", dir, "--pod-logs-dir", root},
			strings.Fields(args)...)...); err != nil || got != want {
			t.Errorf("logs %s: %v, %q, want %q", args, err, got, want)
		}
	}
	for args, want := range map[string]string{
		"nobody": "no pod is called nobody", "web": "2 pods are called web: name one by its uid, u1 (default/web), u3 (shop/web)",
		"u1": "CONTAINER is missing: pod default/web has app, side, late", "u1 x": "pod default/web has no container x",
		"u1 late": "has not begun", "one --previous": "was not restarted", "one --pod-logs-dir /etc": "expected a file below /etc",
	} {
		if _, err := call(t, append([]string{"logs", "--state-dir", dir, "--pod-logs-dir", root},
			strings.Fields(args)...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("logs %s: %v, want %s", args, err, want)
		}
	}
	runs := agent.ContainerStatus{Name: "main", ContainerID: "main-id", State: agent.ContainerState{Running: &agent.Running{}}}
	status.Pods = append(status.Pods, agent.PodStatus{Namespace: "shop", Name: "runs", ContainerStatuses: []agent.ContainerStatus{runs}})
	if text, err = json.Marshal(status); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "status.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "runtime", "containers"), 0o700); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"": "POD is missing", "web sh": "-- is missing", "web app -- sh": "expected one POD before --, got 2",
		"web --":       "the program after -- is missing",
		"nobody -- sh": "no pod is called nobody", "u1 -- sh": "CONTAINER is missing",
		"u1 -c late -- sh":   "container late of pod default/web does not run: it was not started",
		"runs -n shop -- sh": "container main of pod shop/runs is not one of the built-in runtime: with --runtime-endpoint, 'crictl exec'",
	} {
		if _, err := call(t, append([]string{"exec", "--state-dir", dir}, strings.Fields(args)...)...); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("exec %s: %v, want %s", args, err, want)
		}
	}
	if got, want := forTerminal("a\tb\x1b[2J"), "a\tb\\x1b[2J"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestEscaping: what a program writes to a person's terminal, also in parts.
func TestEscaping(t *testing.T) {
	t.Parallel()
	const text = "plain\tline\r\n\x1b]0;title\x07 gr\u00fcn \u20ac \U0001F600\xff\n\xc3"
	const want = "plain\tline\n\\x1b]0;title\\a gr\u00fcn \u20ac \U0001F600\\xff\n"
	for size := 1; size < len(text); size++ {
		var out bytes.Buffer
		e := &escaping{to: &out}
		for rest := text; rest != ""; {
			n := min(size, len(rest))
			if _, err := e.Write([]byte(rest[:n])); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if got := out.String(); strings.ReplaceAll(got, "\\r", "") != want {
			t.Errorf("in parts of %d: %q, want %q", size, got, want)
		}
	}
}
