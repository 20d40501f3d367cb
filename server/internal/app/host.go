package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"

	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/api/version"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/node"
	"github.com/berthd/berth/server/internal/host/disk"
	"github.com/berthd/berth/server/internal/host/memlimit"
	"github.com/berthd/berth/server/internal/host/procfs"
	"github.com/berthd/berth/server/internal/host/sysctl"
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
	if !c.KernelCgroups() {
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
			log.WarnContext(ctx, "reading kernel settings failed", "error", err)
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
	if !c.KernelCgroups() {
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
