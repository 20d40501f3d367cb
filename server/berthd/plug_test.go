package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	"github.com/berthd/berth/managers/cpuset"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// vmParts names the CPUs and the memory that can be plugged into a virtual machine (hack/vm/README.md).
const vmParts = "BERTH_VM_PARTS"

// plugged is a machine into which parts can be plugged.
type plugged struct {
	*node
	t *testing.T
}

// newPlugged has a berthd that follows the machine within milliseconds.
func newPlugged(t *testing.T) (plugged, *daemon) {
	t.Helper()
	if os.Getenv(vmParts) == "" {
		t.Skipf("no CPU and no memory can be plugged into this machine: %s is empty", vmParts)
	}
	n := newNode(t, append(staticMemory(0, "64Mi"), "--topology-manager-policy", "single-numa-node")...)
	n.needKernel()
	file := filepath.Join(n.root, "berth.yaml")
	text := "apiVersion: config.berthd.github.io/v1alpha1\nkind: BerthConfiguration\nhotplug: {poll: 1s, debounce: 0s}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return plugged{n, t}, n.start("--config", file)
}

// plug has a part plugged in, or taken out. The virtual machine reads what its tests print.
func (p plugged) plug(part string)   { fmt.Println("plug " + part) }
func (p plugged) unplug(part string) { fmt.Println("unplug " + part) }

// list reads a list of numbers of sysfs.
func (p plugged) list(file string) cpuset.Set {
	p.t.Helper()
	text, err := os.ReadFile("/sys/devices/system/" + file)
	if err != nil {
		p.t.Fatal(err)
	}
	set, err := cpuset.Parse(strings.TrimSpace(string(text)))
	if err != nil {
		p.t.Fatal(err)
	}
	return set
}

// plugCPU plugs a CPU in and brings it online, as udev does elsewhere. It returns the kernel's number.
func (p plugged) plugCPU(part string) (added cpuset.Set) {
	p.t.Helper()
	before := p.list("cpu/present")
	p.plug(part)
	p.eventually("the kernel has "+part, func() bool {
		added = p.list("cpu/present").Minus(before)
		return !added.IsEmpty()
	})
	cpu, _ := added.Min()
	p.eventually("the kernel brings "+part+" online", func() bool {
		return os.WriteFile(onlineFile(cpu), []byte("1"), 0) == nil
	})
	if added.Len() != 1 || !p.list("cpu/online").Contains(cpu) {
		p.t.Fatalf("%s: CPUs %s are added, and %s online", part, added, p.list("cpu/online"))
	}
	return added
}

// unplugCPU takes a CPU out.
func (p plugged) unplugCPU(part string, cpu cpuset.Set) {
	p.t.Helper()
	p.unplug(part)
	p.eventually("the kernel lets go of "+part, func() bool { return !p.list("cpu/present").Overlaps(cpu) })
}

// plugMemory plugs memory in and brings it online. Only movable memory can be taken out again. A container on a NUMA
// node that has no other gets ENOMEM when the kernel needs pages for it that cannot move, such as those of a pipe.
func (p plugged) plugMemory(part, how string) {
	p.t.Helper()
	blocks := func() []string {
		all, err := filepath.Glob("/sys/devices/system/memory/memory*/state")
		if err != nil {
			p.t.Fatal(err)
		}
		return all
	}
	before := blocks()
	p.plug(part)
	p.eventually("the kernel has "+part, func() bool { return len(blocks()) > len(before) })
	p.eventually("the memory is online", func() bool {
		for _, state := range blocks() {
			text, err := os.ReadFile(state)
			if err != nil {
				return false
			}
			if strings.TrimSpace(string(text)) == "offline" {
				_ = os.WriteFile(state, []byte(how), 0)
				return false // the kernel may add more blocks
			}
		}
		return true
	})
}

// memoryOf returns what pods may have of a node's memory.
func (d *daemon) memoryOf(node int) uint64 {
	d.t.Helper()
	for _, n := range d.memoryState().GetNodes() {
		for _, r := range n.GetResources() {
			if int(n.GetNumaNode()) == node && r.GetResource() == "memory" {
				return r.GetAllocatableBytes()
			}
		}
	}
	return 0
}

// online returns the CPUs of the machine that berthd uses, by NUMA node.
func (d *daemon) online() map[int]cpuset.Set {
	d.t.Helper()
	out := map[int]cpuset.Set{}
	for _, n := range d.machine().GetNodes() {
		set, err := cpuset.Parse(n.GetCpus().GetList())
		if err != nil {
			d.t.Fatal(err)
		}
		out[int(n.GetNumaNode())] = set
	}
	return out
}

// TestMemoryIsPlugged: memory that is plugged in can be pinned, first on a NUMA node that has some, then on one that
// appears with it and with a CPU.
func TestMemoryIsPlugged(t *testing.T) {
	p, d := newPlugged(t)
	const module, used = 256 << 20, 24 // bytes of memory0, and MiB that a process uses
	before := d.memoryOf(1)
	wants := pinned("m", strconv.FormatUint(before+module/2, 10))
	if v := d.admit(wants); v.GetVerdict() == admissionv1.Verdict_VERDICT_ADMITTED {
		t.Fatal("it fits without the memory")
	}
	p.plugMemory("memory0", "online_movable")
	d.eventually("berthd has the memory", func() bool { return d.memoryOf(1) == before+module })
	d.admitted(wants)
	m := p.stoppedWith(used)
	d.run(m, "m", "main", "c-m")
	m.works()
	if got := m.status("Mems_allowed_list"); got != "1" {
		t.Errorf("it may use memory of nodes %s", got)
	}
	d.check()

	// A node appears, first with its memory.
	p.plugMemory("memory1", "online_kernel")
	d.eventually("berthd has the node", func() bool { return d.memoryOf(2) == 512<<20 })
	if got := d.online()[2]; !got.IsEmpty() {
		t.Errorf("it has CPUs %s", got)
	}
	if got := p.list("node/has_memory"); got != cpuset.Range(0, 2) {
		t.Errorf("the kernel has memory on nodes %s", got)
	}
	added := p.plugCPU("cpu8")
	d.eventually("the node has a CPU", func() bool { return d.online()[2] == added })
	for node, cpus := range d.online() { // the pod finds CPUs there only
		for i := range cpus.Minus(cpuset.Of(0)).Len() {
			if node != 2 {
				d.admitted(withMemory(fmt.Sprintf("fills-%d-%d", node, i), 1, "1Mi"))
			}
		}
	}
	d.admitted(withMemory("n", 1, "256Mi"))
	n := p.stoppedWith(used)
	d.run(n, "n", "main", "c-n")
	n.works()
	d.eventually("it runs on the CPU of the new node", func() bool { return n.allowed() == added })
	if got := n.status("Mems_allowed_list"); got != "2" {
		t.Errorf("it may use memory of nodes %s", got)
	}
	if pages := n.pages(); pages[2]*os.Getpagesize() < used<<20 {
		t.Errorf("pages by node: %v", pages)
	}
	d.check()

	// The kernel moves what is in the first memory to the rest of its node, and m has more than that.
	p.unplug("memory0")
	d.eventually("berthd lacks the memory", func() bool { return d.memoryOf(1) == before })
	if got := d.findings(); fmt.Sprint(got) != "[FINDING_KIND_POLICY ]" { // of the node
		t.Errorf("findings %q", got)
	}
	d.remove("m")
	d.check()
	if v := d.admit(wants); v.GetVerdict() == admissionv1.Verdict_VERDICT_ADMITTED {
		t.Error("it fits without the memory")
	}
}

// TestCPUIsPlugged: a CPU that is plugged in is shared, and then a container has it for itself. If it is taken out, the
// container has lost it. This is the last test of the machine: without KVM, QEMU 7.2 ends with a segmentation fault if
// something is plugged in after that.
func TestCPUIsPlugged(t *testing.T) {
	p, d := newPlugged(t)
	all := p.list("cpu/online")
	watch, err := d.allocation.Watch(d.ctx(), &allocationv1.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	d.admitted(burstable("s"))
	s := d.started(p.node, "s")
	for i := 1; i < all.Len(); i++ { // one is reserved
		d.admitted(guaranteed(fmt.Sprintf("fills-%d", i), 1, 0))
	}
	if v := d.admit(guaranteed("x", 1, 0)); v.GetVerdict() == admissionv1.Verdict_VERDICT_ADMITTED {
		t.Fatal("a CPU is left")
	}

	added := p.plugCPU("cpu6")
	allocatable := func() string {
		a, err := nodev1.NewNodeServiceClient(d.conn).GetAllocatable(d.ctx(), &nodev1.GetAllocatableRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return a.GetAllocatable()["cpu"]
	}
	d.eventually("berthd has the CPU", func() bool { return added.IsSubsetOf(d.online()[1]) })
	d.eventually("those that share run on it", func() bool { return added.IsSubsetOf(s.allowed()) })
	if got, want := allocatable(), strconv.Itoa(all.Len()); got != want { // one of those before is reserved
		t.Errorf("%s CPUs are allocatable, want %s", got, want)
	}
	for machine, shared := false, false; !machine || !shared; {
		m, err := watch.Recv()
		if err != nil {
			t.Fatalf("Watch has said machine %t, shared CPUs %t: %v", machine, shared, err)
		}
		for _, e := range m.GetEvents() {
			if set, err := cpuset.Parse(e.GetMachine().GetCpus().GetList()); err == nil && added.IsSubsetOf(set) {
				machine = true
			}
			if set, err := cpuset.Parse(e.GetSharedCpus().GetList()); err == nil && added.IsSubsetOf(set) {
				shared = true
			}
		}
	}
	cpu, _ := added.Min()
	if r, err := d.readers().GetAllocatableResources(d.ctx(), &podresources.AllocatableResourcesRequest{}); err != nil ||
		!slices.Contains(r.GetCpuIds(), int64(cpu)) {
		t.Errorf("readers see CPUs %v, %v", r.GetCpuIds(), err)
	}
	d.admitted(guaranteed("x", 1, 0))
	x := d.started(p.node, "x")
	has := func() bool { return x.allowed() == added && !s.allowed().Overlaps(added) }
	d.eventually("a container has it for itself", has)
	d.check()

	p.unplugCPU("cpu6", added)
	d.eventually("its owner runs with those that share", func() bool { return !x.allowed().Overlaps(added) && x.allowed() == s.allowed() })
	if got := d.findings(); fmt.Sprint(got) != "[FINDING_KIND_POLICY x]" {
		t.Errorf("findings %q", got)
	}
	d.eventually("the machine lacks it", func() bool {
		return d.machine().GetOfflineCpus().GetList() == "" &&
			!added.Overlaps(d.online()[1])
	})
	d.kill() // a start without the CPU
	d = p.start(d.Cmd.Args[len(d.Cmd.Args)-2:]...)
	if got := d.findings(); fmt.Sprint(got) != "[FINDING_KIND_POLICY x]" {
		t.Errorf("after a start: findings %q", got)
	}
	d.remove("x")
	d.eventually("the check finds nothing", func() bool { return len(d.findings()) == 0 })
	d.check()
}
