package cgroupfs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
)

// Driver is the kernel's tree as a cgroup.Tree. It is safe for concurrent use and
// remembers nothing but where the hierarchies are, and open directories and files.
type Driver struct {
	tree
	values      [][]string // the control files with values, by hierarchy
	dirs        *openDirs
	killTimeout time.Duration
	setter      Setter // nil if the tree is only read
}

var _ cgroup.Tree = (*Driver)(nil)

// tree is what is mounted, and the access to its directories and files by cgroup and hierarchy.
type tree struct {
	mount       string
	root        *directory  // of the mount
	hierarchies []hierarchy // exactly one on v2
	runtimes    []hierarchy // of v1, where only runtimes make cgroups
	facts       cgroup.Facts
	needed      []string // on v2, the controllers a valid cgroup has
}

// hierarchy is one mounted tree of directories.
type hierarchy struct {
	// dir is its mount point below tree.mount, "." on v2.
	dir string
	// controllers are the v1 controllers mounted there. "" is the unified hierarchy next to v1's,
	// "name=systemd" is systemd's own.
	controllers []string
}

func (h hierarchy) has(controller string) bool { return slices.Contains(h.controllers, controller) }

// path gives the directory of a cgroup below tree.mount.
func (h hierarchy) path(name cgroup.Name) string { return filepath.Join(h.below(name)...) }

// below gives the components of that path.
func (h hierarchy) below(name cgroup.Name) cgroup.Name {
	if h.dir == "." {
		return name
	}
	return slices.Concat(strings.Split(h.dir, "/"), name)
}

// absolute gives the directory of a cgroup to the library.
func (t *tree) absolute(h hierarchy, name cgroup.Name) string {
	return filepath.Join(t.mount, h.path(name))
}

// Open detects the tree's version and controllers. A missing required controller, or a mount that
// is no cgroup tree, is an error of class Unsupported that names it. Close the driver after its
// last use.
func Open(o Options) (*Driver, error) {
	if o.Mount == "" {
		o.Mount = defaultMount
	}
	if o.KillTimeout == 0 {
		o.KillTimeout = defaultKillTimeout
	}
	mount, err := filepath.EvalSymlinks(o.Mount)
	if err != nil {
		return nil, errdefs.Unsupportedf("open the cgroup tree: %w", err)
	}
	root, err := openMount(mount)
	if err != nil {
		return nil, errdefs.Unsupportedf("open the cgroup tree: %w", err)
	}
	d := &Driver{tree: tree{mount: mount, root: root}, killTimeout: o.KillTimeout, setter: o.Setter}
	if err := d.detect(o.Required); err != nil {
		_ = root.Close()
		return nil, fmt.Errorf("open the cgroup tree at %s: %w", mount, err)
	}
	d.needed = slices.DeleteFunc(d.needed, func(c string) bool { return slices.Contains(o.OnDemand, c) })
	if err := d.openMounts(); err != nil {
		_ = root.Close()
		return nil, fmt.Errorf("open the cgroup tree at %s: %w", mount, err)
	}
	return d, nil
}

// Facts describes the tree.
func (d *Driver) Facts() cgroup.Facts { return d.facts }

// Close closes the mount. The cgroups stay.
func (d *Driver) Close() error {
	if d.dirs != nil {
		d.dirs.Close()
	}
	return d.root.Close()
}

// detect fills in everything that follows from the mount.
func (t *tree) detect(required []string) error {
	t.facts = cgroup.Facts{Driver: cgroup.Cgroupfs, PageBytes: int64(os.Getpagesize())}
	var stat unix.Statfs_t
	if err := unix.Statfs(t.mount, &stat); err != nil {
		return errdefs.Unsupportedf("statfs: %w", err)
	}
	var err error
	if stat.Type == unix.CGROUP2_SUPER_MAGIC {
		err = t.detectV2()
	} else {
		var mounts []*mountinfo.Info
		if mounts, err = mountinfo.GetMounts(cgroupMounts); err != nil {
			return errdefs.Unavailablef("list the mounts: %w", err)
		}
		if err = t.detectV1(mounts); err == nil {
			err = t.listV1(mounts)
		}
	}
	if err == nil {
		err = t.require(required)
	}
	if err != nil {
		return err
	}
	if slices.Contains(t.facts.Controllers, "hugetlb") {
		t.facts.HugePageSizes, err = hugePageSizes("/sys/kernel/mm/hugepages")
	}
	return err
}

// require refuses a tree that lacks a controller. What berth promises of CPUs and
// memory would stand in the ledger only.
func (t *tree) require(controllers []string) error {
	if controllers == nil {
		controllers = []string{"cpu", "cpuset", "memory"}
		if t.facts.Version == cgroup.V1 {
			controllers = append(controllers, "cpuacct")
		}
	}
	missing := slices.DeleteFunc(slices.Clone(controllers), func(c string) bool { return slices.Contains(t.facts.Controllers, c) })
	if len(missing) > 0 {
		return errdefs.Unsupportedf("cgroup v%d without the controllers %q, only %q are there", t.facts.Version, missing,
			t.facts.Controllers)
	}
	return nil
}

// v2Controllers are the controllers of berth's values. A valid cgroup has those that the whole
// tree has.
var v2Controllers = []string{"cpu", "cpuset", "hugetlb", "memory", "pids"}

func (t *tree) detectV2() error {
	t.facts.Version = cgroup.V2
	t.hierarchies = []hierarchy{{dir: "."}}
	text, err := t.root.read("cgroup.controllers")
	if err != nil {
		return errdefs.Unsupportedf("%w", err)
	}
	t.facts.Controllers = strings.Fields(text)
	slices.Sort(t.facts.Controllers)
	for _, c := range v2Controllers {
		if slices.Contains(t.facts.Controllers, c) {
			t.needed = append(t.needed, c)
		}
	}
	t.facts.Subsystems = subsystemsV2(t.mount, t.facts.Controllers)
	t.facts.SwapLimits = t.swapLimitsV2()
	var kernel unix.Utsname
	if err := unix.Uname(&kernel); err != nil {
		return errdefs.Unsupportedf("uname: %w", err)
	}
	t.facts.MovesMemory = cgroup.MovesMemoryV2(unix.ByteSliceToString(kernel.Release[:]))
	return nil
}

// swapLimitsV2 reports whether the kernel has swap limits. The root cgroup has no file for them,
// so berthd's own cgroup is checked, and then all others.
func (t *tree) swapLimitsV2() bool {
	const file = "memory.swap.max"
	if text, err := os.ReadFile("/proc/self/cgroup"); err == nil {
		for line := range strings.Lines(string(text)) {
			if own, ok := strings.CutPrefix(strings.TrimSpace(line), "0::/"); ok {
				if _, err := t.root.Stat(filepath.Join(own, file)); err == nil {
					return true
				}
			}
		}
	}
	children, err := t.root.list()
	return err == nil && slices.ContainsFunc(children, func(c string) bool {
		_, err := t.root.Stat(filepath.Join(c, file))
		return err == nil
	})
}

// cgroupMounts keeps the mounts of hierarchies.
var cgroupMounts = mountinfo.FSTypeFilter(v1Type, v2Type)

// The kernel's names of the two filesystems.
const v1Type, v2Type = "cgroup", "cgroup2"

func (t *tree) detectV1(mounts []*mountinfo.Info) error {
	t.facts.Version = cgroup.V1
	t.hierarchies = v1Hierarchies(t.mount, mounts, v1Controllers)
	t.runtimes = v1Hierarchies(t.mount, mounts, runtimeControllers)
	for _, h := range t.hierarchies {
		for _, c := range h.controllers {
			if c != "" && !strings.HasPrefix(c, "name=") {
				t.facts.Controllers = append(t.facts.Controllers, c)
			}
		}
	}
	if len(t.facts.Controllers) == 0 {
		return errdefs.Unsupportedf("neither is it a cgroup2 mount nor are cgroup controllers mounted below it")
	}
	slices.Sort(t.facts.Controllers)
	if memory, ok := t.hierarchy("memory"); ok {
		_, err := t.root.Stat(filepath.Join(memory.dir, "memory.memsw.limit_in_bytes"))
		t.facts.SwapLimits = err == nil
	}
	t.facts.MovesMemory = true // see migrateWith
	return nil
}

// v1Controllers are the controllers in whose hierarchies cgroups are created: all controllers of
// the kubelet's library. Runtimes use the devices controller, for the device rules of containers.
var v1Controllers = []string{
	"cpuset", "memory", "cpu", "cpuacct", "pids", "blkio", "hugetlb", "net_cls", "net_prio", "perf_event", "freezer",
	"rdma", "misc", "name=systemd", unified,
}

// unified is the v2 hierarchy next to v1's, which has no controllers there.
const unified = ""

// runtimeControllers are used by runtimes. Runtimes remove their containers' cgroups there, but
// not those of pods.
var runtimeControllers = []string{"devices"}

// v1Hierarchies returns the hierarchies mounted below a directory. If a controller is mounted twice, the shorter path is used
// (kubernetes#95488).
func v1Hierarchies(mount string, mounts []*mountinfo.Info, controllers []string) []hierarchy {
	var found []hierarchy
	for _, m := range mounts {
		dir, err := filepath.Rel(mount, m.Mountpoint)
		if err != nil || dir == "." || strings.HasPrefix(dir, "..") {
			continue
		}
		switch m.FSType {
		case v2Type:
			if !slices.Contains(controllers, unified) {
				continue
			}
			found = append(found, hierarchy{dir, []string{unified}})
		case v1Type:
			options := strings.Split(m.VFSOptions, ",")
			options = slices.DeleteFunc(options, func(o string) bool { return !slices.Contains(controllers, o) })
			if len(options) > 0 {
				found = append(found, hierarchy{dir, options})
			}
		}
	}
	slices.SortStableFunc(found, func(a, b hierarchy) int { return len(a.dir) - len(b.dir) })
	seen := make(map[string]bool)
	found = slices.DeleteFunc(found, func(h hierarchy) bool {
		double := seen[h.controllers[0]]
		for _, c := range h.controllers {
			seen[c] = true
		}
		return double
	})
	slices.SortFunc(found, func(a, b hierarchy) int { return strings.Compare(a.dir, b.dir) })
	return found
}

// hierarchy returns the hierarchy of a controller.
func (t *tree) hierarchy(controller string) (hierarchy, bool) {
	if t.facts.Version == cgroup.V2 {
		return t.hierarchies[0], true
	}
	i := slices.IndexFunc(t.hierarchies, func(h hierarchy) bool { return h.has(controller) })
	if i < 0 {
		return hierarchy{}, false
	}
	return t.hierarchies[i], true
}

// hugePageSizes reads the kernel's page sizes from directory names such as
// hugepages-2048kB. No directory means no huge pages.
func hugePageSizes(dir string) ([]int64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		return nil, errdefs.Unavailablef("huge page sizes: %w", err)
	}
	var sizes []int64
	for _, e := range entries {
		text, found := strings.CutPrefix(e.Name(), "hugepages-")
		if !found {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSuffix(text, "kB"), 10, 64)
		if err != nil || kib <= 0 {
			return nil, errdefs.Unavailablef("huge page sizes: %s/%s has no size in kB", dir, e.Name())
		}
		sizes = append(sizes, kib<<10)
	}
	slices.Sort(sizes)
	return sizes, nil
}
