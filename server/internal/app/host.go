package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"

	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/api/version"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/node"
	"github.com/berthd/berth/server/internal/host/confine"
	"github.com/berthd/berth/server/internal/host/disk"
	"github.com/berthd/berth/server/internal/host/hugepages"
	"github.com/berthd/berth/server/internal/host/memlimit"
	"github.com/berthd/berth/server/internal/host/procfs"
	"github.com/berthd/berth/server/internal/host/sysctl"
	"github.com/berthd/berth/server/internal/tracing"
)

// measureHost returns facts of the running system.
func measureHost(c config.Config) (facts node.Facts, err error) {
	if facts.MaxPIDs, err = procfs.MaxPIDs(os.DirFS("/proc")); err != nil {
		return facts, err
	}
	if c.Node.LocalStorage {
		facts.StorageBytes, err = disk.Size(cmp.Or(c.Node.StorageDir, c.StateDir))
	}
	return facts, err
}

// swapBytes is the swap space that containers may get parts of.
func swapBytes(c config.Config) (int64, error) {
	if c.Machine != "" {
		return 0, nil
	}
	return procfs.SwapBytes(os.DirFS("/proc"))
}

// refuseV1 refuses cgroup v1 where the configuration does.
func refuseV1(c config.Config, version cgroup.Version) error {
	if c.Node.FailCgroupV1 && version == cgroup.V1 {
		return errdefs.Preconditionf("this system has cgroup v1, and node.failCgroupV1 refuses that")
	}
	return nil
}

// refuseSwap refuses swap space where the configuration does.
func refuseSwap(c config.Config, swapping bool) error {
	if swapping && c.Node.FailSwapOn {
		return errdefs.Preconditionf("running with swap on is not supported, please disable swap or set node.failSwapOn (--fail-swap-on) to false")
	}
	return nil
}

// checkHost checks that the running system fits the configuration. A tree in memory has no
// requirements.
func checkHost(ctx context.Context, c config.Config, version cgroup.Version, log *slog.Logger) error {
	if c.Cgroups.Tree == config.TreeMemory {
		return nil
	}
	if err := refuseV1(c, version); err != nil {
		return err
	}
	proc, err := os.OpenRoot("/proc")
	if err != nil {
		return errdefs.Unavailablef("check the system: %w", err)
	}
	defer proc.Close()
	swapping, err := procfs.Swapping(proc.FS())
	if err != nil {
		return err
	}
	if err := refuseSwap(c, swapping); err != nil {
		return err
	}
	if swapping {
		if err := procfs.NoSwap(); err != nil {
			log.WarnContext(ctx, "volumes in memory may end up on disk, as swap is on", "reason", "PossibleMemoryBackedVolumesOnDisk",
				"error", err)
		}
	}
	keepScore(ctx, c, proc, log)
	return checkTunables(ctx, c, proc, log)
}

func checkTunables(ctx context.Context, c config.Config, proc *os.Root, log *slog.Logger) error {
	action := c.Node.KernelTunables
	if action == config.TunablesIgnore {
		return nil
	}
	differences, err := sysctl.Compare(proc.FS(), sysctl.Wanted())
	switch action {
	case config.TunablesRequire:
		for _, d := range differences {
			err = errors.Join(err, errdefs.Preconditionf("%s", d))
		}
	case config.TunablesSet:
		err = errors.Join(err, sysctl.Set(proc, differences))
	default:
		if len(differences) > 0 {
			log.WarnContext(ctx, "kernel settings differ from what Kubernetes expects", "differences", differences)
		}
		if err != nil {
			log.WarnContext(ctx, "read kernel settings", "error", err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("kernel settings (node.kernelTunables is %s): %w", action, err)
	}
	return nil
}

// setScore is how the reconciler scores processes: not at all where cgroups are
// not the kernel's.
func setScore(c config.Config) (func(pid, score int) error, error) {
	if c.Cgroups.Tree == config.TreeMemory {
		return nil, nil
	}
	proc, err := os.OpenRoot("/proc")
	if err != nil {
		return nil, errdefs.Unavailablef("open /proc: %w", err)
	}
	return func(pid, score int) error { return procfs.SetOOMScoreAdj(proc, pid, score) }, nil
}

// LimitMemory keeps the heap below nine tenths of the memory limit of berthd's cgroup, unless
// GOMEMLIMIT is set.
func LimitMemory(ctx context.Context, c config.Config, log *slog.Logger) {
	if _, set := os.LookupEnv("GOMEMLIMIT"); set {
		return
	}
	limit, ok, err := memlimit.Own(os.DirFS("/proc"), os.DirFS(c.Cgroups.Mount))
	switch {
	case err != nil:
		log.WarnContext(ctx, "berthd's memory limit is unknown", "error", err)
	case ok:
		debug.SetMemoryLimit(limit - limit/10)
		log.InfoContext(ctx, "memory", "limit", limit, "collected from", limit-limit/10)
	}
}

// leastProcessors is the minimum of GOMAXPROCS. With fewer processors the kernel shares them
// between threads. Otherwise a call of root can wait up to 10 ms in Go's queue while another
// user's call computes.
const leastProcessors = 4

// ShareProcessors raises GOMAXPROCS to leastProcessors, unless the variable is set.
func ShareProcessors() {
	if _, set := os.LookupEnv("GOMAXPROCS"); !set && runtime.GOMAXPROCS(0) < leastProcessors {
		runtime.GOMAXPROCS(leastProcessors)
	}
}

// score is berthd's own score of the out-of-memory killer; false means that it is not written. A
// negative score requires a memory limit of berthd's cgroup. Without the limit the kernel would kill
// all other processes first, however much memory berthd uses.
func score(c config.Config) (score int, set bool, err error) {
	score = c.Node.OOMScoreAdj
	if score >= 0 {
		return score, true, nil
	}
	_, limited, err := memlimit.Own(os.DirFS("/proc"), os.DirFS(c.Cgroups.Mount))
	if err == nil && !limited {
		err = errdefs.Preconditionf("node.oomScoreAdj (--oom-score-adj) is %d, so the kernel would kill all other processes before berthd, and berthd's cgroup has no memory limit: set one, such as MemoryMax= of its systemd unit", score)
	}
	return score, err == nil, err
}

// keepScore writes berthd's own score, or logs why it cannot.
func keepScore(ctx context.Context, c config.Config, proc *os.Root, log *slog.Logger) {
	adj, set, err := score(c)
	if set {
		err = procfs.SetOOMScoreAdj(proc, os.Getpid(), adj)
	}
	if err != nil {
		log.WarnContext(ctx, "berthd keeps its score of the out-of-memory killer", "error", err)
	}
}

// noScore means that no score is written.
const noScore = math.MinInt

// httpDir is where the socket for metrics lies; empty if there is none.
func httpDir(c config.Config) string {
	path, ok := c.HTTPSocket()
	if !ok {
		return ""
	}
	return filepath.Dir(path)
}

// openStateDir makes the directory of the ledger so that others get through where the socket lies in it and they have
// roles. The ledger's files are berthd's alone in any case.
func openStateDir(c config.Config) error {
	rel, err := filepath.Rel(c.StateDir, c.Listen)
	if err != nil || !filepath.IsLocal(rel) || len(c.Access) == 0 {
		return nil
	}
	return trust.MkdirAll(c.StateDir, 0o711)
}

// checkReach warns if users with roles cannot reach the socket.
func checkReach(c config.Config, log *slog.Logger) {
	if len(c.Access) == 0 {
		return
	}
	for dir := filepath.Dir(c.Listen); ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err == nil && info.Mode().Perm()&0o001 == 0 {
			log.Warn("users that access gives roles cannot reach listen unless they are of the directory's group: "+
				"give the directory the mode 0711, or let listen lie elsewhere", "listen", c.Listen, "directory", dir, "mode",
				fmt.Sprintf("%#o", info.Mode().Perm()))
		}
		if dir == filepath.Dir(dir) {
			return
		}
	}
}

// selfUID is the user that berthd runs as.
func selfUID() uint32 { return uint32(max(os.Getuid(), 0)) }

// Version is berthd's version and platform.
func Version() *nodev1.GetVersionResponse {
	i := version.Of()
	return &nodev1.GetVersionResponse{Version: i.Version, Commit: i.Commit, GoVersion: i.Go, Platform: i.Platform}
}

// need is a capability that a feature rests on.
type need struct {
	capability confine.Capability
	feature    string
	// without is the consequence of a missing capability.
	without string
	// wanted reports whether a configuration uses the feature.
	wanted func(config.Config) bool
}

// realCgroups reports whether cgroups are the kernel's.
func realCgroups(c config.Config) bool { return c.Cgroups.Tree != config.TreeMemory }

// needs is the table of docs/security.md, measured by server/berthd's
// TestEachCapabilityIsNeeded.
var needs = []need{
	{confine.Kill, "end the processes of a pod that is removed", "pods with processes of other users cannot be removed on cgroup v1",
		realCgroups},
	{confine.SysNice, "put processes into the cpuset of their container",
		"containers with capabilities that berthd does not have cannot be started",
		realCgroups},
	{confine.SysResource, "lower the scores of the out-of-memory killer",
		"berthd and guaranteed pods are killed as soon as others when memory runs out",
		realCgroups},
	{confine.DACOverride, "create cgroups in the root cgroup, which is not writable",
		"berthd does not start, unless cgroups.root (--cgroup-root) exists",
		realCgroups},
	{confine.DACOverride, "set the scores of the out-of-memory killer of other users' processes", "these processes keep their scores",
		realCgroups},
	{confine.DACOverride, "call plugins, providers and runtimes of other users",
		"berthd cannot connect to sockets to which only their users may write",
		func(config.Config) bool { return true }},
	{confine.Chown, "give its sockets to a group (listenGroup)", "berthd does not start, unless its user belongs to the group",
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
// program by itself, and returns in the new one. The file is the connection to the reader of huge pages; nil without one.
func Confine(ctx context.Context, c config.Config, files []string, traces tracing.Settings, log *slog.Logger) (*os.File, error) {
	if err := trust.CheckFields(c); err != nil {
		return nil, err
	}
	p := c.Privileges
	plan := confine.Plan{DropCapabilities: p.DropCapabilities, Filter: p.Seccomp}
	if c.Moves.HugePages && realCgroups(c) {
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
			rules.ConnectPorts = []uint16{traces.Port}
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
	for _, line := range lacking(c, report.Capabilities) {
		log.WarnContext(ctx, line)
	}
	return report.Helper, nil
}

// authorities are the directories in which systems keep certificates.
var authorities = []string{"/etc/ssl", "/etc/pki", "/usr/share/ca-certificates"}

// lacking lists the consequences of missing capabilities.
func lacking(c config.Config, have confine.Set) (lines []string) {
	for _, n := range needs {
		if n.wanted(c) && !have.Has(n.capability) {
			lines = append(lines, fmt.Sprintf("berthd lacks %s, which it needs to %s: %s", n.capability, n.feature, n.without))
		}
	}
	return lines
}

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
	r.Files = append(r.Files, allow(confine.Write, "/proc", "/dev/null")...)
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
		{config.Path(c.DevicePluginDir), 0o755, true},
		{config.Path(c.PluginRegistryDir), 0o750, true},
		{config.Path(c.PodResourcesDir), 0o750, true},
		{httpDir(c), 0o755, true},
	} {
		if d.path == "" {
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

// machineFile is the snapshot of a simulated machine; empty if there is none.
func machineFile(c config.Config) string {
	if _, err := os.Stat(c.Machine); err != nil {
		return ""
	}
	return c.Machine
}
