package app

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/host/cgroupfs"
	"github.com/berthd/berth/server/host/procfs"
)

// systemCgroups keeps berthd itself, and the system's processes that nobody has put
// anywhere, in the cgroups that the configuration names for them. As in the
// kubelet, names are plain directories under every driver.
type systemCgroups struct {
	tree interface {
		Ensure(ctx context.Context, node cgroup.Node) (created bool, err error)
		Move(ctx context.Context, name cgroup.Name, pids ...int) error
		RootProcs() ([]int, error)
	}
	proc *os.Root
	// system and own are the cgroups; nil for none.
	system, own cgroup.Name
	// pid and score are berthd's; noScore is not written.
	pid, score int
}

// Bounds of the task of the system cgroups, the kubelet's.
const (
	careEvery  = time.Minute
	careRounds = 11
)

// takeCare runs the task of the system cgroups, if there is anything to take care of, until ctx
// ends. The first round is at once; errors are logged, and the next round tries
// again.
func (a *App) takeCare(ctx context.Context) error {
	c := a.Config.Node
	if a.Config.Cgroups.Tree == config.TreeMemory || c.SystemCgroup == "" && c.OwnCgroup == "" {
		<-ctx.Done()
		return ctx.Err()
	}
	tree, err := cgroupfs.Open(cgroupfs.Options{Mount: a.Config.Cgroups.Mount})
	if err != nil {
		return err
	}
	defer func() { _ = tree.Close() }()
	proc, err := os.OpenRoot("/proc")
	if err != nil {
		return errdefs.Unavailablef("look at processes: %w", err)
	}
	defer proc.Close()
	own, set, _ := score(a.Config) // the start has said why not
	if !set {
		own = noScore
	}
	keeper := systemCgroups{
		tree: tree, proc: proc, pid: os.Getpid(), score: own,
		system: cgroup.ParseCgroupfs(c.SystemCgroup), own: cgroup.ParseCgroupfs(c.OwnCgroup),
	}
	tick := time.NewTicker(careEvery)
	defer tick.Stop()
	for {
		if err := keeper.round(ctx); err != nil && ctx.Err() == nil {
			a.Log.WarnContext(ctx, "keep processes of the system in their cgroups", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// round does what there is to do now.
func (c *systemCgroups) round(ctx context.Context) (err error) {
	if len(c.own) > 0 {
		if _, err = c.tree.Ensure(ctx, cgroup.Node{Name: c.own}); err == nil {
			err = c.tree.Move(ctx, c.own, c.pid)
		}
		if c.score != noScore {
			err = errors.Join(err, procfs.SetOOMScoreAdj(c.proc, c.pid, c.score))
		}
	}
	if len(c.system) > 0 {
		err = errors.Join(err, c.gather(ctx))
	}
	return err
}

// gather moves the processes of the root cgroup, but for the first one and the
// kernel's own, until none is left or enough has been tried. It returns the error
// of the last that stayed.
func (c *systemCgroups) gather(ctx context.Context) error {
	if _, err := c.tree.Ensure(ctx, cgroup.Node{Name: c.system}); err != nil {
		return err
	}
	var last error
	for range careRounds {
		pids, err := c.tree.RootProcs()
		if err != nil {
			return err
		}
		found := false
		last = nil
		for _, pid := range pids {
			if pid <= 1 || c.isKernels(pid) {
				continue
			}
			found = true
			if err := c.tree.Move(ctx, c.system, pid); err != nil && errdefs.ClassOf(err) != errdefs.NotFound {
				last = err
			}
		}
		if !found {
			return nil
		}
	}
	return last
}

// isKernels tells a thread of the kernel, or a process that has gone, from one that runs a
// program. Its program (exe) is not asked for: that takes CAP_SYS_PTRACE.
func (c *systemCgroups) isKernels(pid int) bool {
	kernels, err := procfs.KernelThread(c.proc.FS(), pid)
	return err != nil || kernels
}
