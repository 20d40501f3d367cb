package app

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/node"
	"github.com/berthd/berth/server/host/disk"
	"github.com/berthd/berth/server/host/procfs"
	"github.com/berthd/berth/server/host/sysctl"
)

// measureHost fills in what only the running system knows.
func (a *App) measureHost(facts *node.Facts) (err error) {
	if facts.MaxPIDs, err = procfs.MaxPIDs(os.DirFS("/proc")); err != nil {
		return err
	}
	if a.Config.Node.LocalStorage {
		dir := a.Config.Node.StorageDir
		if dir == "" {
			dir = a.Config.StateDir
		}
		facts.StorageBytes, err = disk.Size(dir)
	}
	return err
}

// swapBytes is the swap space that containers may get parts of.
func (a *App) swapBytes() (int64, error) {
	if a.Config.Machine != "" {
		return 0, nil
	}
	return procfs.SwapBytes(os.DirFS("/proc"))
}

// checkHost holds the running system against what the configuration wants of it.
// A tree in memory asks nothing of the system.
func (a *App) checkHost(ctx context.Context) error {
	c := a.Config.Node
	if a.Config.Cgroups.Tree == config.TreeMemory {
		return nil
	}
	if c.FailCgroupV1 && a.reconcile.QoS.Cgroup.Facts.Version == cgroup.V1 {
		return errdefs.Preconditionf("this system has cgroup v1, and node.failCgroupV1 refuses that")
	}
	proc, err := os.OpenRoot("/proc")
	if err != nil {
		return errdefs.Unavailablef("look at the system: %w", err)
	}
	defer proc.Close()
	swapping, err := procfs.Swapping(proc.FS())
	if err != nil {
		return err
	}
	if swapping && c.FailSwapOn {
		return errdefs.Preconditionf("running with swap on is not supported, please disable swap or set node.failSwapOn (--fail-swap-on) to false")
	}
	if swapping {
		if err := procfs.NoSwap(); err != nil {
			a.Log.WarnContext(ctx, "volumes in memory may end up on disk, as swap is on", "reason", "PossibleMemoryBackedVolumesOnDisk", "error", err)
		}
	}
	a.keepScore(ctx, proc)
	return a.checkTunables(ctx, proc)
}

func (a *App) checkTunables(ctx context.Context, proc *os.Root) error {
	action := a.Config.Node.KernelTunables
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
			a.Log.WarnContext(ctx, "the kernel is not set as Kubernetes wants it", "differences", differences)
		}
		if err != nil {
			a.Log.WarnContext(ctx, "look at kernel settings", "error", err)
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
func (a *App) setScore() (func(pid, score int) error, error) {
	if a.Config.Cgroups.Tree == config.TreeMemory {
		return nil, nil
	}
	proc, err := os.OpenRoot("/proc")
	if err != nil {
		return nil, errdefs.Unavailablef("open /proc: %w", err)
	}
	return func(pid, score int) error { return procfs.SetOOMScoreAdj(proc, pid, score) }, nil
}
