package reconcile

import (
	"context"
	"os"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
)

// Listed is a cgroup outside those of pods that the configuration names.
type Listed struct {
	Name cgroup.Name
	// Field is the configuration field.
	Field string
	// Plain means that it is accessed as a plain directory with every driver.
	Plain bool
}

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

// listed returns a cgroup that the configuration names.
func (l *Loop) listed(name cgroup.Name) (Listed, bool) {
	i := slices.IndexFunc(l.Listed, func(o Listed) bool { return o.Name.Equal(name) })
	if i < 0 {
		return Listed{}, false
	}
	return l.Listed[i], true
}

// treeOf returns the tree through which a cgroup is accessed.
func (l *Loop) treeOf(name cgroup.Name) cgroup.Tree {
	if o, ok := l.listed(name); ok && o.Plain && l.Plain != nil {
		return l.Plain
	}
	return l.Tree
}

// inside refuses cgroups outside the configured root, unless the configuration names them,
// and cgroups of other managers.
func (l *Loop) inside(name cgroup.Name) error {
	if err := name.Check(); err != nil {
		return err
	}
	if i := slices.IndexFunc(name, isControlFile); i >= 0 {
		return errdefs.Invalidf("cgroup %s: %q is the name of a control file, not of a cgroup", name, name[i])
	}
	_, named := l.listed(name)
	root := l.Layout.Root()
	switch {
	case named, name.Within(l.Layout.Pods()):
		return nil
	case !name.Within(root):
		return errdefs.Invalidf("cgroup %s is neither below %s (cgroups.root) nor named by the configuration (%s)", name, root,
			l.listedNames())
	}
	if whose := l.others(name); whose != "" {
		return errdefs.Preconditionf("cgroup %s is %s: reach it there", name, whose)
	}
	return nil
}

func (l *Loop) listedNames() string {
	if len(l.Listed) == 0 {
		return "which names none"
	}
	var names []string
	for _, o := range l.Listed {
		names = append(names, o.Name.String())
	}
	return strings.Join(names, ", ")
}

// others returns the manager to which a cgroup belongs; empty if it is berth's or
// unmanaged.
func (l *Loop) others(name cgroup.Name) string {
	if name.IsRoot() {
		return "the root of the tree and the kernel's"
	}
	for _, c := range name {
		if slices.ContainsFunc(unitSuffixes, func(suffix string) bool { return strings.HasSuffix(c, suffix) }) {
			return "systemd's"
		}
	}
	first, _, _ := strings.Cut(name[0], ".")
	if who := managersOfTheTree[first]; who != "" && l.Layout.Root().IsRoot() {
		return who + "'s"
	}
	return ""
}

// removable refuses the removal of a cgroup with processes that do not belong to the
// caller. The caller does not hold mu.
func (l *Loop) removable(ctx context.Context, name cgroup.Name) error {
	if err := l.enter(ctx); err != nil {
		return err
	}
	err := l.mine(name)
	l.mu.Unlock()
	if err != nil {
		return err
	}
	if l.Layout.Pods().Within(name) {
		return errdefs.Preconditionf("cgroup %s cannot be removed: the cgroup of all pods, %s, lies in it", name, l.Layout.Pods())
	}
	for _, o := range l.Listed {
		if o.Name.Within(name) {
			return errdefs.Preconditionf("cgroup %s cannot be removed: the configuration names %s (%s)", name, o.Name, o.Field)
		}
	}
	if l.Unseen {
		return nil
	}
	pids, err := l.Tree.Procs(ctx, name)
	if err == nil && slices.Contains(pids, os.Getpid()) {
		err = errdefs.Preconditionf("cgroup %s cannot be removed: berthd itself runs in it", name)
	}
	return err
}
