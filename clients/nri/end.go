package main

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/berthd/berth/clients/nri/policy"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
)

// What happens to the containers when berth-nri ends (--release-at-end).
const (
	releaseNever   = "never"   // containers keep their CPUs: an upgrade, or a restart
	releaseAlways  = "always"  // containers get all CPUs again
	releaseRemoved = "removed" // as always, if the DaemonSet has been removed from the node
)

const (
	// askTimeout bounds the check whether the DaemonSet was removed, and releaseTimeout the
	// moves. Together they are shorter than the grace period of a pod (30 s).
	callTimeout    = 5 * time.Second
	releaseTimeout = 15 * time.Second
)

// checkEnd checks the flags.
func (o *options) checkEnd() error {
	namespace, name, ok := strings.Cut(o.daemonSet, "/")
	switch o.release {
	case releaseNever, releaseAlways:
	case releaseRemoved:
		if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
			return errdefs.Invalidf("--daemon-set %q: expected NAMESPACE/NAME, because --release-at-end is %s", o.daemonSet, releaseRemoved)
		}
	default:
		return errdefs.Invalidf("--release-at-end %q: expected %s, %s or %s", o.release, releaseNever, releaseAlways, releaseRemoved)
	}
	return nil
}

// atEnd does what --release-at-end says.
func (o *options) atEnd(ctx context.Context, p *policy.Policy, runtime policy.Updater, server *apiServer, log *slog.Logger) {
	if o.release == releaseNever {
		return
	}
	if o.release == releaseRemoved {
		removed, err := server.removed(ctx)
		if err != nil {
			log.Warn("it is unknown whether the DaemonSet was removed; the containers stay on their CPUs", "daemon_set", o.daemonSet,
				"error", err)
		}
		if !removed {
			return
		}
	}
	if o.publish {
		if err := server.deleteTopology(ctx); err != nil {
			log.Info("the NodeResourceTopology object is left to the garbage collector, which removes it with the namespace", "node",
				o.nodeName, "error", err)
		}
	}
	if server == nil {
		log.Debug("there is no service account, so the node has no condition")
	} else if err := (&condition{server: server}).remove(ctx); err != nil {
		log.Info("the node keeps the condition "+conditionType+"; docs/kubernetes.md says how to remove it", "node", o.nodeName, "error",
			err)
	}
	if err := p.Standby(); err != nil {
		log.Info("the containers stay on the CPUs that the kubelet has assigned", "reason", err)
		return
	}
	all, err := everything(sysDevices, cmp.Or(o.cgroups, "/sys/fs/cgroup"))
	if err == nil {
		releasing, cancel := context.WithTimeout(ctx, releaseTimeout)
		defer cancel()
		if !p.Requests() {
			runtime = registration{o.socket, o.name + "-release", o.index, logger{log, &outage{}}}
		}
		err = p.Release(releasing, runtime, all)
	}
	if err != nil {
		log.Error("move the containers back to all CPUs failed", "error", err)
	}
}

// sysDevices has the CPUs and memory nodes that the kernel shows.
const sysDevices = "/sys/devices/system"

// online reads the CPUs of the node.
func online() (cpuset.Set, error) { return readCPUs(sysDevices + "/cpu/online") }

// everything returns the CPUs and memory nodes of the machine. CPUs that are offline are among them with
// cgroup v2, where a container gets them when they come back (cgroup-v2.rst of the kernel: cpuset.cpus).
// Version 1 refuses them. A kernel without NUMA has no nodes.
func everything(dir, cgroups string) (all policy.Everything, err error) {
	if all.Online, err = readCPUs(dir + "/cpu/online"); err != nil {
		return all, err
	}
	all.CPUs = all.Online
	if _, err := os.Stat(filepath.Join(cgroups, "cgroup.controllers")); err == nil {
		if all.CPUs, err = readCPUs(dir + "/cpu/possible"); err != nil {
			return all, err
		}
	}
	mems, err := os.ReadFile(dir + "/node/has_memory")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return all, err
	}
	all.Mems = strings.TrimSpace(string(mems))
	return all, nil
}

// readCPUs reads a list of CPUs of the kernel.
func readCPUs(path string) (cpuset.Set, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return cpuset.Set{}, err
	}
	return cpuset.Parse(strings.TrimSpace(string(text)))
}
