package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/hack/testing/nodetest"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/server/servertest"
)

// movable is a pod with CPUs and memory of its own, which berthd may move.
const movable = `
apiVersion: v1
kind: Pod
metadata: {name: NAME, uid: NAME-uid, annotations: {berthd.github.io/movable: anywhere}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: root, command: [/probe, hold, "16", ",", show, ",", wait], resources: {limits: {cpu: 1, memory: 128Mi}}}
`

// twoNodes are the flags of berthd for CPUs and memory of one NUMA node, and skip where the machine has not two of
// them: the first has the CPUs 0 to 3, of which 0 is reserved, and the second 4 to 7.
func twoNodes(t *testing.T, settings string) []string {
	t.Helper()
	for _, place := range []string{"node0/cpu3", "node1/cpu7"} {
		if _, err := os.Stat("/sys/devices/system/node/" + place); err != nil || runtime.NumCPU() != 8 {
			t.Skipf("needs two NUMA nodes with the CPUs 0-3 and 4-7; here are %d CPUs, %v", runtime.NumCPU(), err)
		}
	}
	file := filepath.Join(t.TempDir(), "berth.yaml")
	head := "apiVersion: config.berthd.github.io/v1alpha1\nkind: BerthConfiguration\ncgroups: {reconcilePeriod: 1s}\n"
	if err := os.WriteFile(file, []byte(head+settings), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{
		"--config", file, "--topology-manager-policy", "single-numa-node", "--memory-manager-policy", "Static",
		"--system-reserved", "memory=64Mi", "--eviction-hard", "", "--reserved-memory", "0:memory=64Mi",
	}
}

// TestExclusive has pods with CPUs and memory of their own grow, shrink and move, because somebody resizes them, for another pod,
// and because a CPU is gone. Their containers are where the ledger says, also those that start again, and if programs are
// killed meanwhile. No other test runs beside it.
func TestExclusive(t *testing.T) {
	for _, c := range exclusiveCases {
		t.Run(c.name, func(t *testing.T) { c.test(newNode(t, twoNodes(t, c.settings)...)) })
	}
}

// TestContainerdSlicesExclusive does so with containerd.
func TestContainerdSlicesExclusive(t *testing.T) {
	for _, c := range exclusiveCases {
		t.Run(c.name, func(t *testing.T) {
			flags := twoNodes(t, c.settings)
			tree, err := servertest.OpenSlices()
			if err != nil {
				t.Skipf("no systemd to ask: %v", err)
			}
			c.test(newContainerdNode(t, tree, flags...))
		})
	}
}

var exclusiveCases = []struct {
	name, settings string
	test           func(*node)
}{
	{"container", "hotplug: {onLost: replace}\n", testExclusiveContainer},
	{"sidecar", "", testExclusiveSidecar},
	{"pod as a whole", "features: {podLevelResourceManagers: true}\ntopology: {scope: pod}\n", testExclusiveWhole},
}

func testExclusiveContainer(n *node) {
	t := n.t
	defer n.apart()()
	n.manifest("shared", shared)
	n.running("shared")
	n.manifest("own", movable)
	n.running("own")
	first := n.settled("own", "main")
	if first.Len() != 1 || !first.IsSubsetOf(cpuset.Range(1, 3)) {
		t.Fatalf("it has CPUs %s", first)
	}

	n.resize("own", "main", "3")
	if got := n.settled("own", "main"); got != cpuset.Range(1, 3) {
		t.Errorf("grown: CPUs %s", got)
	}
	n.restarts("own", "main")
	n.resize("own", "main", "1")
	if got := n.settled("own", "main"); got != first {
		t.Errorf("shrunk: CPUs %s, and %s at the admission", got, first)
	}

	// The first node has three CPUs to give. Everybody is killed while the container moves.
	n.resize("own", "main", "4")
	_ = n.berthlet.End(os.Kill)
	_ = n.berthd.End(os.Kill)
	n.startBerthd()
	n.startBerthlet()
	if got := n.settled("own", "main"); got != cpuset.Range(4, 7) {
		t.Errorf("moved: CPUs %s", got)
	}
	n.inMemoryOf("own", "main", 1)
	n.restarts("own", "main")
	n.inMemoryOf("own", "main", 1)

	// It ends while it moves, and nobody is there to start it again.
	n.resize("own", "main", "1")
	n.settled("own", "main")
	n.defragmentsFor("next", "4", func() {
		pid := n.pid("own", "main")
		_ = n.berthlet.End(os.Kill)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	})
	n.startBerthlet()
	n.restarted("own", "main", 3)
	if got := n.settled("own", "main"); got.Len() != 1 || !got.IsSubsetOf(cpuset.Range(1, 3)) {
		t.Errorf("moved for another pod: CPUs %s", got)
	}
	n.inMemoryOf("own", "main", 0)
	n.manifest("own2", strings.Replace(exclusive, "cpu: 1", "cpu: 4", 1))
	n.running("own2")
	if got := n.settled("own2", "main"); got != cpuset.Range(4, 7) {
		t.Errorf("the other pod has CPUs %s", got)
	}
	n.losesACPU("own")
	n.checked()
	for _, name := range []string{"shared", "own", "own2"} {
		n.withdraw(name)
	}
	n.noPods()
}

// offlineEnv allows tests to take CPUs offline, which every process on the machine notices; hack/vm/test.sh sets it.
const offlineEnv = "BERTH_TEST_OFFLINE"

// losesACPU takes a CPU of a pod offline while no berthlet runs: berthd gives the pod another one.
func (n *node) losesACPU(pod string) {
	n.t.Helper()
	if os.Getenv(offlineEnv) == "" {
		n.t.Logf("no CPU goes offline: %s is not set", offlineEnv)
		return
	}
	n.resize(pod, "main", "2")
	has := n.settled(pod, "main")
	lost := has.Lowest(1)
	file := fmt.Sprintf("/sys/devices/system/cpu/cpu%s/online", lost)
	_ = n.berthlet.End(os.Kill)
	if err := os.WriteFile(file, []byte("0"), 0); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = os.WriteFile(file, []byte("1"), 0) })
	want := cpuset.Range(1, 3).Minus(lost)
	n.eventually("the pod has other CPUs", func() bool { return n.ledgers(pod, "main") == want })
	n.startBerthlet()
	if got := n.settled(pod, "main"); got != want {
		n.t.Errorf("it has lost CPUs %s of %s, and has CPUs %s", lost, has, got)
	}
	n.restarts(pod, "main")
	if err := os.WriteFile(file, []byte("1"), 0); err != nil {
		n.t.Fatal(err)
	}
	n.eventually("the CPU that is back is shared", func() bool {
		cpus, err := cpuset.Parse(n.cpusOf(n.pid("shared", "main")))
		return err == nil && lost.IsSubsetOf(cpus)
	})
	if got := n.settled(pod, "main"); got != want {
		n.t.Errorf("with CPU %s back, it has CPUs %s", lost, got)
	}
}

// sidecar is a pod whose sidecar and main container have CPUs of their own. Its init container has shared CPUs: with container
// scope, CPUs of its own would bind the others to their NUMA node.
const sidecar = head + `
  initContainers:
  - {name: first, image: root, command: [/probe, print, done], resources: {limits: {cpu: 500m, memory: 64Mi}}}
  - {name: side, image: root, restartPolicy: Always, command: [/probe, show, ",", wait], resources: {limits: {cpu: 1, memory: 64Mi}}}
  containers:
  - {name: main, image: root, command: [/probe, show, ",", wait], resources: {limits: {cpu: 1, memory: 64Mi}}}
`

func testExclusiveSidecar(n *node) {
	t := n.t
	defer n.apart()()
	n.manifest("shared", shared)
	n.manifest("own", sidecar)
	n.running("shared")
	n.running("own")
	n.settled("own", "main")
	n.resize("own", "main", "2")
	main, side := n.settled("own", "main"), n.ledgers("own", "side")
	if main.Len() != 2 || main.Overlaps(side) {
		t.Errorf("the container has CPUs %s, and the sidecar %s", main, side)
	}
	n.resize("own", "side", "3") // only the other node has so many
	if got := n.settled("own", "side"); got.Len() != 3 || !got.IsSubsetOf(cpuset.Range(4, 7)) {
		t.Errorf("the sidecar has CPUs %s", got)
	}
	n.restarts("own", "side")
	n.restarts("own", "main")
	n.checked()
	n.withdraw("shared")
	n.withdraw("own")
	n.noPods()
}

// whole is a pod with CPUs and memory as a whole, of which one container has a part for itself.
const whole = head + `
  resources: {requests: {cpu: 2, memory: 256Mi}, limits: {cpu: 2, memory: 256Mi}}
  containers:
  - {name: main, image: root, command: [/probe, show, ",", wait], resources: {limits: {cpu: 1, memory: 64Mi}}}
  - {name: rest, image: root, command: [/probe, show, ",", wait]}
`

func testExclusiveWhole(n *node) {
	t := n.t
	defer n.apart()()
	n.manifest("shared", shared)
	n.manifest("own", whole)
	n.running("shared")
	n.running("own")
	n.settled("own", "main")
	for _, size := range []struct {
		cpu    string
		within cpuset.Set
	}{{"3", cpuset.Range(1, 3)}, {"2", cpuset.Range(1, 3)}, {"4", cpuset.Range(4, 7)}} {
		n.resize("own", "", size.cpu)
		main, rest := n.settled("own", "main"), n.ledgers("own", "rest")
		if all := main.Union(rest); main.Len() != 1 || main.Overlaps(rest) || strconv.Itoa(all.Len()) != size.cpu ||
			!all.IsSubsetOf(size.within) {
			t.Errorf("with %s CPUs, one container has CPUs %s, and the other one %s", size.cpu, main, rest)
		}
		n.restarts("own", "rest")
	}
	n.restarts("own", "main")
	n.checked()
	n.withdraw("shared")
	n.withdraw("own")
	n.noPods()
}

// apart checks until the end of a test that no program of a pod may run on CPUs that another pod has for itself.
func (n *node) apart() (end func()) {
	stop := n.watchOverlaps()
	return func() {
		if seen := stop(); seen == 0 {
			n.t.Error("no program with CPUs of its own was seen")
		}
	}
}

// resize gives a container, or the pod as a whole, another number of CPUs.
func (n *node) resize(pod, container, cpu string) {
	n.t.Helper()
	amounts := map[string]string{"cpu": cpu}
	resources := &typesv1.ResourceRequirements{Requests: amounts, Limits: amounts}
	req := &admissionv1.ResizeRequest{PodUid: pod + "-uid", Owner: "berthlet", Resources: resources}
	if container != "" {
		req.Resources, req.Containers = nil, []*admissionv1.ContainerResources{{ContainerName: container, Resources: resources}}
	}
	got, err := n.client.Admission().Resize(n.t.Context(), req)
	// A runtime in an emulated machine may not answer in time. The call is repeated, as agent.md says.
	for berth.IsUnavailable(err) || status.Code(err) == codes.DeadlineExceeded {
		got, err = n.client.Admission().Resize(n.t.Context(), req)
	}
	if err != nil || got.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
		n.t.Fatalf("resize %s of %s to %s CPUs: %v, %v", container, pod, cpu, got, err)
	}
}

// defragmentsFor moves other pods so that a new one fits, and calls meanwhile when the move has begun.
func (n *node) defragmentsFor(name, cpu string, meanwhile func()) {
	n.t.Helper()
	amounts := map[string]string{"cpu": cpu, "memory": "64Mi"}
	spec := &typesv1.Pod{Metadata: &typesv1.PodMetadata{Name: name, Uid: name}, Spec: &typesv1.PodSpec{Containers: []*typesv1.Container{{
		Name: "main", Resources: &typesv1.ResourceRequirements{Requests: amounts, Limits: amounts},
	}}}}
	stream, err := n.client.Admission().Defragment(n.t.Context(), &admissionv1.DefragmentRequest{Pod: spec, MaxMoves: 1})
	if err != nil {
		n.t.Fatal(err)
	}
	var end *admissionv1.DefragmentResult
	begun := false
	for {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			n.t.Fatal(err)
		}
		if moves := event.GetProgress() != nil || event.GetMoved() != nil; moves && !begun {
			begun = true
			meanwhile()
		}
		if r := event.GetResult(); r != nil {
			end = r
		}
	}
	if !begun || !end.GetFits() || end.GetMoved() != 1 {
		n.t.Fatalf("it has begun: %v; %v", begun, end)
	}
}

// ledgers returns the CPUs of a container in the ledger.
func (n *node) ledgers(pod, container string) cpuset.Set {
	n.t.Helper()
	return parseCPUs(n.t, n.allocate(pod, container).GetResources().GetCpusetCpus().GetList())
}

// settled waits until a pod does not move any more and the kernel has for all of its containers what a restarted one would get, and
// returns the CPUs of one of them.
func (n *node) settled(pod, container string) cpuset.Set {
	n.t.Helper()
	differs := ""
	defer func() {
		if differs != "" {
			n.t.Log(differs)
		}
	}()
	n.eventually("pod "+pod+" has in the kernel what it has in the ledger", func() bool {
		differs = n.differs(pod)
		return differs == ""
	})
	return n.ledgers(pod, container)
}

// differs describes a difference between the ledger and the kernel.
func (n *node) differs(pod string) string {
	n.t.Helper()
	got, err := n.client.Allocation().Get(n.t.Context(), &allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: pod +
		"-uid"}})
	if err != nil || got.GetPod().GetMoving() {
		return fmt.Sprintf("%v, %v", got, err)
	}
	p := n.pods()[pod]
	if !allRun(p) {
		return fmt.Sprintf("%+v", p)
	}
	for _, c := range slices.Concat(p.InitContainerStatuses, p.ContainerStatuses) {
		if c.State.Running == nil {
			continue // an init container that has ended
		}
		r := n.allocate(pod, c.Name).GetResources()
		want := map[string]string{"cpuset.cpus": r.GetCpusetCpus().GetList(),
			"memory.limit_in_bytes": strconv.FormatInt(r.GetMemoryLimitBytes(), 10)}
		if r.GetCpusetMems() != nil {
			want["cpuset.mems"] = convert.Nodes(r.GetCpusetMems()).String()
		}
		if quota := r.GetCpuQuotaMicroseconds(); quota > 0 {
			want["cpu.cfs_quota_us"], want["cpu.max"] = strconv.FormatInt(quota, 10),
				fmt.Sprintf("%d %d", quota, r.GetCpuPeriodMicroseconds())
		} else {
			want["cpu.cfs_quota_us"], want["cpu.max"] = "-1", "max 100000"
		}
		want["memory.max"] = want["memory.limit_in_bytes"]
		if r.GetMemoryLimitBytes() <= 0 {
			delete(want, "memory.max")
			delete(want, "memory.limit_in_bytes")
		}
		compared := 0
		for file, value := range want {
			found, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup/*", n.cgroupOf(pod, c.Name), file))
			for _, path := range append(found, filepath.Join("/sys/fs/cgroup", n.cgroupOf(pod, c.Name), file)) {
				text, err := os.ReadFile(path)
				if err != nil {
					continue // of the other version, or a link to it
				}
				if compared++; strings.TrimSpace(string(text)) != value {
					return fmt.Sprintf("%s is %q, want %q", path, text, value)
				}
			}
		}
		pid := n.pid(pod, c.Name)
		if cpus := n.cpusOf(pid); compared < 2 || cpus != want["cpuset.cpus"] {
			return fmt.Sprintf("%d files are equal; process %d of %s runs on CPUs %s, want %s", compared, pid, c.Name, cpus,
				want["cpuset.cpus"])
		}
	}
	return ""
}

// restarts kills a container, and checks what the next one begins with.
func (n *node) restarts(pod, container string) {
	n.t.Helper()
	attempt := n.status(pod, container).RestartCount + 1
	if err := syscall.Kill(n.pid(pod, container), syscall.SIGKILL); err != nil {
		n.t.Fatal(err)
	}
	n.restarted(pod, container, attempt)
}

// restarted waits until an attempt of a container runs, and checks what it began with.
func (n *node) restarted(pod, container string, attempt int) {
	n.t.Helper()
	n.eventually(container+" of "+pod+" is started again", func() bool {
		p, ok := n.pods()[pod]
		return ok && allRun(p) && n.status(pod, container).RestartCount == attempt
	})
	n.settled(pod, container)
	facts, r := n.shownBy(pod, container, attempt), n.allocate(pod, container).GetResources()
	if got, want := facts["affinity"], r.GetCpusetCpus().GetList(); got != want {
		n.t.Errorf("%s of %s was started again on CPUs %s, want %s", container, pod, got, want)
	}
	if mems := r.GetCpusetMems(); mems != nil && facts["mems"] != convert.Nodes(mems).String() {
		n.t.Errorf("%s of %s was started again with memory of nodes %s, want %s", container, pod, facts["mems"], convert.Nodes(mems))
	}
}

// inMemoryOf checks that the memory of a container's process is on a NUMA node.
func (n *node) inMemoryOf(pod, container string, node int) {
	n.t.Helper()
	const few = 4 << 20 // of a page cache, and of what a library has shared
	pages := nodetest.Pages(n.t, n.pid(pod, container), nodetest.OfNoFile)
	for id, count := range pages {
		if bytes := count * os.Getpagesize(); id == node && bytes < 16<<20 || id != node && bytes > few {
			n.t.Errorf("%s of %s has pages by node %v, want them on node %d", container, pod, pages, node)
		}
	}
}

// checked compares berthd's ledger with itself and with the kernel.
func (n *node) checked() {
	n.t.Helper()
	n.eventually("the check finds nothing", func() bool {
		check, err := n.client.Inspect().Check(n.t.Context(), &inspectv1.CheckRequest{})
		return err == nil && len(check.GetFindings()) == 0
	})
}
