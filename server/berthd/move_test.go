package main

import (
	"os"
	"slices"
	"strconv"
	"testing"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/server/internal/podrecords"
	"github.com/berthd/berth/server/internal/store"
)

// withMemory makes a pod with CPUs and memory of its own.
func withMemory(uid string, cpus int, memory string) *typesv1.Pod {
	r := map[string]string{"cpu": strconv.Itoa(cpus), "memory": memory}
	return pod(uid, r, r)
}

// arrived waits until a pod does not move any more, and returns its CPUs.
func (d *daemon) arrived(uid string) (cpus cpuset.Set, p *typesv1.PodAllocation) {
	d.t.Helper()
	d.eventually("pod "+uid+" has arrived", func() bool {
		p = d.pods()[uid]
		return p != nil && !p.GetMoving()
	})
	return d.cpusOf(p), p
}

// cpusOf reads the CPUs of the only container of a pod.
func (d *daemon) cpusOf(p *typesv1.PodAllocation) cpuset.Set {
	d.t.Helper()
	cpus, err := cpuset.Parse(p.GetContainers()[0].GetCpus().GetList())
	if err != nil {
		d.t.Fatal(err)
	}
	return cpus
}

// twoNodes starts berthd with a container on the shared CPUs, for a test of a move between NUMA nodes. counts
// are the CPUs of each node, and lowest is the first node with memory.
func twoNodes(t *testing.T) (n *node, d *daemon, shared *process, counts map[int]int, lowest int) {
	t.Helper()
	return twoNodesWith(t, "")
}

// twoNodesWith is twoNodes with a part of a configuration file.
func twoNodesWith(t *testing.T, settings string) (n *node, d *daemon, shared *process, counts map[int]int, lowest int) {
	t.Helper()
	nodes := hostNodes(t)
	if nodes.Len() < 2 {
		t.Skipf("a move needs two NUMA nodes with memory; this machine has memory on node %s only", nodes)
	}
	lowest, _ = nodes.Lowest()
	n = newNode(t, append(staticMemory(lowest, "64Mi"), "--topology-manager-policy", "single-numa-node")...)
	n.needKernel()
	n.configure(settings)
	d = n.start()
	machine, err := nodev1.NewNodeServiceClient(d.conn).GetMachine(d.ctx(), &nodev1.GetMachineRequest{})
	if err != nil {
		t.Fatal(err)
	}
	counts = map[int]int{}
	for _, c := range machine.GetCpus() {
		counts[int(c.GetNumaNode())]++
	}
	d.admitted(burstable("shared"))
	shared = n.stopped()
	d.run(shared, "shared", "main", "c-shared")
	return n, d, shared, counts, lowest
}

// TestMoveOnTheMachine: a container that its NUMA node cannot serve any more moves to another one, with its memory.
func TestMoveOnTheMachine(t *testing.T) {
	t.Parallel()
	n, d, other, byNode, _ := twoNodes(t)
	const used = 16 // MiB: an emulated machine moves few pages in a second
	d.admitted(withMemory("a", 1, "128Mi"))
	p := n.stoppedWith(used)
	d.run(p, "a", "main", "c-a")
	p.works()
	first := p.status("Mems_allowed_list")
	from, err := strconv.Atoi(first)
	if err != nil {
		t.Fatalf("it may use memory of nodes %q: %v", first, err)
	}
	// CPU 0 is reserved, so its node has one CPU less to give than the others.
	to := 0
	for _, count := range byNode {
		to = max(to, count)
	}
	before := p.pages()
	resp, err := d.admission.Resize(d.ctx(), berth.ResizeTo(withMemory("a", to, "128Mi")))
	if err != nil || resp.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
		t.Fatalf("%v, %v", resp, err)
	}
	if resp.GetDisruption() != admissionv1.Disruption_DISRUPTION_MOVE_MEMORY || resp.GetPlan().GetBytes() != 128<<20 {
		t.Errorf("disruption %s, plan %v", resp.GetDisruption(), resp.GetPlan())
	}
	cpus, _ := d.arrived("a")
	n.eventually("the container runs on CPUs "+cpus.String(), func() bool {
		has, shares := p.allowed(), other.allowed()
		if has == cpus && has.Overlaps(shares) {
			t.Errorf("%s and %s overlap", has, shares)
		}
		return has == cpus
	})
	if now := p.status("Mems_allowed_list"); now == first {
		t.Errorf("it may use memory of nodes %s as before", now)
	}
	after := p.pages()
	t.Logf("pages by node: %v before, %v after", before, after)
	const few = 4 << 20
	if stays := after[from] * os.Getpagesize(); stays > few {
		t.Errorf("%d bytes stay on node %d", stays, from)
	}
	moved := 0
	for node, count := range after {
		if node != from {
			moved += count
		}
	}
	if moved*os.Getpagesize() < used<<20 {
		t.Errorf("%d pages have moved", moved)
	}
	d.remove("a")
	d.check()
}

// TestCrashDuringAMove kills berthd at each durable step of a move. The next one ends the move, or knows nothing of
// it, and in between nobody gets CPUs that the pod has.
func TestCrashDuringAMove(t *testing.T) {
	t.Parallel()
	crashes, hits := 0, hitsOf(4, 8)
	for _, point := range slices.Concat(store.Failpoints(), podrecords.Failpoints()) {
		n := newNode(t, append(staticMemory(0, "64Mi"), "--machine", "2s1n8c1t,mem=8Gi", "--topology-manager-policy",
			"single-numa-node")...)
		n.kernel = false
		d := n.start()
		d.admitted(withMemory("a", 2, "1Gi"))
		d.admitted(withMemory("b", 4, "1Gi"))
		old := d.cpusOf(d.pods()["a"])
		d.kill()
		for hit := 1; hit <= hits; hit++ {
			d := n.launch("--failpoint", point+":kill:"+strconv.Itoa(hit))
			if !d.readyOrDead() {
				crashes++
				continue
			}
			_, err := d.admission.Resize(d.ctx(), berth.ResizeTo(withMemory("a", 6, "1Gi")))
			if err == nil && d.ends("a") {
				d.kill()
				d = n.start()
				resizeBack(d, old)
				d.kill()
				break // the point is not hit so often
			}
			crashes++
			d.kill()
			d = n.start()
			d.check()
			cpus, _ := d.arrived("a")
			if !old.IsSubsetOf(cpus) && cpus.Len() != 6 { // a move whose begin was not committed leaves the claims of both
				t.Errorf("%s, hit %d: it has CPUs %s", point, hit, cpus)
			}
			if _, err := d.admission.Resize(d.ctx(), berth.ResizeTo(withMemory("a", 6, "1Gi"))); err != nil {
				t.Fatal(err)
			}
			if cpus, p := d.arrived("a"); cpus.Len() != 6 || cpus.Overlaps(d.cpusOf(d.pods()["b"])) ||
				p.GetContainers()[0].GetNodeMemory()[0].GetNumaNode() != 1 {
				t.Errorf("%s, hit %d: it has CPUs %s and memory %v", point, hit, cpus, p.GetContainers()[0].GetNodeMemory())
			}
			resizeBack(d, old)
			d.kill()
		}
	}
	if crashes < 6 {
		t.Errorf("%d crashes", crashes)
	}
}

// resizeBack gives pod a its first size on the first node, by a new admission.
func resizeBack(d *daemon, want cpuset.Set) {
	d.t.Helper()
	d.remove("a")
	d.admitted(withMemory("a", 2, "1Gi"))
	if got := d.cpusOf(d.pods()["a"]); got != want {
		d.t.Fatalf("admitted with CPUs %s, and with %s before", got, want)
	}
	d.check()
}

// ends waits until a pod does not move any more; false if berthd has died.
func (d *daemon) ends(uid string) bool {
	for {
		resp, err := d.allocation.List(d.ctx(), &allocationv1.ListRequest{})
		if err != nil {
			return false
		}
		for _, p := range resp.GetPods() {
			if p.GetUid() == uid && !p.GetMoving() {
				return true
			}
		}
	}
}

// TestMoveOfARunningContainer moves a container that runs, on a simulated machine.
func TestMoveOfARunningContainer(t *testing.T) {
	t.Parallel()
	n := newNode(t, append(staticMemory(0, "64Mi"), "--machine", "2s1n8c1t,mem=8Gi", "--topology-manager-policy", "single-numa-node")...)
	n.kernel = false
	d := n.start()
	d.admitted(withMemory("a", 2, "1Gi"))
	d.admitted(withMemory("b", 4, "1Gi"))
	for _, uid := range []string{"a", "b"} {
		d.run(n.stopped(), uid, "main", "c-"+uid)
	}
	if _, err := d.admission.Resize(d.ctx(), berth.ResizeTo(withMemory("a", 6, "1Gi"))); err != nil {
		t.Fatal(err)
	}
	if cpus, _ := d.arrived("a"); cpus != cpuset.Range(8, 13) {
		t.Errorf("it has CPUs %s", cpus)
	}
	if mems := d.mems("a", "main"); mems != "1" {
		t.Errorf("it has memory of nodes %s", mems)
	}
	d.check()
}
