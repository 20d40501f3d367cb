package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCommandLine: the message lists all errors, and the exit code
// distinguishes an invalid command line from a failure.
func TestCommandLine(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "c.yaml")
	text := "apiVersion: config.berthd.github.io/v1alpha1\nkind: BerthConfiguration\ncpu: {polic: static}\nlog: {level: 3, colour: red}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		args string
		code int
		want []string
	}{
		{"--help", exitDone, []string{"Examples:", "--kubelet-config"}},
		{"version", exitDone, []string{"berthd "}},
		{"config dump --root-dir /r --cpu-manager-policy static", exitDone, []string{"policy: static", "listen: /r/berth.sock"}},
		{"config validate --machine 2n2c", exitDone, []string{"the configuration is valid"}},
		{"config validate --machine 2n2c --reserved-cpus 9", exitError, []string{"9 are not CPUs of this machine"}},
		{"config validate --cgroup-root a/../b", exitError, []string{"cgroups.root: "}},
		{"config dump --config " + file, exitError, []string{
			"c.yaml is invalid: cpu.polic: unknown field, expected any of options, policy (and 1 more)",
			"\n  cpu.polic: unknown field", "\n  log.colour: unknown field",
		}},
		{"config dump --config /does/not/exist", exitError, []string{"read the configuration: open /does/not/exist"}},
		{"--try --root-dir /r", exitUsage, []string{"--root-dir: expected nothing with --try", "hint: see 'berthd --help'"}},
		{"--frob", exitUsage, []string{"berthd: unknown flag: --frob\nhint: see 'berthd --help'"}},
		{"frob", exitUsage, []string{`unknown command "frob"`, "hint: see 'berthd --help'"}},
		{"config", exitUsage, []string{"expected one of dump, validate", "hint: see 'berthd config --help'"}},
		{"config frob", exitUsage, []string{`unknown command "frob"`, "hint: see 'berthd config --help'"}},
		{"config dump --max-pods many", exitUsage, []string{`"--max-pods"`, "hint: see 'berthd config dump --help'"}},
	} {
		var out bytes.Buffer
		if got := execute(t.Context(), &out, &out, strings.Fields(row.args)); got != row.code {
			t.Errorf("%s: exit code %d, want %d\n%s", row.args, got, row.code, &out)
		}
		for _, want := range row.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%s: %s\nlacks %q", row.args, &out, want)
			}
		}
	}
}
