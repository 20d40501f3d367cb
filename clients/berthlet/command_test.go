package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/clients/berthlet/agent"
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
		if got := execute(t.Context(), &out, &out, args); got != want || (want == exitUsage) != strings.Contains(out.String(), "hint: see 'berthlet status --help'") {
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
		{Namespace: "a", Name: "runs", Phase: "Running", StartTime: &start, ContainerStatuses: []agent.ContainerStatus{{Name: "m", State: running}, {Name: "n", State: running, RestartCount: 2}}},
		{Namespace: "a", Name: "crashes", Phase: "Running", StartTime: &start, ContainerStatuses: []agent.ContainerStatus{{Name: "m", State: waiting("CrashLoopBackOff", ""), RestartCount: 5}}},
		{Namespace: "a", Name: "lost", Phase: "Pending", StartTime: &start, ContainerStatuses: []agent.ContainerStatus{{Name: "m", State: waiting("CreateContainerError", "no image")}}},
		{Namespace: "a", Name: "rejected", Phase: "Failed", Reason: "OutOfcpu", Message: "Pod was rejected: no", ContainerStatuses: []agent.ContainerStatus{{Name: "m", State: waiting("ContainerCreating", "")}}},
		{Namespace: "a", Name: "done", Phase: "Succeeded", StartTime: &start, ContainerStatuses: []agent.ContainerStatus{{Name: "m", State: agent.ContainerState{Terminated: &agent.Terminated{}}}}},
		{Namespace: "a", Name: "goes", Phase: "Running", StartTime: &start, DeletionTimestamp: &now, ContainerStatuses: []agent.ContainerStatus{{Name: "m", State: running}}},
		{
			Namespace: "a", Name: "begins", Phase: "Pending", StartTime: &start,
			InitContainerStatuses: []agent.ContainerStatus{{Name: "i", State: running}},
			ContainerStatuses:     []agent.ContainerStatus{{Name: "m", State: waiting("PodInitializing", "")}},
		},
	}}
	text, err := json.Marshal(status)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "status.json"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	want := strings.TrimPrefix(`
NAMESPACE  NAME      READY  STATUS                RESTARTS  AGE  MESSAGE
a          runs      2/2    Running               2         90m  -
a          crashes   0/1    CrashLoopBackOff      5         90m  -
a          lost      0/1    CreateContainerError  0         90m  no image
a          rejected  0/1    OutOfcpu              0         -    Pod was rejected: no
a          done      0/1    Completed             0         90m  -
a          goes      1/1    Terminating           0         90m  -
a          begins    0/1    Pending               0         90m  -
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
	if got, err := call(t, "status", "--state-dir", elsewhere); err != nil || !strings.Contains(got, `no\x1b[2J\na  forged`) || strings.Contains(got, "\na  forged") {
		t.Errorf("%v, got\n%s", err, got)
	}
	if got, err := call(t, "status", "--state-dir", dir, "-o", "json"); err != nil || got != string(text) {
		t.Errorf("%v, got %s", err, got)
	}
	if _, err := call(t, "status", "--state-dir", dir, "-o", "xml"); err == nil {
		t.Error("status in XML")
	}
}
