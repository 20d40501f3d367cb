package main

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/podrecords"
	"github.com/berthd/berth/server/internal/store"
)

// movable allows a pod to be moved.
func movable(p *typesv1.Pod) *typesv1.Pod {
	p.Metadata.Annotations = map[string]string{workload.MovableAnnotation: string(workload.MovableAnywhere)}
	return p
}

// defragment makes room for a pod, and returns what has moved, and the result. The error is that of a stream without one.
func (d *daemon) defragment(ctx context.Context, req *admissionv1.DefragmentRequest,
	each func(*admissionv1.DefragmentResponse)) (moved []*admissionv1.PodMoved, end *admissionv1.DefragmentResult, err error) {
	stream, err := d.admission.Defragment(ctx, req)
	if err != nil {
		return nil, nil, err
	}
	for {
		e, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return moved, end, nil
		}
		if err != nil {
			return moved, end, err
		}
		if each != nil {
			each(e)
		}
		if m := e.GetMoved(); m != nil {
			moved = append(moved, m)
		}
		if r := e.GetResult(); r != nil {
			end = r
		}
	}
}

// TestDefragOnTheMachine: a container leaves its NUMA node, with its memory, so that a pod which needs the
// whole node fits.
func TestDefragOnTheMachine(t *testing.T) {
	t.Parallel()
	n, d, other, byNode, lowest := twoNodes(t)
	// CPU 0 of the lowest node is reserved. The first pod fills it, so the second one is on the next node, and the
	// others fill the rest.
	const used = 16 // MiB: an emulated machine moves few pages in a second
	d.admitted(withMemory("first", byNode[lowest]-1, "1Mi"))
	d.admitted(movable(withMemory("a", 1, "128Mi")))
	p := n.stoppedWith(used)
	d.run(p, "a", "main", "c-a")
	p.works()
	from, err := strconv.Atoi(p.status("Mems_allowed_list"))
	if err != nil || from == lowest {
		t.Fatalf("it may use memory of node %d: %v", from, err)
	}
	for id := range hostNodes(t).All() {
		if id != lowest && id != from {
			d.admitted(withMemory("fills-"+strconv.Itoa(id), byNode[id], "1Mi"))
		}
	}
	d.remove("first")
	wants := withMemory("new", byNode[from], "1Mi")
	if v := d.admit(wants); v.GetVerdict() == admissionv1.Verdict_VERDICT_ADMITTED {
		t.Fatal("it fits without a move")
	}
	before := p.pages()
	var plan *admissionv1.DefragmentPlan
	progress := 0
	moved, end, err := d.defragment(d.ctx(), &admissionv1.DefragmentRequest{Pod: wants, MaxMoves: 1},
		func(e *admissionv1.DefragmentResponse) {
			if e.GetPlan() != nil {
				plan = e.GetPlan()
			}
			if e.GetProgress() != nil {
				progress++
			}
			if has, shares := p.allowed(), other.allowed(); has.Overlaps(shares) {
				t.Errorf("%s and %s overlap", has, shares)
			}
		})
	if err != nil || !end.GetFits() || end.GetMoved() != 1 || len(moved) != 1 || len(plan.GetMoves()) != 1 ||
		plan.GetMoves()[0].GetPodUid() != "a" || progress == 0 {
		t.Fatalf("%v: plan %v, moved %v, end %v, %d events of progress", err, plan, moved, end, progress)
	}
	after := p.pages()
	t.Logf("pages by node: %v before, %v after; %v", before, after, moved[0])
	const few = 4 << 20
	if stays := after[from] * os.Getpagesize(); stays > few {
		t.Errorf("%d bytes stay on node %d", stays, from)
	}
	if after[lowest]*os.Getpagesize() < used<<20 {
		t.Errorf("%d pages are on node %d", after[lowest], lowest)
	}
	if m := moved[0]; m.GetBytesBefore()[uint32(from)] < used<<20 || m.GetBytesAfter()[uint32(lowest)] < used<<20 ||
		m.GetDuration().AsDuration() <= 0 {
		t.Errorf("measured: %v", m)
	}
	if got := p.status("Mems_allowed_list"); got != strconv.Itoa(lowest) {
		t.Errorf("it may use memory of nodes %s", got)
	}
	d.admitted(wants)
	d.check()
}

// clashes are containers whose CPUs are compared again and again: a, which moves, one that never moves, and one on
// the shared CPUs.
type clashes struct {
	t             *testing.T
	stays, shared *process
	own           cpuset.Set // of the one that never moves

	mu   sync.Mutex
	a    *process   // guarded by mu; nil while there is none
	only cpuset.Set // guarded by mu: CPUs that the move gives a
}

// watch compares until the test ends.
func (c *clashes) watch() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			c.compare()
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	}()
	c.t.Cleanup(func() {
		cancel()
		<-ended
	})
}

// compare reads the CPUs of a first: others have left those that it gets before it may run there.
func (c *clashes) compare() {
	c.mu.Lock()
	defer c.mu.Unlock()
	var sets [3]cpuset.Set
	for i, p := range []*process{c.a, c.shared, c.stays} {
		if p == nil {
			continue
		}
		var err error
		if sets[i], err = p.mayRun(); err != nil {
			c.t.Errorf("container %d: %v", i, err)
			return
		}
	}
	a, shares, stays := sets[0], sets[1], sets[2]
	if stays != c.own || a.Overlaps(c.own) || shares.Overlaps(c.own) {
		c.t.Errorf("one with CPUs %s runs on %s; a runs on %s, and those that share on %s", c.own, stays, a, shares)
	}
	if clash := a.Intersect(shares).Intersect(c.only); !clash.IsEmpty() {
		c.t.Errorf("a runs on %s, and those that share on %s", a, shares)
	}
}

// moves sets the process of a, and the CPUs that the move gives it.
func (c *clashes) moves(a *process, only cpuset.Set) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.a, c.only = a, only
}

// cpusOfNode returns the CPUs of a NUMA node.
func (d *daemon) cpusOfNode(node int) cpuset.Set {
	d.t.Helper()
	m, err := nodev1.NewNodeServiceClient(d.conn).GetMachine(d.ctx(), &nodev1.GetMachineRequest{})
	if err != nil {
		d.t.Fatal(err)
	}
	for _, each := range m.GetNodes() {
		if int(each.GetNumaNode()) == node {
			set, err := cpuset.Parse(each.GetCpus().GetList())
			if err != nil {
				d.t.Fatal(err)
			}
			return set
		}
	}
	return cpuset.Set{}
}

// TestDefragWithinNodesOnTheMachine: a container with CPUs of two NUMA nodes gives a CPU of one back for one of the
// other, so that a pod fits which needs one node. Its memory stays where it is.
func TestDefragWithinNodesOnTheMachine(t *testing.T) {
	if nodes := hostNodes(t); nodes != numa.Of(0, 1) {
		t.Skipf("needs two NUMA nodes with memory; this machine has memory on node %s", nodes)
	}
	n := newNode(t, "--topology-manager-policy", "restricted")
	n.needKernel()
	d := n.start()
	free := map[int]int{0: d.cpusOfNode(0).Len() - 1, 1: d.cpusOfNode(1).Len()} // CPU 0 is reserved
	if free[0] < 2 || free[1] < 3 {
		t.Skipf("needs three CPUs on each NUMA node; this machine has %v", free)
	}
	d.admitted(burstable("shared"))
	shared := d.started(n, "shared")
	// In the end one CPU of each node is free.
	d.admitted(guaranteed("first", 1, 0))
	d.admitted(guaranteed("fills", free[0]-1, 0))
	d.admitted(guaranteed("second", 1, 0))
	d.remove("fills")
	within := withMemory("a", free[0]+free[1]-2, "64Mi")
	within.Metadata.Annotations = map[string]string{workload.MovableAnnotation: string(workload.MovableWithinNodes)}
	d.admitted(within)
	const used = 24 // MiB
	p := n.stoppedWith(used)
	d.run(p, "a", "main", "c-a")
	p.works()
	d.remove("first")
	d.remove("second")
	was := d.cpusOf(d.pods()["a"])
	if was.Intersect(d.cpusOfNode(0)).Len() != free[0]-1 {
		t.Fatalf("it has CPUs %s", was)
	}
	c := &clashes{t: t, shared: shared}
	c.moves(p, d.cpusOfNode(0).Union(d.cpusOfNode(1)).Minus(was.Union(cpuset.Of(0))))
	c.watch()
	before := p.pages()
	wants := guaranteed("new", 2, 0)
	if v := d.admit(wants); v.GetVerdict() == admissionv1.Verdict_VERDICT_ADMITTED {
		t.Fatal("it fits without a move")
	}
	moved, end, err := d.defragment(d.ctx(), &admissionv1.DefragmentRequest{Pod: wants, MaxMoves: 1}, nil)
	if err != nil || !end.GetFits() || len(moved) != 1 {
		t.Fatalf("%v: moved %v, end %v", err, moved, end)
	}
	now := d.cpusOf(d.pods()["a"])
	d.eventually("it runs on CPUs "+now.String(), func() bool { return p.allowed() == now && !shared.allowed().Overlaps(now) })
	if now == was || now.Len() != was.Len() || !now.Overlaps(d.cpusOfNode(0)) || !now.Overlaps(d.cpusOfNode(1)) {
		t.Errorf("it has CPUs %s, had %s", now, was)
	}
	after := p.pages()
	t.Logf("CPUs %s before, %s after; pages by node: %v before, %v after", was, now, before, after)
	for node, count := range before {
		const few = 1 << 20
		if left := (count - after[node]) * os.Getpagesize(); left > few {
			t.Errorf("%d bytes have left node %d", left, node)
		}
	}
	d.admitted(wants)
	d.check()
}

// fragmented has a pod that may move, in the way of one that requests 4 CPUs of a NUMA node.
func fragmented(d *daemon) (wants *admissionv1.DefragmentRequest) {
	d.admitted(movable(withMemory("a", 3, "1Gi")))
	d.admitted(withMemory("b", 3, "1Gi"))
	d.admitted(withMemory("c", 5, "1Gi"))
	return &admissionv1.DefragmentRequest{Pod: withMemory("new", 4, "1Gi")}
}

// TestCrashDuringADefrag kills berthd at each durable step. The next one ends the move, or knows nothing of it,
// and the call again makes the room.
func TestCrashDuringADefrag(t *testing.T) {
	t.Parallel()
	crashes, hits := 0, hitsOf(2, 4)
	for _, point := range slices.Concat(store.Failpoints(), podrecords.Failpoints()) {
		for hit := 1; hit <= hits; hit++ {
			n := newNode(t, append(staticMemory(0, "64Mi"), "--machine", "2s1n8c1t,mem=8Gi", "--topology-manager-policy",
				"single-numa-node")...)
			n.kernel = false
			d := n.start()
			wants := fragmented(d)
			old := d.cpusOf(d.pods()["a"])
			d.kill()
			d = n.launch("--failpoint", point+":kill:"+strconv.Itoa(hit))
			died := !d.readyOrDead()
			if !died {
				_, _, err := d.defragment(d.ctx(), wants, nil)
				died = err != nil
				d.kill()
			}
			if !died {
				break // the point is not hit so often
			}
			crashes++
			d = n.start()
			d.check()
			// A move whose begin was not committed leaves nothing.
			if cpus, _ := d.arrived("a"); cpus.Len() != 3 {
				t.Errorf("%s, hit %d: it has CPUs %s, had %s", point, hit, cpus, old)
			}
			if _, end, err := d.defragment(d.ctx(), wants, nil); err != nil || !end.GetFits() {
				t.Errorf("%s, hit %d: again: %v, %v", point, hit, end, err)
			}
			if cpus := d.cpusOf(d.pods()["a"]); cpus.Len() != 3 || cpus.Overlaps(old) {
				t.Errorf("%s, hit %d: after another call it has CPUs %s, had %s", point, hit, cpus, old)
			}
			d.admitted(wants.GetPod())
			d.check()
			d.kill()
		}
	}
	if crashes < 4 {
		t.Errorf("%d crashes", crashes)
	}
}

// TestDefragIsCanceled: the caller leaves while a pod moves, which then returns to what it had.
func TestDefragIsCanceled(t *testing.T) {
	t.Parallel()
	n := newNode(t, append(staticMemory(0, "64Mi"), "--machine", "2s1n8c1t,mem=8Gi", "--topology-manager-policy", "single-numa-node")...)
	n.kernel = false
	d := n.start()
	wants := fragmented(d)
	old := d.cpusOf(d.pods()["a"])
	dry := &admissionv1.DefragmentRequest{Pod: wants.GetPod(), DryRun: true}
	if moved, end, err := d.defragment(d.ctx(), dry, nil); err != nil || end != nil || len(moved) > 0 || d.cpusOf(d.pods()["a"]) != old {
		t.Fatalf("a dry run: %v, %v, %v", moved, end, err)
	}
	// The call may end after the last step. Then the move has ended, and another node gets the next attempt.
	for range 10 {
		ctx, leave := context.WithCancel(d.ctx())
		_, _, err := d.defragment(ctx, &admissionv1.DefragmentRequest{Pod: wants.GetPod()}, func(e *admissionv1.DefragmentResponse) {
			if e.GetProgress() != nil {
				leave()
			}
		})
		leave()
		if err == nil {
			t.Fatal("it was not canceled")
		}
		reversed := false
		d.eventually("the move is reversed or has ended", func() bool {
			p := d.pods()["a"]
			reversed = d.cpusOf(p) == old
			return !p.GetMoving()
		})
		if d.check(); reversed {
			return
		}
		d.kill()
		n = newNode(t, append(staticMemory(0, "64Mi"), "--machine", "2s1n8c1t,mem=8Gi", "--topology-manager-policy", "single-numa-node")...)
		n.kernel = false
		d = n.start()
		wants = fragmented(d)
		old = d.cpusOf(d.pods()["a"])
	}
	t.Error("no canceled call has reversed the move")
}
