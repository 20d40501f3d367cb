package app

import (
	"cmp"
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
	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/host/confine"
	"github.com/berthd/berth/server/internal/host/procfs"
	"github.com/berthd/berth/server/internal/privileges"
	"github.com/berthd/berth/server/internal/system"
)

// Validate checks a configuration against the machine without touching anything.
func Validate(s system.System, c config.Config) error {
	if err := checkMachine(c); err != nil {
		return err
	}
	return checkTree(s, c, driverToCheck(c, ""))
}

// checkMachine checks that the managers of a configuration can be made on its machine.
func checkMachine(c config.Config) error {
	found, facts, err := measure(c)
	if err == nil {
		_, err = setMaker{facts: facts}.checked(c, found, cpuset.Set{})
	}
	return err
}

// checkTree checks that this machine has the configured cgroup tree and controllers. With a
// simulated machine there is nothing to check.
func checkTree(s system.System, c config.Config, driver cgroup.Driver) error {
	if c.Machine != "" || !c.KernelCgroups() {
		return nil
	}
	tree, _, err := openTree(s, c, driver)
	if err != nil {
		return err
	}
	return closeTree(tree)
}

// driverToCheck is the cgroup driver with which a tree is checked. runtimes is the driver of the container runtime. If that is
// unknown, it is cgroupfs: the controllers are the same with both.
func driverToCheck(c config.Config, runtimes cgroup.Driver) cgroup.Driver {
	switch {
	case runtimes != "":
		return runtimes
	case c.RuntimeEndpoint != "":
		return cgroup.Cgroupfs
	}
	return cgroup.Driver(c.Cgroups.Driver)
}

func closeTree(tree cgroup.Tree) error {
	if c, ok := tree.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// checkTimeout is how long Check waits for the container runtime.
const checkTimeout = 5 * time.Second

// Check runs the checks of a start without its effects, and returns all errors. Notes are the
// start's warnings, and the checks that were not possible. For a simulated machine the running
// system is not checked.
func Check(ctx context.Context, s system.System, cfg config.Config) (notes []string, err error) {
	if cfg.Machine != "" {
		return nil, Validate(s, cfg)
	}
	runtimes, notes := checkRuntime(ctx, s, cfg)
	notes = append(notes, besideSystemd(cfg, cmp.Or(runtimes, cgroup.Driver(cfg.Cgroups.Driver)))...)
	driver := driverToCheck(cfg, runtimes)
	errs := []error{trust.CheckFields(cfg), checkMachine(cfg), checkTree(s, cfg, driver), checkSystem(ctx, s, cfg, driver)}
	taken, note, err := checkSockets(cfg)
	notes = append(notes, note...)
	errs = append(errs, err, taken)
	note, err = checkAddress(cfg)
	notes = append(notes, note...)
	errs = append(errs, err)
	if os.Geteuid() != 0 {
		notes = append(notes,
			fmt.Sprintf("checked as user %d: whether berthd has the rights that it needs is known only to the user that runs it",
				os.Geteuid()))
	} else if have, err := confine.Effective(); err == nil {
		notes = append(notes, privileges.Lacking(cfg, have)...)
	}
	return notes, errors.Join(errs...)
}

// checkRuntime gets the cgroup driver from the container runtime. It overrides the configured
// one.
func checkRuntime(ctx context.Context, s system.System, c config.Config) (driver cgroup.Driver, notes []string) {
	endpoint := c.RuntimeEndpoint
	if endpoint == "" {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	client, err := s.Runtime(endpoint)
	if err != nil {
		return "", []string{fmt.Sprintf("runtimeEndpoint (--runtime-endpoint): %v", err)}
	}
	defer func() { _ = client.Close() }()
	found, _, err := client.Driver(ctx)
	switch {
	case err != nil:
		return "", []string{fmt.Sprintf("runtimeEndpoint (--runtime-endpoint): the runtime does not answer now, and a start waits %s for it: %v", runtimeTimeout, err)}
	case found == "":
		return "", []string{fmt.Sprintf("the container runtime does not report its cgroup driver; it must be cgroups.driver (--cgroup-driver), which is %s", c.Cgroups.Driver)}
	case string(found) != c.Cgroups.Driver:
		notes = append(notes,
			fmt.Sprintf("the container runtime's cgroup driver, %s, holds, not cgroups.driver (--cgroup-driver), which is %s", found,
				c.Cgroups.Driver))
	}
	return found, notes
}

// besideSystemd reports where systemd and berthd would both write the root of the tree.
func besideSystemd(c config.Config, driver cgroup.Driver) []string {
	if _, err := os.Stat("/run/systemd/system"); err != nil || !c.KernelCgroups() || driver != cgroup.Cgroupfs || c.Cgroups.Root != "/" {
		return nil
	}
	return []string{"systemd manages the cgroups of this machine, and cgroups.driver (--cgroup-driver) is cgroupfs: both write the root of the tree; use systemd, or a cgroups.root (--cgroup-root) of berthd's own"}
}

// checkSystem is checkHost without its effects.
func checkSystem(ctx context.Context, s system.System, c config.Config, driver cgroup.Driver) error {
	if !c.KernelCgroups() {
		return nil
	}
	proc, err := os.OpenRoot("/proc")
	if err != nil {
		return errdefs.Unavailablef("check the system: %w", err)
	}
	defer proc.Close()
	swapping, err := procfs.Swapping(proc.FS())
	errs := []error{err, refuseSwap(c, swapping)}
	if c.Node.FailCgroupV1 {
		// A tree that cannot be opened is refused by checkTree.
		if tree, facts, err := openTree(s, c, driver); err == nil {
			errs = append(errs, refuseV1(c, facts.Version), closeTree(tree))
		}
	}
	if c.Node.KernelTunables == config.TunablesRequire {
		errs = append(errs, checkTunables(ctx, c, proc, slog.New(slog.DiscardHandler)))
	}
	return errors.Join(errs...)
}

// checkSockets reports sockets that another program serves. Exempt are the sockets of a running
// berthd with the same state directory, and a socket that systemd passes to berthd.
func checkSockets(c config.Config) (taken error, notes []string, err error) {
	proc := os.DirFS("/proc")
	if info, err := os.Stat(filepath.Join(c.StateDir, config.LockFile)); err == nil {
		pid, err := procfs.FlockHolder(proc, info)
		if err != nil {
			return nil, nil, err
		}
		if pid != 0 {
			return nil, []string{fmt.Sprintf("berthd runs with this stateDir (process %d), so sockets and addresses are taken until it ends", pid)}, nil
		}
	}
	sockets := []struct{ field, path string }{
		{"listen (--listen)", c.Listen},
		{"podResourcesDir (--pod-resources-dir)", c.PodResourcesSocket()},
		{"devicePluginDir (--device-plugin-dir)", c.DevicePluginSocket()},
	}
	if path, ok := c.HTTPSocket(); ok {
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

// checkAddress tries the address for metrics, unless a berthd that runs has it. An address that another program has taken, or that
// the machine does not have, is a note, because a start tries it again.
func checkAddress(c config.Config) (notes []string, err error) {
	if _, ok := c.HTTPSocket(); ok || c.HTTP == "" {
		return nil, nil
	}
	if info, err := os.Stat(filepath.Join(c.StateDir, config.LockFile)); err == nil {
		if pid, err := procfs.FlockHolder(os.DirFS("/proc"), info); err == nil && pid != 0 {
			return nil, nil
		}
	}
	l, err := net.Listen("tcp", c.HTTP)
	if mayComeFree(err) {
		return []string{fmt.Sprintf("http (--http): another program has the address, or the machine does not have it, so metrics and health are not served until it is free: %v", err)}, nil
	}
	if err != nil {
		return nil, errdefs.Unavailablef("http (--http): %w", err)
	}
	return nil, l.Close()
}
