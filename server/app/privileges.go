package app

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
	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/server/host/confine"
)

// need is a capability that a feature rests on.
type need struct {
	capability confine.Capability
	feature    string
	// without says what fails where berthd does not have it.
	without string
	// wanted tells whether a configuration uses the feature.
	wanted func(config.Config) bool
}

// realCgroups tells whether cgroups are the kernel's.
func realCgroups(c config.Config) bool { return c.Cgroups.Tree != config.TreeMemory }

// needs is the table of docs/security.md, measured by server/berthd's
// TestEachCapabilityIsNeeded.
var needs = []need{
	{confine.Kill, "end the processes of a pod that is removed", "pods with processes of other users cannot be removed on cgroup v1",
		realCgroups},
	{confine.SysNice, "put processes into the cpuset of their container", "containers with capabilities that berthd does not have cannot be started",
		realCgroups},
	{confine.SysResource, "lower the scores of the out-of-memory killer", "berthd and guaranteed pods are killed as soon as others when memory runs out",
		realCgroups},
	{confine.DACOverride, "make cgroups in the root cgroup, which nobody may write to", "berthd does not start, unless cgroups.root (--cgroup-root) exists",
		realCgroups},
	{confine.DACOverride, "set the scores of the out-of-memory killer of other users' processes", "these processes keep their scores",
		realCgroups},
	{confine.DACOverride, "call plugins, providers and runtimes of other users", "berthd cannot connect to sockets to which only their users may write",
		func(config.Config) bool { return true }},
	{confine.Chown, "give its sockets to a group (listenGroup)", "berthd does not start, unless it is of the group",
		func(c config.Config) bool { return c.ListenGroup != "" }},
	{confine.NetBindService, "listen on a port below 1024 (http)", "metrics and health are not served",
		func(c config.Config) bool { port, ok := httpPort(c); return ok && port > 0 && port < 1024 }},
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

// Confine takes away from this process what a configuration does not need. It replaces the
// program by itself, and returns in the new one.
func Confine(ctx context.Context, c config.Config, files []string, log *slog.Logger) error {
	a := &App{Config: c}
	if err := a.checkDirectories(ctx); err != nil {
		return err
	}
	p := c.Privileges
	plan := confine.Plan{DropCapabilities: p.DropCapabilities, Filter: p.Seccomp}
	for _, n := range needs {
		if n.wanted(c) {
			plan.Capabilities |= confine.Of(n.capability)
		}
	}
	if p.Landlock {
		rules, err := a.rules(files)
		if err != nil {
			return err
		}
		plan.Rules = rules
	}
	report, err := confine.Enter(plan)
	if err != nil {
		return fmt.Errorf("%w; privileges.dropCapabilities, privileges.landlock and privileges.seccomp (--drop-capabilities, --landlock, --seccomp) turn this off", err)
	}
	capabilities := "as they were"
	if p.DropCapabilities {
		capabilities = report.Capabilities.String()
	}
	log.InfoContext(ctx, "berthd's rights", "capabilities", capabilities, "landlock", report.Landlock, "seccomp", report.Filter)
	if len(report.Missing) > 0 {
		log.WarnContext(ctx, "berthd has more rights than it needs, since this kernel cannot take them away", "missing", strings.Join(report.Missing, ", "))
	}
	for _, line := range lacking(c, report.Capabilities) {
		log.WarnContext(ctx, line)
	}
	return nil
}

// lacking says what will fail for want of a capability.
func lacking(c config.Config, have confine.Set) (lines []string) {
	for _, n := range needs {
		if n.wanted(c) && !have.Has(n.capability) {
			lines = append(lines, fmt.Sprintf("berthd lacks %s, which it needs to %s: %s", n.capability, n.feature, n.without))
		}
	}
	return lines
}

// rules says which files the configuration needs. Rules name only what is there, so the
// directories that berthd would make later are made now. What cannot be made is left to
// those who need it, and who say what for.
func (a *App) rules(files []string) (*confine.Rules, error) {
	c := a.Config
	allow := func(rights confine.Rights, paths ...string) (out []confine.File) {
		for _, p := range paths {
			out = append(out, confine.File{Path: p, Rights: rights})
		}
		return out
	}
	r := &confine.Rules{AbstractSockets: strings.HasPrefix(os.Getenv("NOTIFY_SOCKET"), "@") || strings.HasPrefix(c.RuntimeEndpoint, "unix://@")}
	// The program, and what it is linked with where it is linked with anything.
	r.Files = allow(confine.Run, "/proc/self/exe", "/lib", "/lib64", "/usr/lib", "/usr/lib64")
	// The machine; /proc to be written to for scores and, if configured, kernel settings.
	r.Files = append(r.Files, allow(confine.Read, "/sys")...)
	r.Files = append(r.Files, allow(confine.Write, "/proc", "/dev/null")...)
	// Names of hosts, ports, users, groups and time zones.
	r.Files = append(r.Files, allow(confine.ReadFile, "/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf",
		"/etc/services", "/etc/passwd", "/etc/group", "/etc/localtime", "/etc/ld.so.cache", "/usr/share/zoneinfo")...)
	for _, f := range append(files, machineFile(c), c.Node.RuntimePIDFile, c.Node.AgentPIDFile) {
		if f != "" {
			// An editor puts another file in its place.
			r.Files = append(r.Files, allow(confine.ReadFile, f, filepath.Dir(f))...)
		}
	}
	if realCgroups(c) {
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
		{filepath.Dir(c.Listen), listenDirMode, true},
		{c.StateDir, 0o700, false},
		{c.DevicePluginDir, 0o755, true},
		{c.PluginRegistryDir, 0o750, true},
		{c.PodResourcesDir, 0o750, true},
		{a.httpDir(), 0o755, true},
	} {
		if d.path == "" {
			continue
		}
		_ = trust.MkdirAll(d.path, d.mode)
		r.Files = append(r.Files, allow(confine.Change, d.path)...)
		if d.socket {
			// A directory that somebody removes is made again, and the socket in it.
			r.Files = append(r.Files, allow(confine.MakeAgain, filepath.Dir(d.path))...)
		}
	}
	if port, ok := httpPort(c); ok {
		r.TCPPorts = []uint16{port}
	}
	return r, nil
}

// machineFile is the snapshot that stands for the machine; empty if there is none.
func machineFile(c config.Config) string {
	if _, err := os.Stat(c.Machine); err != nil {
		return ""
	}
	return c.Machine
}
