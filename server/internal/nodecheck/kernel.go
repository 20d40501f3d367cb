package nodecheck

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/numa"
)

// Running is a container as the kernel has it: a cgroup below that of a pod.
type Running struct {
	// Pod is the pod's uid, ID the runtime's name of the container, and Cgroup its path.
	Pod, ID, Cgroup string
	// CPUs and Nodes are those on which it may run and have memory.
	CPUs  cpuset.Set
	Nodes numa.Mask
	// Quota is whether its CPU time is limited.
	Quota bool
	// Age of its oldest process; zero if it is not known.
	Age     time.Duration
	Threads []Threads
}

// Threads are those of a container with the same name and the same CPUs.
type Threads struct {
	Command string
	CPUs    cpuset.Set
	Count   int
}

// settling is how long the kubelet may take to apply a change to running containers: the default of cpuManagerReconcilePeriod.
const settling = 10 * time.Second

// pauses are the processes that keep the sandbox of a pod, of most runtimes and of OpenShift's. The kubelet does not limit their CPUs.
var pauses = []string{"pause", "pod"}

// busy are the containers that run something and are not just starting. The sandbox of a pod is none of them.
func (n *node) busy() (out []Running) {
	for _, c := range n.Kernel {
		named := n.Names[c.ID] != ""
		runs := slices.ContainsFunc(c.Threads, func(t Threads) bool { return named || !slices.Contains(pauses, t.Command) })
		if runs && (c.Age == 0 || c.Age > settling) {
			out = append(out, c)
		}
	}
	return out
}

// running names a container that runs.
func (n *node) running(c Running) string {
	if name := n.Names[c.ID]; name != "" {
		return n.owner(c.Pod, name)
	}
	return n.owner(c.Pod, c.ID)
}

// ephemeral reports whether a container is known to be none of its pod's specification: the kubelet sets the CPUs of an ephemeral
// container when it makes it, and not again.
func (n *node) ephemeral(c Running) bool {
	pod, name := n.pods[c.Pod], n.Names[c.ID]
	return name != "" && pod != nil && len(pod.Containers) > 0 && pod.Container(name) == nil
}

// granted are the CPUs that the kubelet has given to a container that runs. They are exact if the kernel's have to be the same: those of a
// container without a known name may be those of any in its pod.
func (n *node) granted(c Running) (set cpuset.Set, exact bool) {
	own, whole := n.CPU.Containers[c.Pod], n.CPU.Pods[c.Pod]
	if name := n.Names[c.ID]; name != "" {
		if set, ok := own[name]; ok {
			return set, true
		}
		if !whole.IsEmpty() {
			return whole, false
		}
		return n.CPU.Shared, true
	}
	set = whole.Union(n.CPU.Shared)
	for _, o := range own {
		set = set.Union(o)
	}
	return set, len(own) == 0 && whole.IsEmpty()
}

// openTo are the exclusive CPUs of others on which a container may run, by their owner. The containers of one pod may share CPUs that they
// have one after the other, or that the pod has as a whole.
func (n *node) openTo(c Running, holders []holder, on cpuset.Set) (cpus cpuset.Set, owners []string) {
	granted, _ := n.granted(c)
	for _, h := range holders {
		if h.pod == c.Pod && (h.container == "" || h.container == n.Names[c.ID]) {
			continue
		}
		if open := h.set.Intersect(on).Minus(granted); !open.IsEmpty() {
			cpus, owners = cpus.Union(open), append(owners, n.owner(h.pod, h.container))
		}
	}
	return cpus, owners
}

// openCPUs finds exclusive CPUs on which another container may run.
func openCPUs(n *node) (out []found) {
	holders := n.holders()
	for _, c := range n.busy() {
		cpus, owners := n.openTo(c, holders, c.CPUs)
		if cpus.IsEmpty() {
			continue
		}
		out = append(out, found{n.running(c), fmt.Sprintf("it may run on CPUs %s, which are exclusive CPUs of %s", cpus, few(owners)),
			append(n.evidence(c), threadsOn(c, cpus)...)})
	}
	return out
}

// otherCPUs finds containers with other CPUs than the kubelet has given to them.
func otherCPUs(n *node) (out []found) {
	if !n.static() {
		return nil
	}
	for _, c := range n.busy() {
		granted, exact := n.granted(c)
		if granted = granted.Intersect(n.Machine.CPUs()); !exact || n.ephemeral(c) || granted.IsEmpty() || c.CPUs.IsEmpty() ||
			c.CPUs == granted {
			continue
		}
		out = append(out, found{n.running(c), fmt.Sprintf("it may run on CPUs %s, and the kubelet has given it CPUs %s", c.CPUs, granted),
			n.evidence(c)})
	}
	return out
}

// otherNodes finds containers whose memory comes from other NUMA nodes than the kubelet has given to them.
func otherNodes(n *node) (out []found) {
	if !n.staticMemory() {
		return nil
	}
	for _, c := range n.busy() {
		var granted numa.Mask
		for _, b := range n.Memory.Containers[c.Pod][n.Names[c.ID]] {
			granted = granted.Union(b.Nodes)
		}
		if granted.IsEmpty() || c.Nodes.IsEmpty() || c.Nodes == granted {
			continue
		}
		out = append(out, found{n.running(c), fmt.Sprintf("its memory may come from NUMA nodes %s, and the kubelet has given it memory on %s",
			c.Nodes, granted), []string{fmt.Sprintf("memoryManagerPolicy is %s", memory.PolicyStatic), "its cgroup is " + c.Cgroup}})
	}
	return out
}

// pinnedThreads finds threads that only run on exclusive CPUs of others, by their own choice.
func pinnedThreads(n *node) (out []found) {
	holders := n.holders()
	for _, c := range n.busy() {
		var evidence []string
		var cpus cpuset.Set
		owners := map[string]bool{}
		taken := map[cpuset.Set]bool{c.CPUs: false, {}: false}
		for _, t := range c.Threads {
			others, known := taken[t.CPUs]
			if !known {
				open, of := n.openTo(c, holders, t.CPUs)
				if others = open == t.CPUs; others {
					cpus = cpus.Union(open)
					for _, o := range of {
						owners[o] = true
					}
				}
				taken[t.CPUs] = others
			}
			if others {
				evidence = append(evidence, fmt.Sprintf("%s: CPUs %s", threads(t), t.CPUs))
			}
		}
		if len(evidence) > 0 {
			out = append(out, found{n.running(c), fmt.Sprintf("it has threads that run only on CPUs %s, which are exclusive CPUs of %s", cpus,
				few(slices.Sorted(maps.Keys(owners)))), first(evidence)})
		}
	}
	return out
}

// otherDriver finds a runtime with another cgroup driver than the kubelet's: no container has the name that the kubelet's driver expects.
func otherDriver(n *node) []found {
	var drivers [2]string
	for _, c := range n.Kernel {
		of := [2]string{driverOf(path.Dir(c.Cgroup), ".slice"), driverOf(c.Cgroup, ".scope")}
		if of[0] == of[1] || drivers[0] != "" && of != drivers {
			return nil
		}
		drivers = of
	}
	if drivers[0] == "" {
		return nil
	}
	return []found{{"cgroupDriver", fmt.Sprintf("the kubelet makes the cgroups of pods with the driver %s, and the runtime those of "+
		"containers with %s", drivers[0], drivers[1]), []string{"one of them is " + n.Kernel[0].Cgroup}}}
}

func driverOf(cgroup, suffix string) string {
	if strings.HasSuffix(cgroup, suffix) {
		return "systemd"
	}
	return "cgroupfs"
}

// evidence is what is compared of a container's CPUs.
func (n *node) evidence(c Running) []string {
	out := []string{fmt.Sprintf("its cgroup %s has CPUs %s", c.Cgroup, c.CPUs)}
	for _, name := range slices.Sorted(maps.Keys(n.CPU.Containers[c.Pod])) {
		if named := n.Names[c.ID]; named == "" || named == name {
			out = append(out, fmt.Sprintf("%s has CPUs %s of its own", n.owner(c.Pod, name), n.CPU.Containers[c.Pod][name]))
		}
	}
	if len(out) == 1 {
		out = append(out, fmt.Sprintf("it has no CPUs of its own; defaultCpuSet is %s", n.CPU.Shared))
	}
	if c.Age > 0 {
		out = append(out, fmt.Sprintf("it has been running for %s", c.Age.Truncate(time.Second)))
	}
	return out
}

// threadsOn are the threads that may run on some of the CPUs.
func threadsOn(c Running, cpus cpuset.Set) (out []string) {
	for _, t := range c.Threads {
		if t.CPUs.Overlaps(cpus) {
			out = append(out, fmt.Sprintf("%s may run there", threads(t)))
		}
	}
	return first(out)
}

func threads(t Threads) string {
	if t.Count == 1 {
		return "a thread " + kubelet.Printable(t.Command)
	}
	return fmt.Sprintf("%d threads %s", t.Count, kubelet.Printable(t.Command))
}

// most is how many of a kind a finding names.
const most = 5

// first are the first of many texts.
func first(texts []string) []string {
	if len(texts) <= most {
		return texts
	}
	return append(slices.Clip(texts[:most]), fmt.Sprintf("and %d more", len(texts)-most))
}

// few names the first of many.
func few(names []string) string { return strings.Join(first(names), ", ") }
