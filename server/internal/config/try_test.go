package config_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	document "github.com/berthd/berth/api/config"
	"github.com/berthd/berth/server/internal/config"
)

// loadTry builds the configuration of a try in /r from the text of a file and from flags.
func loadTry(t *testing.T, try config.Try, berth string, args ...string) (document.Config, []string) {
	t.Helper()
	fs := pflag.NewFlagSet("berthd", pflag.ContinueOnError)
	s := config.AddFlags(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	s.BerthFile = filepath.Join(t.TempDir(), "berth.yaml")
	if err := os.WriteFile(s.BerthFile, []byte(berthHead+berth), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Try = &try
	c, notes, err := config.Load(*s)
	if err != nil {
		t.Fatal(err)
	}
	return c, notes
}

// TestTryStaysInside: what a file says of other paths, cgroups and programs has no effect on a try.
func TestTryStaysInside(t *testing.T) {
	t.Parallel()
	const outside = `
rootDir: /o
listen: /o/berth.sock
stateDir: /o
devicePluginDir: /o
pluginRegistryDir: ""
podResourcesDir: /o
runtimeEndpoint: /o/runtime.sock
beside: kubelet
http: localhost:10470
cgroups: {root: /o}
node: {systemReservedCgroup: /o, kubeReservedCgroup: /o, systemCgroups: /o, kubeletCgroups: /o, runtimeCgroups: /o, runtimePidFile: /o/pid,
  agentCgroups: /o, agentPidFile: /o/pid, setHugePages: true, enforceNodeAllocatable: [pods, system-reserved, kube-reserved]}
`
	c, notes := loadTry(t, config.Try{Dir: "/r", Cgroup: "/g"}, outside)
	text, err := c.Dump()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "/o") || c.Beside != "" || c.Node.SetHugePages || c.HTTP != "" || len(c.Node.Enforce) != 1 {
		t.Error(string(text))
	}
	if c.Cgroups.Root != "/g" || c.Listen != "/r/berth.sock" || c.StateDir != "/r/state" || *c.DevicePluginDir != "/r/device-plugins" ||
		*c.PluginRegistryDir != "" {
		t.Errorf("%+v", c)
	}
	want := []string{
		"beside", "devicePluginDir", "http", "listen", "node.agentCgroups", "node.agentPidFile", "node.enforceNodeAllocatable",
		"node.kubeReservedCgroup", "node.kubeletCgroups", "node.runtimeCgroups", "node.runtimePidFile", "node.setHugePages",
		"node.systemCgroups", "node.systemReservedCgroup", "podResourcesDir", "rootDir", "runtimeEndpoint", "stateDir",
	}
	for i := range want {
		want[i] += ": has no effect with --try"
	}
	if !slices.Equal(notes, want) {
		t.Errorf("got  %q\nwant %q", notes, want)
	}
}

// TestTryDefaults: a try has the policies that show most. Files and flags override them, but the checks of a node only flags.
func TestTryDefaults(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		file  string
		flags []string
		want  string // CPU policy, topology policy, reserved CPUs, level of the log, whether swap is refused
	}{
		"nothing": {want: "static best-effort 0 warn false"},
		"a file": {
			file: "cpu: {policy: none}\ntopology: {policy: restricted}\nlog: {level: info}\nnode: {failSwapOn: true}\n",
			want: "none restricted  info false",
		},
		"flags": {
			flags: []string{"--topology-manager-policy", "none", "--reserved-cpus", "1", "--log-level", "error", "--fail-swap-on"},
			want:  "static none 1 error true",
		},
		"a reserved amount": {flags: []string{"--system-reserved", "cpu=1"}, want: "static best-effort  warn false"},
		"a reserved core":   {flags: []string{"--reserve-one-if-none"}, want: "static best-effort  warn false"},
	} {
		c, _ := loadTry(t, config.Try{Dir: "/r"}, row.file, row.flags...)
		swap := "false"
		if c.Node.FailSwapOn {
			swap = "true"
		}
		got := strings.Join([]string{c.CPU.Policy, string(c.Topology.Policy), c.Reserved.CPUs.String(), c.Log.Level, swap}, " ")
		if got != row.want || !c.KernelCgroups() {
			t.Errorf("%s: %s, want %s", name, got, row.want)
		}
	}
	if c, _ := loadTry(t, config.Try{Dir: "/r", Memory: true}, ""); c.KernelCgroups() {
		t.Error("cgroups are the kernel's")
	}
}

// TestTryFlags: flags that lead out of a try are refused; a directory can be switched off.
func TestTryFlags(t *testing.T) {
	t.Parallel()
	for flag, refused := range map[string]bool{
		"--root-dir=/o": true, "--listen=/o": true, "--state-dir=/o": true, "--device-plugin-dir=/o": true, "--device-plugin-dir=": false,
		"--plugin-registry-dir=/o": true, "--pod-resources-dir=/o": true, "--runtime-endpoint=/o": true, "--beside=kubelet": true,
		"--observe": true, "--runtime-cgroups=/o": true, "--runtime-pid-file=/o": true, "--agent-cgroups=/o": true,
		"--agent-pid-file=/o": true, "--system-reserved-cgroup=/o": true, "--kube-reserved-cgroup=/o": true,
		"--cgroup-root=/o": false, "--http=localhost:1": false, "--http=unix:///o": true, "--machine=2c": false,
		"--kernel-tunables=set": true, "--kernel-tunables=require": false,
	} {
		fs := pflag.NewFlagSet("berthd", pflag.ContinueOnError)
		config.AddFlags(fs)
		if err := fs.Parse([]string{flag}); err != nil {
			t.Fatal(err)
		}
		name, _, _ := strings.Cut(flag, "=")
		err := config.CheckTryFlags(fs)
		if (err != nil) != refused || refused && !regexp.MustCompile(name+": expected .* with --try").MatchString(err.Error()) {
			t.Errorf("%s: %v", flag, err)
		}
	}
}
