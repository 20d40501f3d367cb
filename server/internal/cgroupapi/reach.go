package cgroupapi

import (
	"context"
	"os"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/reconcile"
)

// unitSuffixes are the suffixes of systemd units with cgroups.
var unitSuffixes = []string{".slice", ".scope", ".service", ".socket", ".mount", ".swap"}

// managersOfTheTree use cgroups with these names, or with these names and a dot, directly
// below the root of the tree.
var managersOfTheTree = map[string]string{
	"system": "systemd", "user": "systemd", "machine": "systemd", "init": "systemd",
	"docker": "Docker", "libpod_parent": "Podman", "lxc": "LXC",
}

// controllers own the names of files in every cgroup: their own, or theirs and a dot and
// more. The kernel's list of cgroup v1 and v2, as systemd escapes them in names of units.
var controllers = []string{
	"cgroup", "cpu", "cpuacct", "cpuset", "memory", "pids", "io", "blkio", "hugetlb", "devices", "freezer",
	"net_cls", "net_prio", "perf_event", "rdma", "misc", "dmem", "debug",
}

// isControlFile reports whether an element of a name may be a control file of the cgroup
// above it, whatever the version. A directory of that name would stand where a reader
// expects the file.
func isControlFile(element string) bool {
	prefix, _, dotted := strings.Cut(element, ".")
	return slices.Contains([]string{"tasks", "notify_on_release", "release_agent"}, element) ||
		dotted && slices.Contains(controllers, prefix)
}

// managed returns why a cgroup must not be written by hand; empty if it may.
func (c *Cgroups) managed(t reconcile.Turn, name cgroup.Name) string {
	view := c.View()
	for _, class := range workload.QoSClasses {
		if name.Equal(c.Layout.Tier(class)) {
			return "it is the parent of pods; its values follow from them and from the configuration"
		}
	}
	if slices.ContainsFunc(t.Limits().Reserved, func(n cgroup.Node) bool { return n.Name.Equal(name) }) {
		return "its limits follow from the configuration (node.enforceNodeAllocatable)"
	}
	if id, ok := t.RuntimeContainer(name); ok {
		return "it belongs to container " + id + " of the container runtime"
	}
	if uid, ok := c.Layout.PodUID(name); ok {
		if p, here := view.Pod(uid); here && name.Parent().Equal(c.Layout.Tier(p.QoS)) {
			return "it belongs to an admitted pod: use Resize or Remove"
		}
	}
	for b := range view.Bindings() {
		if b.Own && c.Layout.Driver().Parse(b.CgroupPath).Equal(name) {
			return "it belongs to a container of an admitted pod: use Resize or Remove"
		}
	}
	return ""
}

// mine refuses cgroups that must not be written by hand.
func (c *Cgroups) mine(t reconcile.Turn, name cgroup.Name) error {
	if err := c.inside(name); err != nil {
		return err
	}
	if why := c.managed(t, name); why != "" {
		return errdefs.Preconditionf("cgroup %s cannot be written: %s", name, why)
	}
	return nil
}

// inside refuses cgroups outside the configured root, unless the configuration names them,
// and cgroups of other managers.
func (c *Cgroups) inside(name cgroup.Name) error {
	if err := name.Check(); err != nil {
		return err
	}
	if i := slices.IndexFunc(name, isControlFile); i >= 0 {
		return errdefs.Invalidf("cgroup %s: %q is the name of a control file, not of a cgroup", name, name[i])
	}
	named := slices.ContainsFunc(c.Listed, func(o reconcile.Listed) bool { return o.Name.Equal(name) })
	root := c.Layout.Root()
	switch {
	case named, name.Within(c.Layout.Pods()):
		return nil
	case !name.Within(root):
		return errdefs.Invalidf("cgroup %s is neither below %s (cgroups.root) nor named by the configuration (%s)", name, root,
			c.listedNames())
	}
	if whose := c.others(name); whose != "" {
		return errdefs.Preconditionf("cgroup %s is %s: reach it there", name, whose)
	}
	return nil
}

func (c *Cgroups) listedNames() string {
	if len(c.Listed) == 0 {
		return "which names none"
	}
	var names []string
	for _, o := range c.Listed {
		names = append(names, o.Name.String())
	}
	return strings.Join(names, ", ")
}

// others returns the manager to which a cgroup belongs; empty if it is berth's or
// unmanaged.
func (c *Cgroups) others(name cgroup.Name) string {
	if name.IsRoot() {
		return "the root of the tree and the kernel's"
	}
	for _, element := range name {
		if slices.ContainsFunc(unitSuffixes, func(suffix string) bool { return strings.HasSuffix(element, suffix) }) {
			return "systemd's"
		}
	}
	first, _, _ := strings.Cut(name[0], ".")
	if who := managersOfTheTree[first]; who != "" && c.Layout.Root().IsRoot() {
		return who + "'s"
	}
	return ""
}

// removable refuses the removal of a cgroup with processes that do not belong to the
// caller.
func (c *Cgroups) removable(ctx context.Context, name cgroup.Name) error {
	if err := c.Turn(ctx, func(t reconcile.Turn) error { return c.mine(t, name) }); err != nil {
		return err
	}
	if c.Layout.Pods().Within(name) {
		return errdefs.Preconditionf("cgroup %s cannot be removed: the cgroup of all pods, %s, lies in it", name, c.Layout.Pods())
	}
	for _, o := range c.Listed {
		if o.Name.Within(name) {
			return errdefs.Preconditionf("cgroup %s cannot be removed: the configuration names %s (%s)", name, o.Name, o.Field)
		}
	}
	if c.Unseen {
		return nil
	}
	pids, err := c.Tree.Procs(ctx, name)
	if err == nil && slices.Contains(pids, os.Getpid()) {
		err = errdefs.Preconditionf("cgroup %s cannot be removed: berthd itself runs in it", name)
	}
	return err
}
