// Package privileges takes away from berthd's process what its configuration does not need.
//
// Words: a need is a capability that a feature rests on. The reader is a second process of berthd, which keeps the one capability to
// read where the huge pages of other processes are.
//
// Invariants: needs is the table of docs/security.md. A rule for files names only what the configuration uses. What the kernel cannot
// drop is logged, and is no error.
//
// The package does not know how privileges are dropped: that is package confine.
package privileges

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/kubelet"
	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/server/internal/host/confine"
	"github.com/berthd/berth/server/internal/host/hugepages"
)

// need is a capability that a feature rests on.
type need struct {
	capability confine.Capability
	feature    string
	// without is the consequence of a missing capability.
	without string
	// wanted reports whether a configuration uses the feature.
	wanted func(config.Config) bool
}

// needs is the table of docs/security.md, measured by server/berthd's
// TestEachCapabilityIsNeeded.
var needs = []need{
	{confine.Kill, "end the processes of a pod that is removed", "pods with processes of other users cannot be removed on cgroup v1",
		config.Config.KernelCgroups},
	{confine.SysNice, "put processes into the cpuset of their container",
		"containers with capabilities that berthd does not have cannot be started",
		config.Config.KernelCgroups},
	{confine.SysResource, "lower the scores of the out-of-memory killer",
		"berthd and guaranteed pods are killed as soon as others when memory runs out",
		config.Config.KernelCgroups},
	{confine.DACOverride, "create cgroups in the root cgroup, which is not writable",
		"berthd does not start, unless cgroups.root (--cgroup-root) exists",
		config.Config.KernelCgroups},
	{confine.DACOverride, "set the scores of the out-of-memory killer of other users' processes", "these processes keep their scores",
		config.Config.KernelCgroups},
	{confine.DACOverride, "call plugins, providers and runtimes of other users",
		"berthd cannot connect to sockets to which only their users may write",
		func(c config.Config) bool { return c.Observe.Root == "" }},
	{confine.Chown, "give its sockets to a group (listenGroup)", "berthd does not start, unless its user belongs to the group",
		func(c config.Config) bool { return c.ListenGroup != "" }},
	{confine.NetBindService, "listen on a port below 1024 (http)", "metrics and health are not served",
		func(c config.Config) bool { port, ok := httpPort(c); return ok && port > 0 && port < 1024 }},
}

// Traces returns what the sending of spans needs.
type Traces struct {
	// On is true if spans are sent, to a port.
	On   bool
	Port uint16
	// Files are those that the connection needs.
	Files []string
}

// Drop takes away from this process what a configuration does not need. It replaces the
// program by itself, and returns in the new one. The file is the connection to the reader of huge pages; nil without one.
func Drop(ctx context.Context, c config.Config, files []string, traces Traces, log *slog.Logger) (*os.File, error) {
	if err := trust.CheckFields(c); err != nil {
		return nil, err
	}
	p := c.Privileges
	plan := confine.Plan{DropCapabilities: p.DropCapabilities, Filter: p.Seccomp}
	if c.Moves.HugePages && c.KernelCgroups() {
		plan.Helper = []string{ReaderCommand}
	}
	for _, n := range needs {
		if n.wanted(c) {
			plan.Capabilities |= confine.Of(n.capability)
		}
	}
	if p.Landlock {
		rules, err := landlockRules(c, append(files, traces.Files...))
		if err != nil {
			return nil, err
		}
		if traces.On {
			rules.ConnectPorts = append(rules.ConnectPorts, traces.Port)
			for _, dir := range authorities {
				rules.Files = append(rules.Files, confine.File{Path: dir, Rights: confine.Read})
			}
		}
		plan.Rules = rules
	}
	report, err := confine.Enter(plan)
	if err != nil {
		return nil, fmt.Errorf("%w; privileges.dropCapabilities, privileges.landlock and privileges.seccomp (--drop-capabilities, --landlock, --seccomp) turn this off", err)
	}
	capabilities := "as they were"
	if p.DropCapabilities {
		capabilities = report.Capabilities.String()
	}
	log.InfoContext(ctx, "berthd's rights", "capabilities", capabilities, "landlock", report.Landlock, "seccomp", report.Filter)
	if len(report.Missing) > 0 {
		log.WarnContext(ctx, "berthd keeps privileges that it does not need, because this kernel cannot drop them", "missing",
			strings.Join(report.Missing, ", "))
	}
	for _, line := range Lacking(c, report.Capabilities) {
		log.WarnContext(ctx, line)
	}
	return report.Helper, nil
}

// authorities are the directories in which systems keep certificates.
var authorities = []string{"/etc/ssl", "/etc/pki", "/usr/share/ca-certificates"}

// Lacking lists the consequences of missing capabilities.
func Lacking(c config.Config, have confine.Set) (lines []string) {
	for _, n := range needs {
		if n.wanted(c) && !have.Has(n.capability) {
			lines = append(lines, fmt.Sprintf("berthd lacks %s, which it needs to %s: %s", n.capability, n.feature, n.without))
		}
	}
	return lines
}

// ListenDirMode is that of the directory of berth's own socket where berthd makes it.
const ListenDirMode = 0o755

// landlockRules lists the files that the configuration needs. A rule can name only existing files, so
// directories that berthd would create later are created now. A directory that cannot be created
// is reported by the part that needs it.
func landlockRules(c config.Config, files []string) (*confine.Rules, error) {
	allow := func(rights confine.Rights, paths ...string) (out []confine.File) {
		for _, p := range paths {
			out = append(out, confine.File{Path: p, Rights: rights})
		}
		return out
	}
	r := &confine.Rules{AbstractSockets: strings.HasPrefix(os.Getenv("NOTIFY_SOCKET"), "@") ||
		strings.HasPrefix(c.RuntimeEndpoint, "unix://@")}
	// The program, and the libraries of a dynamically linked one.
	r.Files = allow(confine.Run, "/proc/self/exe", "/lib", "/lib64", "/usr/lib", "/usr/lib64")
	// The machine; /proc to be written to for scores and, if configured, kernel settings.
	r.Files = append(r.Files, allow(confine.Read, "/sys")...)
	if c.Node.SetHugePages {
		r.Files = append(r.Files, allow(confine.Write, hugepages.Dir)...)
	}
	proc := confine.Write
	if c.Observe.Root != "" {
		proc = confine.Read
	}
	r.Files = append(append(r.Files, allow(proc, "/proc")...), allow(confine.Write, "/dev/null")...)
	// Names of hosts, ports, users, groups and time zones.
	r.Files = append(r.Files, allow(confine.ReadFile, "/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/host.conf",
		"/etc/gai.conf",
		"/etc/services", "/etc/passwd", "/etc/group", "/etc/localtime", "/etc/ld.so.cache", "/usr/share/zoneinfo")...)
	for _, f := range append(files, machineFile(c), c.Node.RuntimePIDFile, c.Node.AgentPIDFile) {
		if f == "" {
			continue
		}
		if info, err := os.Stat(f); err == nil && info.IsDir() {
			r.Files = append(r.Files, allow(confine.Read, f)...) // its files are found again at a reload
		}
		// An editor puts another file in its place.
		r.Files = append(r.Files, allow(confine.ReadFile, f, filepath.Dir(f))...)
	}
	if o := c.Observe; o.Root != "" {
		r.Files = append(r.Files, allow(confine.Read, o.Root)...)
		if o.Kubelet != "" {
			web, err := kubelet.NewWeb(o.Kubelet, o.NodeName, o.Accounts(), o.KubeletCA)
			if err != nil {
				return nil, err
			}
			r.ConnectPorts = append(r.ConnectPorts, web.Port())
			r.Files = append(r.Files, allow(confine.Read, o.Accounts())...)
			if o.KubeletCA != "" {
				r.Files = append(r.Files, allow(confine.ReadFile, o.KubeletCA, filepath.Dir(o.KubeletCA))...)
			}
		}
	}
	if c.KernelCgroups() {
		r.Files = append(r.Files, allow(confine.Change, c.Cgroups.Mount)...)
	}
	if c.Node.StorageDir != "" {
		r.Files = append(r.Files, allow(confine.Read, c.Node.StorageDir)...)
	}
	for _, d := range []struct {
		path   string
		mode   fs.FileMode
		socket bool
	}{
		{c.RootDir, 0o755, false},
		{filepath.Dir(c.Listen), ListenDirMode, true},
		{c.StateDir, 0o700, false},
		{config.Path(c.DevicePluginDir), 0o755, true},
		{config.Path(c.PluginRegistryDir), 0o750, true},
		{config.Path(c.PodResourcesDir), 0o750, true},
		{httpDir(c), 0o755, true},
	} {
		if d.path == "" || d.path == c.StateDir && c.Observe.Root != "" {
			continue
		}
		_ = trust.MkdirAll(d.path, d.mode)
		r.Files = append(r.Files, allow(confine.Change, d.path)...)
		if d.socket {
			// A removed directory is created again, with the socket in it.
			r.Files = append(r.Files, allow(confine.MakeAgain, filepath.Dir(d.path))...)
		}
	}
	if port, ok := httpPort(c); ok {
		r.TCPPorts = []uint16{port}
	}
	return r, nil
}

// httpPort is the port that metrics and health are served on, 0 for any one.
func httpPort(c config.Config) (port uint16, ok bool) {
	_, text, err := net.SplitHostPort(c.HTTP)
	if err != nil {
		return 0, false
	}
	n, err := net.LookupPort("tcp", text)
	return uint16(n), err == nil
}

// httpDir is where the socket for metrics lies; empty if there is none.
func httpDir(c config.Config) string {
	path, ok := c.HTTPSocket()
	if !ok {
		return ""
	}
	return filepath.Dir(path)
}

// machineFile is the snapshot of a simulated machine; empty if there is none.
func machineFile(c config.Config) string {
	if _, err := os.Stat(c.Machine); err != nil {
		return ""
	}
	return c.Machine
}
