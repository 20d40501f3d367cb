package check_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthd/berth/clients/berthctl/check"
	"github.com/berthd/berth/clients/internal/command"
)

var (
	lost = command.NodeFinding{
		Check: "cpus-in-no-set", Severity: command.SeverityError, Object: "CPUs 6-7", Text: "they are in no set\x1b[2J",
		Evidence: []string{"the machine has CPUs 0-7", "defaultCpuSet is 0-5"}, Reports: []string{"kubernetes#84783", "kubernetes#136604"},
		Do: []string{"kubectl drain NODE", "kubectl uncordon NODE"},
	}
	half = command.NodeFinding{
		Check: "half-core-reserved", Severity: command.SeverityWarning, Object: "reservedSystemCPUs", Text: "CPUs 8",
	}
	skipped = []command.SkippedChecks{{Reason: "add --pods FILE", Checks: []string{"cpus-left-behind", "memory-left-behind"}}}
)

// TestCheck: the exit code is the worst severity, and each part of a finding is printed.
func TestCheck(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		found command.Checked
		code  int
		out   string
		err   string
	}{
		"nothing": {command.Checked{}, 0, "nothing is wrong\n", ""},
		"unconfirmed": {command.Checked{Findings: []command.NodeFinding{{
			Check: "cpus-open", Severity: command.SeverityError, Object: "pod a/b", Text: "CPUs 8", Unconfirmed: true,
		}}}, 3, "error cpus-open: pod a/b (unconfirmed: one reading)\n  CPUs 8\n\n1 error, 0 warnings\n", ""},
		"warnings": {command.Checked{Findings: []command.NodeFinding{half}}, 1,
			"warning half-core-reserved: reservedSystemCPUs\n  CPUs 8\n\n0 errors, 1 warning\n", ""},
		"errors": {command.Checked{Findings: []command.NodeFinding{lost, half}, Skipped: skipped, Missing: []string{"CPUs of containers: no"}}, 3,
			`error cpus-in-no-set: CPUs 6-7
  they are in no set\x1b[2J
  - the machine has CPUs 0-7
  - defaultCpuSet is 0-5
  reports: kubernetes#84783, kubernetes#136604
  do: kubectl drain NODE
      kubectl uncordon NODE

warning half-core-reserved: reservedSystemCPUs
  CPUs 8

1 error, 1 warning
`,
			"warning: not read: CPUs of containers: no\nwarning: not checked: cpus-left-behind, memory-left-behind: add --pods FILE\n"},
	} {
		c, out, errs := ctl(row.found)
		c.Kubelet = "/"
		if code := run(t, c); code != row.code || out.String() != row.out || errs.String() != row.err {
			t.Errorf("%s: exit code %d\n%s\n%s\nwant %d\n%s\n%s", name, code, out, errs, row.code, row.out, row.err)
		}
	}
}

// TestJSON: programs read the same findings, and the same exit code.
func TestJSON(t *testing.T) {
	t.Parallel()
	c, out, errs := ctl(command.Checked{Findings: []command.NodeFinding{lost}, Skipped: skipped})
	c.Kubelet, c.Format = "/", command.FormatJSON
	code := run(t, c)
	var got command.Checked
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || code != 3 || errs.Len() > 0 {
		t.Fatalf("exit code %d, %v, %s", code, err, errs)
	}
	if len(got.Findings) != 1 || got.Findings[0].Text != lost.Text || len(got.Skipped) != 1 {
		t.Errorf("got %+v", got)
	}
	c, out, _ = ctl(command.Checked{})
	c.Kubelet, c.Format = "/", command.FormatJSON
	if code := run(t, c); code != 0 || !strings.HasSuffix(out.String(), "\"kind\": \"FindingList\",\n  \"items\": []\n}\n") {
		t.Errorf("nothing: exit code %d, %s", code, out)
	}
}

// TestRefused: the verb is for a kubelet's node alone.
func TestRefused(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*command.Ctl){
		"add --kubelet":        func(*command.Ctl) {},
		"expected one of them": func(c *command.Ctl) { c.Kubelet, c.Address = "/", "/run/berth/berth.sock" },
		"no such file":         func(c *command.Ctl) { c.Kubelet, c.NodePods = "/", "does-not-exist.json" },
	} {
		c, out, _ := ctl(command.Checked{})
		change(c)
		cmd := check.Check(c)
		cmd.SetArgs(nil)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) || out.Len() > 0 {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestPods: the pods of the file are compared, and without the file they are not known.
func TestPods(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pods.json")
	if err := os.WriteFile(file, []byte(`{"apiVersion":"v1","kind":"List","items":[]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, known := range map[string]bool{"": false, file: true} {
		for _, now := range []bool{false, true} {
			c, _, _ := ctl(command.Checked{})
			c.Kubelet, c.NodePods = "/", name
			c.Check = func(ctx context.Context, n command.KubeletNode, once bool) (*command.Checked, error) {
				got, err := n.Pods(ctx, t.TempDir())
				if (err == nil) != known || (got != nil) != known || n.Given != known || once != now {
					t.Errorf("%q: got %v, %v, now %t", name, got, err, once)
				}
				return &command.Checked{}, nil
			}
			if code := run(t, c, fmt.Sprintf("--now=%t", now)); code != 0 {
				t.Errorf("%q: exit code %d", name, code)
			}
		}
	}
}

// ctl makes a program that finds something.
func ctl(found command.Checked) (c *command.Ctl, out, errs *bytes.Buffer) {
	out, errs = &bytes.Buffer{}, &bytes.Buffer{}
	return &command.Ctl{
		Env: command.Env{
			In: strings.NewReader(""), Out: out, Err: errs, Getenv: func(string) string { return "" },
			Check: func(context.Context, command.KubeletNode, bool) (*command.Checked, error) { return &found, nil },
		},
		Format: command.FormatTable, Color: command.ColorAuto,
	}, out, errs
}

// run returns the exit code.
func run(t *testing.T, c *command.Ctl, args ...string) int {
	t.Helper()
	cmd := check.Check(c)
	cmd.SetArgs(args)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err := cmd.ExecuteContext(t.Context())
	var v command.Verdict
	switch {
	case err == nil:
		return 0
	case errors.As(err, &v):
		return int(v)
	}
	t.Fatal(err)
	return 0
}
