package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/host/cgroupfs"
	"github.com/berthd/berth/server/internal/host/endpoint"
	"github.com/berthd/berth/server/internal/host/procfs"
)

// systemCgroups moves berthd, the container runtime, the agent, and the system's processes in the
// root cgroup to their configured cgroups. As in the kubelet, names are plain directories under
// every driver.
type systemCgroups struct {
	tree interface {
		Ensure(ctx context.Context, node cgroup.Node) (created bool, err error)
		Move(ctx context.Context, name cgroup.Name, pids ...int) error
		RootProcs() ([]int, error)
	}
	proc *os.Root
	// system receives the processes of the root cgroup; empty for none.
	system cgroup.Name
	kept   []keptProcess
	// found gets what a round has found.
	found *atomic.Pointer[[]*nodev1.SystemContainer]
}

// keptProcess is a process that is kept in a cgroup and at a score.
type keptProcess struct {
	part nodev1.SystemContainer_Part
	// find reports which process it is.
	find func(context.Context) (pid int, err error)
	// in is the cgroup; nil leaves the process where it is. noScore is not written.
	in    cgroup.Name
	score int
}

// Bounds of the task of the system cgroups, the kubelet's, and the score that it gives the
// runtime.
const (
	systemCgroupsPeriod = time.Minute
	gatherRounds        = 11
	runtimeScore        = -999
)

// keepSystemCgroups keeps the configured processes in their cgroups until ctx
// ends. The first round is immediate. Errors are logged, and the next round tries
// again.
func keepSystemCgroups(ctx context.Context, g *given, found *atomic.Pointer[[]*nodev1.SystemContainer]) error {
	c, log := g.Config, g.Log
	if !c.KernelCgroups() {
		<-ctx.Done()
		return ctx.Err()
	}
	tree, err := cgroupfs.Open(cgroupOptions(g.System, c))
	if err != nil {
		return err
	}
	defer func() { _ = tree.Close() }()
	proc, err := os.OpenRoot("/proc")
	if err != nil {
		return errdefs.Unavailablef("read processes: %w", err)
	}
	defer proc.Close()
	keeper := systemCgroups{
		tree: tree, proc: proc, system: configured(c.Node.SystemCgroup), kept: keptProcesses(c), found: found,
	}
	tick := time.NewTicker(systemCgroupsPeriod)
	defer tick.Stop()
	for {
		if err := keeper.round(ctx); err != nil && ctx.Err() == nil {
			log.WarnContext(ctx, "keeping processes of the system in their cgroups failed", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// configured reads the name of a cgroup; nil for none.
func configured(literal string) cgroup.Name {
	if literal == "" {
		return nil
	}
	return cgroup.ParseCgroupfs(literal)
}

// keptProcesses are the configured processes.
func keptProcesses(cfg config.Config) []keptProcess {
	c := cfg.Node
	own, set, _ := score(cfg) // the start has logged the reason
	if !set {
		own = noScore
	}
	self := func(context.Context) (int, error) { return os.Getpid(), nil }
	out := []keptProcess{{nodev1.SystemContainer_PART_BERTHD, self, configured(c.OwnCgroup), own}}
	if file := c.AgentPIDFile; file != "" {
		out = append(out, keptProcess{nodev1.SystemContainer_PART_AGENT, pidIn(file), configured(c.AgentCgroup), c.OOMScoreAdj})
	}
	adj := runtimeScore
	if c.RuntimeCgroup == "" && c.RuntimePIDFile == "" {
		adj = noScore // the process is only reported
	}
	switch {
	case c.RuntimePIDFile != "":
		out = append(out, keptProcess{nodev1.SystemContainer_PART_RUNTIME, pidIn(c.RuntimePIDFile), configured(c.RuntimeCgroup), adj})
	case cfg.RuntimeEndpoint != "":
		path := strings.TrimPrefix(cfg.RuntimeEndpoint, "unix://")
		find := func(ctx context.Context) (int, error) {
			ctx, cancel := context.WithTimeout(ctx, peerTimeout)
			defer cancel()
			return endpoint.Server(ctx, path)
		}
		out = append(out, keptProcess{nodev1.SystemContainer_PART_RUNTIME, find, configured(c.RuntimeCgroup), adj})
	}
	return out
}

// peerTimeout is how long the runtime's socket may take to take a connection.
const peerTimeout = 10 * time.Second

// maxPIDFile bounds a file with the id of a process.
const maxPIDFile = 256

// pidIn reads the id of a process from a file, at each round. Whoever can write it chooses the process that berthd moves.
func pidIn(file string) func(context.Context) (int, error) {
	return func(context.Context) (int, error) {
		text, err := trust.ReadFile(file, maxPIDFile)
		if err != nil {
			return 0, errdefs.Unavailablef("read the id of a process: %w", err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil || pid <= 0 {
			return 0, errdefs.Preconditionf("%s holds %.20q, expected the id of a process", file, text)
		}
		return pid, nil
	}
}

// round does what there is to do now.
func (c *systemCgroups) round(ctx context.Context) error {
	var errs []error
	var found []*nodev1.SystemContainer
	for _, k := range c.kept {
		pid, err := c.keep(ctx, k)
		one := &nodev1.SystemContainer{Part: k.part, Pid: int32(pid)}
		if err == nil {
			var unknown error // only in answers of GetStatus
			if one.Cgroup, unknown = procfs.Cgroup(c.proc.FS(), pid); unknown != nil {
				one.Problem = unknown.Error()
			}
		}
		if err != nil {
			one.Problem = err.Error()
			err = fmt.Errorf("%s: %w", strings.ToLower(strings.TrimPrefix(k.part.String(), "PART_")), err)
		}
		found, errs = append(found, one), append(errs, err)
	}
	if len(c.system) > 0 {
		one := &nodev1.SystemContainer{Part: nodev1.SystemContainer_PART_SYSTEM, Cgroup: c.system.String()}
		err := c.gather(ctx)
		if err != nil {
			one.Problem = err.Error()
		}
		found, errs = append(found, one), append(errs, err)
	}
	c.found.Store(&found)
	return errors.Join(errs...)
}

// keep puts one process where it is to be: the kubelet's ensureProcessInContainerWithOOMScore.
// One of a container is left alone, as there, and so is the first one, which systemd keeps.
func (c *systemCgroups) keep(ctx context.Context, k keptProcess) (pid int, err error) {
	if pid, err = k.find(ctx); err != nil {
		return 0, err
	}
	if pid == 1 && k.part != nodev1.SystemContainer_PART_BERTHD {
		return 0, errdefs.Preconditionf("its socket belongs to process 1 (socket activation), so the serving process is unknown: set its pid file")
	}
	here, err := procfs.InCallersNamespace(c.proc.FS(), pid)
	if err != nil || !here {
		return pid, err
	}
	if len(k.in) > 0 {
		if _, err = c.tree.Ensure(ctx, cgroup.Node{Name: k.in}); err == nil {
			err = c.tree.Move(ctx, k.in, pid)
		}
	}
	if k.score != noScore {
		err = errors.Join(err, procfs.SetOOMScoreAdj(c.proc, pid, k.score))
	}
	return pid, err
}

// gather moves the processes of the root cgroup, but for the first one and the
// kernel's own, until none is left or enough has been tried. It returns the error
// of the last that stayed.
func (c *systemCgroups) gather(ctx context.Context) error {
	if _, err := c.tree.Ensure(ctx, cgroup.Node{Name: c.system}); err != nil {
		return err
	}
	var last error
	for range gatherRounds {
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

// isKernels reports whether a process is a kernel thread or has ended. The file exe is not read,
// because that needs CAP_SYS_PTRACE.
func (c *systemCgroups) isKernels(pid int) bool {
	kernels, err := procfs.KernelThread(c.proc.FS(), pid)
	return err != nil || kernels
}
