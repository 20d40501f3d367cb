package main

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	memoryv1 "github.com/berthd/berth/api/berth/memory/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/numa"
)

// staticMemory are the flags of the static memory policy with so much memory kept
// on a node.
func staticMemory(node int, reserved string) []string {
	return []string{
		"--memory-manager-policy", "Static", "--system-reserved", "memory=" + reserved, "--eviction-hard", "",
		"--reserved-memory", fmt.Sprintf("%d:memory=%s", node, reserved),
	}
}

// pinned makes a pod whose container gets memory of certain nodes, and CPU time of
// all.
func pinned(uid, memory string, pages ...string) *typesv1.Pod {
	r := map[string]string{"cpu": "100m", "memory": memory}
	for i := 0; i < len(pages); i += 2 {
		r[pages[i]] = pages[i+1]
	}
	return pod(uid, r, r)
}

// memoryState reads the memory manager's state.
func (d *daemon) memoryState() *memoryv1.GetStateResponse {
	d.t.Helper()
	state, err := memoryv1.NewMemoryServiceClient(d.conn).GetState(d.ctx(), &memoryv1.GetStateRequest{})
	if err != nil {
		d.t.Fatal(err)
	}
	return state
}

// memoryUsage shows what is held of a resource by node, with the node's group where
// that is not itself: "2Gi 3Gi 6Gi[2 3] 0[2 3]", in MiB.
func (d *daemon) memoryUsage(resource string) string {
	d.t.Helper()
	var out []string
	for _, n := range d.memoryState().GetNodes() {
		for _, r := range n.GetResources() {
			if r.GetResource() != resource {
				continue
			}
			text := strconv.FormatUint(r.GetHeldBytes()>>20, 10)
			if len(n.GetGroup().GetIds()) > 1 {
				text += fmt.Sprint(n.GetGroup().GetIds())
			}
			out = append(out, text)
		}
	}
	return strings.Join(out, " ")
}

// mems are the NUMA nodes of a container in the answer for a runtime.
func (d *daemon) mems(uid, container string) string {
	d.t.Helper()
	alloc, err := d.allocation.Allocate(d.ctx(), &allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_PodUid{PodUid: uid},
		ContainerName: container})
	if err != nil {
		d.t.Fatal(err)
	}
	return convert.Nodes(alloc.GetResources().GetCpusetMems()).Commas()
}

// expectUsage compares memoryUsage.
func (d *daemon) expectUsage(when, resource, want string) {
	d.t.Helper()
	if got := d.memoryUsage(resource); got != want {
		d.t.Errorf("%s: of %s there is held %s, want %s", when, resource, got, want)
	}
}

// TestMemoryOfNodes is the memory manager's life on a machine with four nodes: pods
// get memory and huge pages of one node or of several, a crash changes nothing, an
// init container's memory comes back when the next container starts, with planning
// by container, and what is removed is free.
func TestMemoryOfNodes(t *testing.T) {
	t.Parallel()
	n := simulated(t, "1s4n2c,mem=4Gi,huge=2Mi:64", "", append(staticMemory(0, "1Gi"), "--topology-planning", "container")...)
	d := n.start()
	d.admitted(pinned("one", "2Gi", "hugepages-2Mi", "32Mi"))
	d.admitted(pinned("two", "3Gi"))
	d.admitted(pinned("wide", "6Gi"))
	for uid, want := range map[string]string{"one": "0", "two": "1", "wide": "2,3"} {
		if got := d.mems(uid, "main"); got != want {
			t.Errorf("pod %s gets memory of nodes %q, want %q", uid, got, want)
		}
	}
	d.admitted(burstable("any"))
	if got := d.mems("any", "main"); got != "" {
		t.Errorf("a burstable pod is tied to nodes %q", got)
	}
	rejected := d.admit(pinned("huge", "40Gi"))
	if rejected.GetVerdict() != admissionv1.Verdict_VERDICT_REJECTED || rejected.GetReason() != "UnexpectedAdmissionError" ||
		!strings.Contains(rejected.GetMessage(), "[memorymanager] ") {
		t.Errorf("a pod larger than the machine: %v", rejected)
	}
	if rejected := d.admit(pinned("unknown", "1Gi", "hugepages-1Gi", "1Gi")); !strings.Contains(rejected.GetMessage(), "hugepages-1Gi") {
		t.Errorf("pages that the machine lacks: %v", rejected)
	}
	const held = "2048 3072 3968[2 3] 2176[2 3]"
	d.expectUsage("admitted", "memory", held)
	d.expectUsage("admitted", "hugepages-2Mi", "32 0 0[2 3] 0[2 3]")
	d.memoryReaders(t)
	before, pods := d.memoryState(), texts(d.pods())
	d.check()

	d.kill()
	d = n.start()
	if after := d.memoryState(); !reflect.DeepEqual(protojson.Format(after), protojson.Format(before)) {
		t.Errorf("a crash changed the usage:\n%v\n%v", before, after)
	}
	if after := texts(d.pods()); !reflect.DeepEqual(after, pods) {
		t.Errorf("a crash changed the pods:\n%v\n%v", pods, after)
	}
	if again := d.admitted(pinned("wide", "6Gi")); len(again.GetAllocations()) != 1 {
		t.Errorf("the same pod: %v", again)
	}
	d.expectUsage("admitted again", "memory", held)

	d.remove("wide")
	d.expectUsage("group removed", "memory", "2048 3072 0 0")
	staged := pinned("staged", "1Gi")
	staged.Spec.InitContainers = []*typesv1.Container{{Name: "prepare", Resources: &typesv1.ResourceRequirements{
		Requests: map[string]string{"cpu": "100m", "memory": "3Gi"}, Limits: map[string]string{"cpu": "100m", "memory": "3Gi"},
	}}}
	d.admitted(staged)
	d.expectUsage("init container", "memory", "2048 3072 3072 0")
	for _, container := range []string{"prepare", "main"} {
		if _, err := d.lifecycle.PreStartContainer(d.ctx(), &lifecyclev1.PreStartContainerRequest{
			PodUid: "staged", ContainerName: container, ContainerId: "id-" + container,
		}); err != nil {
			t.Fatal(err)
		}
	}
	d.expectUsage("app container", "memory", "2048 3072 1024 0")
	d.check()
	d.kill()
	d = n.start()
	d.expectUsage("after a crash", "memory", "2048 3072 1024 0")
	for _, uid := range []string{"one", "two", "staged", "any"} {
		d.remove(uid)
	}
	d.expectUsage("all removed", "memory", "0 0 0 0")
	d.expectUsage("all removed", "hugepages-2Mi", "0 0 0 0")
}

// memoryReaders looks at what readers of podresources see.
func (d *daemon) memoryReaders(t *testing.T) {
	t.Helper()
	list, err := d.readers().List(d.ctx(), &podresources.ListPodResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range list.GetPodResources() {
		for _, m := range p.GetContainers()[0].GetMemory() {
			var nodes []int64
			for _, n := range m.GetTopology().GetNodes() {
				nodes = append(nodes, n.GetID())
			}
			got = append(got, fmt.Sprintf("%s %s %d %v", p.GetName(), m.GetMemoryType(), m.GetSize()>>20, nodes))
		}
	}
	want := []string{"one hugepages-2Mi 32 [0]", "one memory 2048 [0]", "two memory 3072 [1]", "wide memory 6144 [2 3]"}
	if !slices.Equal(got, want) {
		t.Errorf("readers see %q, want %q", got, want)
	}
	all, err := d.readers().GetAllocatableResources(d.ctx(), &podresources.AllocatableResourcesRequest{})
	if err != nil || len(all.GetMemory()) != 8 || all.GetMemory()[1].GetSize() != 3<<30-128<<20 {
		t.Errorf("allocatable %v, %v", all.GetMemory(), err)
	}
}

// TestMemoryDrifts: a boot has moved some pages between nodes. The start continues,
// also where damage would end it, and reports it; claims are kept.
func TestMemoryDrifts(t *testing.T) {
	t.Parallel()
	shape, err := machine.ParseShape("1s2n2c,mem=4Gi")
	if err != nil {
		t.Fatal(err)
	}
	n := simulated(t, "", "", staticMemory(0, "1Gi")...)
	boot := func(node0, node1 uint64) {
		shape.Nodes[0].MemoryBytes, shape.Nodes[1].MemoryBytes = node0, node1
		m, err := machine.New(shape)
		if err != nil {
			t.Fatal(err)
		}
		data, err := m.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(n.root+"/machine.json", data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	start := func(want ...string) *daemon {
		t.Helper()
		d := n.start("--machine", n.root+"/machine.json", "--strict-state")
		check, err := d.inspect.Check(d.ctx(), &inspectv1.CheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		// What is held and not there is a finding, of the kind that keeps claims.
		for _, f := range check.GetFindings() {
			if len(want) != 3 || f.GetKind() != inspectv1.FindingKind_FINDING_KIND_POLICY {
				t.Errorf("the ledger breaks its rules: %v", f)
			}
		}
		report := slices.DeleteFunc(check.GetStartReport(),
			func(line string) bool { return line == "the machine has changed since the last commit" })
		if !slices.Equal(report, want) {
			t.Errorf("the start reports %q, want %q", report, want)
		}
		return d
	}
	const gi, page = 1 << 30, 4096
	boot(4*gi, 4*gi)
	d := start()
	d.admitted(pinned("a", "3Gi"))
	d.admitted(pinned("b", "4Gi"))
	d.kill()
	boot(4*gi+page, 4*gi-page)
	d = start(
		"memory of NUMA node 0 was 4Gi and is 4194308Ki",
		"memory of NUMA node 1 was 4Gi and is 4194300Ki",
		"b/main hold 4Gi of memory on NUMA nodes 1, which is 4Ki more than is allocatable there",
	)
	d.expectUsage("after the boot", "memory", "3072 4095")
	if len(d.pods()) != 2 || d.mems("b", "main") != "1" {
		t.Errorf("pods %v", d.pods())
	}
	d.remove("b")
	d.admitted(pinned("c", "2Gi"))
	d.kill()
	start().kill()
	boot(4*gi, 4*gi)
	start("memory of NUMA node 0 was 4194308Ki and is 4Gi", "memory of NUMA node 1 was 4194300Ki and is 4Gi")
}

// TestMemoryStateMoves: what berth leaves a kubelet continues from, and another berth
// takes it over.
func TestMemoryStateMoves(t *testing.T) {
	t.Parallel()
	const shape = "1s4n2c,mem=4Gi,huge=2Mi:64"
	export := func(d *daemon) string {
		t.Helper()
		file, err := d.inspect.Export(d.ctx(), &inspectv1.ExportRequest{Kind: inspectv1.StateFileKind_STATE_FILE_KIND_MEMORY})
		if err != nil || file.GetFileName() != "memory_manager_state" || file.GetFormat() != 1 {
			t.Fatalf("%v, %v", file, err)
		}
		return string(file.GetState())
	}
	d := simulated(t, shape, "", staticMemory(0, "1Gi")...).start()
	empty := export(d)
	pods := []*typesv1.Pod{pinned("a", "2Gi", "hugepages-2Mi", "32Mi"), pinned("b", "6Gi"), pinned("c", "1Gi")}
	for _, p := range pods {
		d.admitted(p)
	}
	file := export(d)
	other := simulated(t, shape, "", staticMemory(0, "1Gi")...).start()
	got, err := other.inspect.Import(other.ctx(), &inspectv1.ImportRequest{Kind: inspectv1.StateFileKind_STATE_FILE_KIND_MEMORY,
		State: []byte(file), Pods: pods})
	if err != nil || len(got.GetPods()) != 3 || len(got.GetNotes())+len(got.GetFindings()) > 0 {
		t.Fatalf("%v, %v", got, err)
	}
	if again := export(other); again != file {
		t.Errorf("came back as\n%s, want\n%s", again, file)
	}
	if a, b := d.memoryUsage("memory"), other.memoryUsage("memory"); a != b {
		t.Errorf("held is %s, was %s", b, a)
	}
	other.check()
	for _, p := range pods {
		other.remove(p.GetMetadata().GetUid())
	}
	if again := export(other); again != empty {
		t.Errorf("left behind:\n%s, want\n%s", again, empty)
	}
}

// hostNodes are the NUMA nodes of this machine that have memory.
func hostNodes(t *testing.T) (nodes numa.Mask) {
	t.Helper()
	text, err := os.ReadFile("/sys/devices/system/node/has_memory")
	if err != nil {
		t.Skipf("the kernel does not tell which NUMA nodes have memory: %v", err)
	}
	if nodes, err = numa.Parse(strings.TrimSpace(string(text))); err != nil || nodes.IsEmpty() {
		t.Fatalf("nodes with memory %q: %v", text, err)
	}
	return nodes
}

// TestMemoryPinned: the kernel gives the processes of a pinned container memory of
// their nodes and of no other.
func TestMemoryPinned(t *testing.T) {
	t.Parallel()
	nodes := hostNodes(t)
	lowest, _ := nodes.Lowest()
	n := newNode(t, staticMemory(lowest, "64Mi")...)
	n.needKernel()
	d := n.start()
	least := uint64(1 << 62)
	for _, node := range d.memoryState().GetNodes() {
		for _, r := range node.GetResources() {
			if r.GetResource() == "memory" && r.GetAllocatableBytes() > 0 {
				least = min(least, r.GetAllocatableBytes())
			}
		}
	}
	const used = 16 // MiB
	var on numa.Mask
	// Each pod takes more than half of a node, so the next one gets another.
	for i := range nodes.Len() {
		uid := fmt.Sprintf("pod%d", i)
		d.admitted(pinned(uid, strconv.FormatUint(least/5*3, 10)))
		mems, err := numa.Parse(d.mems(uid, "main"))
		if err != nil || mems.Len() != 1 || !mems.IsSubsetOf(nodes) || mems.Overlaps(on) {
			t.Fatalf("pod %s gets memory of nodes %s, those before it have %s: %v", uid, mems, on, err)
		}
		on = on.Union(mems)
		p := n.stoppedWith(used)
		before := p.pages()
		started := d.run(p, uid, "main", "c-"+uid)
		if convert.Nodes(started.GetCpusetMems()) != mems {
			t.Errorf("pod %s: the start says nodes %q, Allocate said %s", uid, started.GetCpusetMems(), mems)
		}
		p.works()
		if got := p.status("Mems_allowed_list"); got != mems.String() {
			t.Errorf("the kernel allows pod %s memory of nodes %s, it was given %s", uid, got, mems)
		}
		// What a process had before it came here stays where it is.
		after, gained := p.pages(), 0
		for node, count := range after {
			switch {
			case mems.Contains(node):
				gained += count - min(before[node], count)
			case count > before[node]:
				t.Errorf("pod %s has got %d pages on node %d, it was given %s", uid, count-before[node], node, mems)
			}
		}
		if want := used << 20 / os.Getpagesize() / 2; gained < want {
			t.Errorf("pod %s has got %d pages on nodes %s, want %d and more", uid, gained, mems, want)
		}
	}
	d.check()
	if nodes.Len() == 1 {
		t.Skipf("where memory lies shows on several NUMA nodes, this machine has memory on node %s only", nodes)
	}
}

// status reads a line of /proc/PID/status.
func (p *process) status(name string) string {
	p.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid()))
	if err != nil {
		p.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	p.t.Fatalf("no %s in\n%s", name, text)
	return ""
}
