package kubeletnode

import (
	"io/fs"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/host/procfs"
	"github.com/berthd/berth/server/internal/nodecheck"
)

// The most that is read of what runs: containers, cgroups below a container, and threads.
const (
	mostContainers = 10_000
	mostCgroups    = 1_000
	mostThreads    = 200_000
)

// kernel reads what the kernel does with the containers of pods.
type kernel struct {
	root fs.FS
	// cpus and quotas are the trees with the files of these controllers, below the root. v2 has one for both.
	cpus, quotas string
	v2           bool
	uptime       time.Duration
	threads      int
}

// Running reads the containers of pods with what the kernel lets them do. Errors are of class NotFound if there are no cgroups of pods, as
// in a copy of a node's files, or none of their processes can be seen, and of class Exhausted if there is more than is read.
func Running(root fs.FS, c config.Config) ([]nodecheck.Running, error) {
	files := regularIn(root)
	defer files.close()
	k := kernel{root: files}
	if !k.mounted() {
		return nil, errdefs.NotFoundf("there are no cgroups below /sys/fs/cgroup")
	}
	k.uptime = Uptime(root) // without it the start of containers is not known
	out, found, pods := []nodecheck.Running{}, false, 0
	for _, driver := range []cgroup.Driver{cgroup.Systemd, cgroup.Cgroupfs} {
		layout, err := cgroup.NewLayout(c.Cgroups.Root, driver)
		if err != nil {
			continue // a root that this driver cannot write
		}
		for _, class := range workload.QoSClasses {
			tier, err := layout.Literal(layout.Tier(class))
			if err != nil {
				continue
			}
			entries, err := k.dirs(tier)
			if err != nil {
				continue // no pod of this class, or the other driver's
			}
			found = true
			for _, name := range entries {
				at := path.Join(tier, name)
				uid, ok := layout.PodUID(driver.Parse(at))
				if !ok {
					continue
				}
				pods++
				if out, err = k.pod(out, uid, at); err != nil {
					return nil, err
				}
			}
		}
	}
	if !found {
		return nil, errdefs.NotFoundf("there are no cgroups of pods below /%s", k.cpus)
	}
	if pods > 0 && len(out) == 0 {
		return nil, errdefs.NotFoundf("the cgroups of pods have no containers: a runtime with another cgroup driver than the kubelet's has " +
			"them elsewhere (cgroupDriver; SystemdCgroup in containerd's config.toml)")
	}
	if len(out) > 0 && k.threads == 0 {
		return nil, errdefs.NotFoundf("the processes of containers cannot be read below /proc")
	}
	return out, nil
}

// Uptime is the time since the node's boot; zero if it is not known. It does not change in a copy of a node's files.
func Uptime(root fs.FS) time.Duration {
	files := regularIn(root)
	defer files.close()
	proc, err := fs.Sub(files, "proc")
	if err != nil {
		return 0
	}
	at, err := procfs.Uptime(proc)
	if err != nil {
		return 0
	}
	return at
}

// mounted finds the trees of the controllers.
func (k *kernel) mounted() bool {
	const tree = "sys/fs/cgroup"
	if _, err := fs.Stat(k.root, path.Join(tree, "cgroup.controllers")); err == nil {
		k.cpus, k.quotas, k.v2 = tree, tree, true
		return true
	}
	k.cpus, k.quotas = path.Join(tree, "cpuset"), path.Join(tree, "cpu")
	_, err := fs.Stat(k.root, k.cpus)
	return err == nil
}

// dirs are the names of the cgroups below one.
func (k *kernel) dirs(at string) (names []string, err error) {
	entries, err := fs.ReadDir(k.root, path.Join(k.cpus, at))
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// pod adds the containers of a pod.
func (k *kernel) pod(out []nodecheck.Running, uid, at string) ([]nodecheck.Running, error) {
	names, err := k.dirs(at)
	if err != nil {
		return out, nil // it has ended
	}
	for _, name := range names {
		if strings.Contains(name, "conmon") {
			continue // CRI-O's monitor of a container
		}
		if len(out) == mostContainers {
			return nil, errdefs.Exhaustedf("there are more than %d containers", mostContainers)
		}
		c := nodecheck.Running{Pod: uid, ID: containerID(name), Cgroup: path.Join(at, name)}
		own := k.own(c.Cgroup)
		c.CPUs = inherited(k, own, []string{"cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"}, cpuset.Parse)
		c.Nodes = inherited(k, own, []string{"cpuset.mems.effective", "cpuset.effective_mems", "cpuset.mems"}, numa.Parse)
		c.Quota = k.quota(c.Cgroup) || k.quota(own)
		if err := k.processes(&c); err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

// own is the cgroup that has a container's values. On cgroup v2 crun makes one below the scope, and not every version changes the scope's,
// too.
func (k *kernel) own(at string) string {
	below := path.Join(at, "container")
	if _, err := fs.Stat(k.root, path.Join(k.cpus, below, "cgroup.procs")); err != nil || !k.v2 {
		return at
	}
	if text, err := readFile(k.root, path.Join(k.cpus, at, "cgroup.procs")); err != nil || len(strings.TrimSpace(string(text))) > 0 {
		return at
	}
	return below
}

// containerID is the runtime's name of a container, from its cgroup: ID, RUNTIME-ID, or one of these with .scope.
func containerID(name string) string {
	name = strings.TrimSuffix(name, ".scope")
	return name[strings.LastIndexByte(name, '-')+1:]
}

// inherited parses the first of the files that a cgroup has, or the nearest one above it that has a value.
func inherited[T any](k *kernel, at string, files []string, parse func(string) (T, error)) (value T) {
	for ; ; at = path.Dir(at) {
		for _, file := range files {
			text, err := readFile(k.root, path.Join(k.cpus, at, file))
			if err != nil || len(strings.TrimSpace(string(text))) == 0 {
				continue
			}
			if value, err = parse(strings.TrimSpace(string(text))); err == nil {
				return value
			}
		}
		if at == "/" {
			return value
		}
	}
}

// quota reports whether a cgroup has a limit on CPU time.
func (k *kernel) quota(at string) bool {
	file := "cpu.cfs_quota_us"
	if k.v2 {
		file = "cpu.max"
	}
	text, err := readFile(k.root, path.Join(k.quotas, at, file))
	limit, _, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	n, notANumber := strconv.Atoi(limit)
	return err == nil && notANumber == nil && n > 0
}

// processes adds the threads of a container, and how long it has been running.
func (k *kernel) processes(c *nodecheck.Running) error {
	groups, oldest, kinds := []string{c.Cgroup}, time.Duration(-1), map[string]int{}
	for i := 0; i < len(groups); i++ {
		below, err := k.dirs(groups[i])
		if err != nil {
			continue
		}
		for _, name := range below {
			groups = append(groups, path.Join(groups[i], name))
		}
		if len(groups) > mostCgroups {
			return errdefs.Exhaustedf("cgroup %s has more than %d cgroups", c.Cgroup, mostCgroups)
		}
		text, err := readFile(k.root, path.Join(k.cpus, groups[i], "cgroup.procs"))
		if err != nil {
			continue // it has ended
		}
		for _, id := range strings.Fields(string(text)) {
			switch pid, err := strconv.Atoi(id); {
			case err != nil || pid < 0:
				continue
			case pid == 0:
				return errdefs.NotFoundf("the processes of cgroup %s are in a PID namespace that is not this one's: run it in the node's (hostPID)",
					c.Cgroup)
			}
			if err := k.threadsOf(c, path.Join("proc", id), kinds); err != nil {
				return err
			}
			if began, err := k.began(path.Join("proc", id)); err == nil && (oldest < 0 || began < oldest) {
				oldest = began
			}
		}
	}
	if oldest >= 0 && k.uptime > oldest {
		c.Age = k.uptime - oldest
	}
	return nil
}

// threadsOf adds the threads of a process, those of one name and the same CPUs as one kind. What has ended is left out.
func (k *kernel) threadsOf(c *nodecheck.Running, process string, kinds map[string]int) error {
	tasks, err := fs.ReadDir(k.root, path.Join(process, "task"))
	if err != nil {
		return nil
	}
	for _, task := range tasks {
		if k.threads++; k.threads > mostThreads {
			return errdefs.Exhaustedf("there are more than %d threads", mostThreads)
		}
		text, err := readFile(k.root, path.Join(process, "task", task.Name(), "status"))
		if err != nil {
			continue
		}
		t := nodecheck.Threads{Count: 1}
		for line := range strings.Lines(string(text)) {
			switch key, value, _ := strings.Cut(line, ":"); key {
			case "Name":
				t.Command = strings.TrimSpace(value)
			case "Cpus_allowed_list":
				t.CPUs, err = cpuset.Parse(strings.TrimSpace(value))
			}
		}
		if err != nil {
			continue
		}
		kind := t.CPUs.String() + " " + t.Command
		if i, ok := kinds[kind]; ok {
			c.Threads[i].Count++
			continue
		}
		kinds[kind] = len(c.Threads)
		c.Threads = append(c.Threads, t)
	}
	return nil
}

// began is when a process began, since the boot.
func (k *kernel) began(process string) (time.Duration, error) {
	text, err := readFile(k.root, path.Join(process, "stat"))
	if err != nil {
		return 0, err
	}
	return procfs.Began(string(text))
}

// address is the form of a PCI address, which device plugins have as the id of a network function.
var address = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// mostAddresses is how many devices are looked up.
const mostAddresses = 4096

// PCINodes returns the NUMA nodes of devices that the kernel knows by their ids, which are PCI addresses.
func PCINodes(root fs.FS, devices kubelet.DeviceState) map[string]int {
	files := regularIn(root)
	defer files.close()
	out, left := map[string]int{}, mostAddresses
	for _, e := range devices.Entries {
		for _, ids := range e.IDs {
			for _, id := range ids {
				if !address.MatchString(id) {
					continue
				}
				if left--; left < 0 {
					return out
				}
				text, err := fs.ReadFile(files, path.Join("sys/bus/pci/devices", id, "numa_node"))
				if node, bad := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && bad == nil && node >= 0 {
					out[id] = node // -1 where the firmware does not tell
				}
			}
		}
	}
	return out
}
