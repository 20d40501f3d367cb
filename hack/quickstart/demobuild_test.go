package quickstart

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fakeGo writes a program in place of Go: it says its version and its C compiler, and builds by copying what
// has been built. It returns its path, and the file with the names of what it was told to build.
func fakeGo(t *testing.T, version, compiler, built string) (program, log string) {
	t.Helper()
	dir := t.TempDir()
	program, log = filepath.Join(dir, "go"), filepath.Join(dir, "log")
	script := fmt.Sprintf(`#!/bin/sh
case "$1 $2" in
"env GOVERSION") echo %q ;;
"env CC") echo %q ;;
"version "*) echo "go version %s linux/amd64" ;;
"list -m") [ %q = go1.99.0 ] || { echo "go: go.mod requires go >= 1.99" >&2; exit 1; } ;;
build*)
	while [ "$1" != -o ]; do shift; done
	basename "$2" >>%q
	mkdir -p "$(dirname "$2")"
	cp %q/"$(basename "$2")" "$2"
	;;
*) exit 1 ;;
esac
`, version, compiler, version, version, log, built)
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return program, log
}

// copied is the repository's part that the demo reads, where it builds without touching what is in bin.
func copied(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "hack"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"go.mod", "hack/demo.sh", "hack/build.sh", "hack/needs-go.sh"} {
		text, err := os.ReadFile(filepath.Join("../..", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// mayMakeCgroups reports whether the demo can make containers here.
func mayMakeCgroups() bool {
	tree := "/sys/fs/cgroup/cpuset" // of v1
	if _, err := os.Stat(tree); err != nil {
		tree = "/sys/fs/cgroup"
	}
	dir := filepath.Join(tree, fmt.Sprintf("quickstart-%d", os.Getpid()))
	return os.Geteuid() == 0 && os.Mkdir(dir, 0o755) == nil && os.Remove(dir) == nil
}

// TestDemoBuilds: the demo builds what it shows and nothing else, and does without a C compiler.
func TestDemoBuilds(t *testing.T) {
	t.Parallel()
	bin := programs(t)
	decides, runs := []string{"berthctl", "berthd", "plugin"}, []string{"berthctl", "berthd", "berthlet", "plugin", "probe"}
	full := runs
	if !mayMakeCgroups() {
		full = decides
	}
	for name, row := range map[string]struct {
		version, compiler string
		code              int
		built             []string
		says              string
	}{
		"all":              {version: "go1.99.0", compiler: "sh", built: full, says: "Nothing is left behind"},
		"no C compiler":    {version: "go1.99.0", compiler: "no-such-cc -O2", built: decides, says: "Nothing is left behind"},
		"Debian's Go":      {version: "go1.19.8", compiler: "sh", code: 3, says: "Go is too old: go version go1.19.8 linux/amd64"},
		"may not fetch it": {version: "go1.24.1", compiler: "sh", code: 3, says: "Go 1.24.1 is not what go.mod needs"},
		"before a number":  {version: "", compiler: "sh", code: 3, says: "Go is too old"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			program, log := fakeGo(t, row.version, row.compiler, bin)
			tmp, err := os.MkdirTemp("", "demo")
			if err == nil {
				err = os.Chmod(tmp, 0o755)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(tmp)
			cmd := exec.CommandContext(t.Context(), "bash", filepath.Join(copied(t), "hack/demo.sh"))
			cmd.Env = append(os.Environ(), "GO="+program, "TMPDIR="+tmp, "BERTH_DEMO_LIMIT=300", "BERTH_DEMO_BIN=")
			text, _ := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != row.code || !strings.Contains(string(text), row.says) {
				t.Errorf("exit code %d, want %d with %q\n%s", code, row.code, row.says, text)
			}
			const missing = "there is no C compiler, no-such-cc -O2, for berthlet"
			if row.compiler != "sh" && full[2] == "berthlet" && !strings.Contains(string(text), missing) {
				t.Errorf("nothing is said of the compiler\n%s", text)
			}
			names, _ := os.ReadFile(log)
			if got := slices.Sorted(strings.FieldsSeq(string(names))); !slices.Equal(got, row.built) {
				t.Errorf("built %q, want %q", got, row.built)
			}
		})
	}
}

// TestNoGo names what is missing, and takes each form that a GO of make may have.
func TestNoGo(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"go", "env A=b go"} {
		cmd := exec.CommandContext(t.Context(), "../needs-go.sh")
		cmd.Env = append(os.Environ(), "GO="+program)
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", program, err, text)
		}
	}
	cmd := exec.CommandContext(t.Context(), "../needs-go.sh")
	cmd.Env = append(os.Environ(), "GO=/no/such/go")
	if text, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(text), "missing: Go 1.") {
		t.Errorf("%v: %s", err, text)
	}
}
