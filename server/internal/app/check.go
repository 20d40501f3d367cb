package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/host/confine"
	"github.com/berthd/berth/server/internal/host/procfs"
	"github.com/berthd/berth/server/internal/runtime"
	"github.com/berthd/berth/server/internal/store"
)

// checkTimeout is how long Check waits for the container runtime.
const checkTimeout = 5 * time.Second

// Check runs the checks of a start without its effects, and returns all errors. Notes are the
// start's warnings, and the checks that were not possible. For a simulated machine the running
// system is not checked.
func Check(ctx context.Context, cfg config.Config) (notes []string, err error) {
	if cfg.Machine != "" {
		return nil, Validate(cfg)
	}
	a := &App{Config: cfg, Environment: Environment{Log: slog.New(slog.DiscardHandler)}}
	errs := []error{a.checkDirectories(ctx)}
	a.driver = cgroup.Driver(cfg.Cgroups.Driver)
	driver, note := a.checkRuntime(ctx)
	notes = append(notes, note...)
	if driver != "" {
		a.driver = driver
	}
	notes = append(notes, a.besideSystemd()...)
	if driver == "" && cfg.RuntimeEndpoint != "" {
		a.driver = cgroup.Cgroupfs // as in Validate
	}
	errs = append(errs, a.buildMachine(ctx), a.checkTree(), a.checkSystem(ctx))
	taken, note, err := a.checkSockets()
	notes = append(notes, note...)
	errs = append(errs, err, taken, a.checkAddress())
	if os.Geteuid() != 0 {
		notes = append(notes, fmt.Sprintf("checked as user %d: whether berthd has the rights that it needs is known only to the user that runs it", os.Geteuid()))
	} else if have, err := confine.Effective(); err == nil {
		notes = append(notes, lacking(cfg, have)...)
	}
	return notes, errors.Join(errs...)
}

// checkRuntime gets the cgroup driver from the container runtime. It overrides the configured
// one.
func (a *App) checkRuntime(ctx context.Context) (driver cgroup.Driver, notes []string) {
	endpoint := a.Config.RuntimeEndpoint
	if endpoint == "" {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	client, err := runtime.Dial(endpoint)
	if err != nil {
		return "", []string{fmt.Sprintf("runtimeEndpoint (--runtime-endpoint): %v", err)}
	}
	defer func() { _ = client.Close() }()
	found, _, err := client.Driver(ctx)
	switch {
	case err != nil:
		return "", []string{fmt.Sprintf("runtimeEndpoint (--runtime-endpoint): the runtime does not answer now, and a start waits %s for it: %v", runtimeTimeout, err)}
	case found == "":
		return "", []string{fmt.Sprintf("the container runtime does not report its cgroup driver; it must be cgroups.driver (--cgroup-driver), which is %s", a.Config.Cgroups.Driver)}
	case string(found) != a.Config.Cgroups.Driver:
		notes = append(notes, fmt.Sprintf("the container runtime's cgroup driver, %s, holds, not cgroups.driver (--cgroup-driver), which is %s", found, a.Config.Cgroups.Driver))
	}
	return found, notes
}

// besideSystemd reports where systemd and berthd would both write the root of the tree.
func (a *App) besideSystemd() []string {
	c := a.Config.Cgroups
	if _, err := os.Stat("/run/systemd/system"); err != nil || !realCgroups(a.Config) || a.driver != cgroup.Cgroupfs || c.Root != "/" {
		return nil
	}
	return []string{"systemd manages the cgroups of this machine, and cgroups.driver (--cgroup-driver) is cgroupfs: both write the root of the tree; use systemd, or a cgroups.root (--cgroup-root) of berthd's own"}
}

// checkSystem is checkHost without its effects.
func (a *App) checkSystem(ctx context.Context) error {
	if !realCgroups(a.Config) {
		return nil
	}
	proc, err := os.OpenRoot("/proc")
	if err != nil {
		return errdefs.Unavailablef("check the system: %w", err)
	}
	defer proc.Close()
	swapping, err := procfs.Swapping(proc.FS())
	errs := []error{err, refuseSwap(a.Config, swapping)}
	if a.Config.Node.FailCgroupV1 {
		// A tree that cannot be opened is refused by checkTree.
		if tree, facts, err := a.openTree(); err == nil {
			errs = append(errs, refuseV1(a.Config, facts.Version))
			if c, ok := tree.(io.Closer); ok {
				errs = append(errs, c.Close())
			}
		}
	}
	if a.Config.Node.KernelTunables == config.TunablesRequire {
		errs = append(errs, a.checkTunables(ctx, proc))
	}
	return errors.Join(errs...)
}

// checkSockets reports sockets that another program serves. Exempt are the sockets of a running
// berthd with the same state directory, and a socket that systemd passes to berthd.
func (a *App) checkSockets() (taken error, notes []string, err error) {
	proc := os.DirFS("/proc")
	if info, err := os.Stat(filepath.Join(a.Config.StateDir, store.LockFile)); err == nil {
		pid, err := procfs.FlockHolder(proc, info)
		if err != nil {
			return nil, nil, err
		}
		if pid != 0 {
			return nil, []string{fmt.Sprintf("berthd runs with this stateDir (process %d), so sockets and addresses are taken until it ends", pid)}, nil
		}
	}
	sockets := []struct{ field, path string }{
		{"listen (--listen)", a.Config.Listen},
		{"podResourcesDir (--pod-resources-dir)", a.Config.PodResourcesSocket()},
		{"devicePluginDir (--device-plugin-dir)", a.Config.DevicePluginSocket()},
	}
	if path, ok := a.Config.HTTPSocket(); ok {
		sockets = append(sockets, struct{ field, path string }{"http (--http)", path})
	}
	var errs []error
	for _, s := range sockets {
		if s.path == "" {
			continue // switched off
		}
		inode, err := procfs.Listening(proc, s.path)
		if err != nil {
			return nil, nil, err
		}
		switch {
		case inode == "":
		case procfs.HasSocket(proc, 1, inode):
			notes = append(notes, fmt.Sprintf("%s: systemd keeps %s for berthd", s.field, s.path))
		default:
			errs = append(errs, errdefs.Conflictf("%s: another process already serves %s: a kubelet (then start berthd with --beside=kubelet), or another berthd with the same path", s.field, s.path))
		}
	}
	return errors.Join(errs...), notes, nil
}

// checkAddress reports whether the address for metrics is free, unless a berthd that runs has it.
func (a *App) checkAddress() error {
	if _, ok := a.Config.HTTPSocket(); ok || a.Config.HTTP == "" {
		return nil
	}
	if info, err := os.Stat(filepath.Join(a.Config.StateDir, store.LockFile)); err == nil {
		if pid, err := procfs.FlockHolder(os.DirFS("/proc"), info); err == nil && pid != 0 {
			return nil
		}
	}
	l, err := net.Listen("tcp", a.Config.HTTP)
	if err != nil {
		return errdefs.Unavailablef("http (--http): %w", err)
	}
	return l.Close()
}
