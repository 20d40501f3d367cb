package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/server/servertest"
)

const mib = 1 << 20

func TestContainerd(t *testing.T) {
	t.Parallel()
	testNode(t, nil)
}

// TestContainerdSlices has systemd as the driver of cgroups.
func TestContainerdSlices(t *testing.T) {
	t.Parallel()
	tree, err := servertest.OpenSlices()
	if err != nil {
		t.Skipf("no systemd to ask: %v", err)
	}
	testNode(t, tree)
}

// testNode creates pods in a real containerd, without labels of berth, as a
// kubelet does, and kills everything that takes part, one after the other.
func testNode(t *testing.T, slices *servertest.Slices) {
	if runtime.NumCPU() < 2 {
		t.Skipf("needs 2 CPUs, one of them for the system; here are %d", runtime.NumCPU())
	}
	n := newNode(t, slices)
	// The exclusive containers request all CPUs except the reserved one.
	last := runtime.NumCPU() - 1
	all, shared, rest, milli := "0-"+strconv.Itoa(last), "0", range1(last), int64(last)*1000

	web := n.pod("web", "burstable")
	w := web.run(100, 0)
	n.runsOn("the shared container", w, all)

	trainer := n.pod("trainer", "")
	tr := trainer.run(milli, 128*mib)
	if got, began := allowed(tr), trainer.said("affinity"); got != rest || began != rest {
		t.Errorf("the container of its own runs on %s and began on %s, want %s", got, began, rest)
	}
	if quota := trainer.said("cgroup.cpu." + quotaFile(trainer)); !strings.HasPrefix(quota, "-1") && !strings.HasPrefix(quota, "max") {
		t.Errorf("the container of its own has the quota %s", quota)
	}
	if got := allowed(w); got != shared {
		t.Errorf("the shared container is still on %s", got)
	}
	if got, want := mems(t, tr), convert.Nodes(n.place(trainer).GetCpusetMems()).String(); got != want || want == "" {
		t.Errorf("the container of its own has memory nodes %q, want %q", got, want)
	}
	testResize(n, web, w, trainer, tr, milli)

	greedy := n.pod("greedy", "")
	if _, err := greedy.create(1000, 128*mib); err == nil || !strings.Contains(err.Error(), "berth: place container main") {
		t.Errorf("a container that does not fit: %v", err)
	}
	greedy.remove()

	// A pod goes and another one comes while there is no plugin.
	_ = n.plugin.End(os.Kill)
	trainer.remove()
	late := n.pod("late", "burstable")
	l := late.run(100, 0)
	n.startPlugin()
	n.runsOn("the shared container", w, all)
	trainer = n.pod("trainer2", "")
	if got := allowed(trainer.run(milli, 128*mib)); got != rest {
		t.Errorf("the next container of its own runs on %s", got)
	}
	for what, pid := range map[string]int{"the shared container": w, "the one that came meanwhile": l} {
		if got := allowed(pid); got != shared {
			t.Errorf("%s is on %s", what, got)
		}
	}

	before := n.connections()
	if err := n.containerd.Kill(); err != nil {
		t.Fatal(err)
	}
	// What happens to a container meanwhile is undone: everything is looked at again.
	if err := os.WriteFile(n.file(w, "cpuset", "cpuset.cpus", "cpuset.cpus"), []byte(all), 0); err != nil {
		t.Fatal(err)
	}
	if got := allowed(w); got != all {
		t.Fatalf("the shared container is on %s, and was moved to %s", got, all)
	}
	n.startContainerd()
	n.connected(before)
	n.runsOn("the shared container", w, shared)

	// Without berthd nothing starts.
	_ = n.berthd.End(os.Kill)
	refused := n.pod("refused", "burstable")
	if _, err := refused.create(100, 0); err == nil || !strings.Contains(err.Error(), "berth: place container main") {
		t.Errorf("a container was made without berthd: %v", err)
	}
	n.startBerthd()
	n.eventually("a container is made again", func() bool { _, err := refused.create(100, 0); return err == nil })
	trainer.remove()
	n.runsOn("the shared container", w, all)

	for _, p := range []*pod{web, late, refused} {
		p.remove()
	}
	list, err := n.berth.Allocation().List(n.ctx(), &allocationv1.ListRequest{})
	if err != nil || len(list.GetPods()) > 0 {
		t.Errorf("berthd has pods that the runtime has not: %v, %v", list, err)
	}
	check, err := n.berth.Inspect().Check(n.ctx(), &inspectv1.CheckRequest{})
	if err != nil || len(check.GetFindings()) > 0 {
		t.Errorf("check of the ledger: %v, %v", check, err)
	}
}

// TestContainerdClaimNames: only the CDI devices of the kubelet's call are claims of a container. With the name in an annotation the
// runtime injects the same device, and the container has no claim. berthd does not have the claim, so a container that uses
// it is refused.
func TestContainerdClaimNames(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	const name = "dra.berthd.github.io/claim=gone:place"
	file := filepath.Join(filepath.Dir(n.containerd.Socket), "cdi", "dra.berthd.github.io-gone.json")
	text := `{"cdiVersion": "0.6.0", "kind": "dra.berthd.github.io/claim", "devices": [{"name": "gone:place", "containerEdits": {"env": ["BERTH_PLACE_CPUS=0"]}}]}`
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	field := func(c *criv1.ContainerConfig) { c.CDIDevices = []*criv1.CDIDevice{{Name: name}} }
	annotation := func(c *criv1.ContainerConfig) { c.Annotations = map[string]string{"cdi.k8s.io/claim": name} }
	web := n.pod("web", "burstable")
	if _, err := web.create(100, 0, field); err == nil || !strings.Contains(err.Error(), "is not in berthd's ledger") {
		t.Errorf("a container with the claim in the field of the call: %v", err)
	}
	web.run(100, 0, annotation)
	if got := web.said("env.BERTH_PLACE_CPUS"); got != "0" {
		t.Errorf("the variable of the device in the annotation is %q", got)
	}
	web.remove()
}

// testResize resizes a container that shares CPUs and one that does not.
func testResize(n *node, web *pod, w int, trainer *pod, tr int, milli int64) {
	t := n.t
	t.Helper()
	if err := web.resize(200, 64*mib); err != nil {
		t.Fatal(err)
	}
	if got := n.value(w, "memory", "memory.limit_in_bytes", "memory.max"); got != strconv.Itoa(64*mib) {
		t.Errorf("the resized container may have %s bytes", got)
	}
	if l := n.place(web); l.GetCpuShares() != 204 || l.GetMemoryLimitBytes() != 64*mib {
		t.Errorf("berthd counts the resized container as %v", l)
	}
	shares := n.value(tr, "cpu", "cpu.shares", "cpu.weight")
	if err := trainer.resize(milli+1000, 128*mib); err == nil || !strings.Contains(err.Error(),
		`Infeasible: container "main" has CPUs on NUMA nodes`) {
		t.Errorf("more CPUs than there are: %v", err)
	}
	if got := n.value(tr, "cpu", "cpu.shares", "cpu.weight"); got != shares {
		t.Errorf("a resize that was refused changed shares from %s to %s", shares, got)
	}
	// The kubelet may send again what is there already.
	on := allowed(tr)
	if err := trainer.resize(milli, 128*mib); err != nil {
		t.Error(err)
	}
	if quota := n.value(tr, "cpu", "cpu.cfs_quota_us", "cpu.max"); !strings.HasPrefix(quota, "-1") && !strings.HasPrefix(quota, "max") {
		t.Errorf("after an update the container of its own has the quota %s", quota)
	}
	if got := allowed(tr); got != on {
		t.Errorf("after an update the container of its own is on %s, was on %s", got, on)
	}
}

// mems reads the memory nodes of a process from the kernel.
func mems(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\nMems_allowed_list:")
	line, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(line)
}

// place is what berthd answers for a pod's container.
func (n *node) place(p *pod) *typesv1.LinuxResources {
	n.t.Helper()
	a, err := n.berth.Allocation().Allocate(n.ctx(),
		&allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_PodUid{PodUid: p.name + "-uid.main"}, ContainerName: "main"})
	if err != nil {
		n.t.Fatal(err)
	}
	return a.GetResources()
}

// quotaFile names the file with a container's CPU quota, by the cgroup version that
// it has told of.
func quotaFile(p *pod) string {
	if p.said("shown") == "all" && strings.Contains(p.text(), "cgroup.cpu.max=") {
		return "max"
	}
	return "cfs_quota_us"
}
