package main

import (
	"context"
	"os"
	"strconv"
	"testing"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/hack/testing/nodetest"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/server/internal/store"
)

// moveTimeout is how long a move may take on an emulated machine, whose clock may be faster than its processors.
const moveTimeout = 5 * timeout

// agrees waits until the kernel has a container where the ledger has it: CPUs, memory nodes, and pages.
func (d *daemon) agrees(uid string, p *process) (cpus cpuset.Set, nodes numa.Mask) {
	d.t.Helper()
	const few = 4 << 20
	var pod *typesv1.PodAllocation
	nodetest.Eventually(d.t, moveTimeout, "pod "+uid+" has arrived", func() bool {
		pod = d.pods()[uid]
		return pod != nil && !pod.GetMoving()
	})
	cpus = d.cpusOf(pod)
	for _, m := range pod.GetContainers()[0].GetNodeMemory() {
		nodes = nodes.With(int(m.GetNumaNode()))
	}
	nodetest.Eventually(d.t, moveTimeout, "the kernel has it on CPUs "+cpus.String()+" and nodes "+nodes.String(), func() bool {
		if p.allowed() != cpus || p.status("Mems_allowed_list") != nodes.String() {
			return false
		}
		elsewhere := 0
		for node, pages := range p.pages() {
			if !nodes.Contains(node) {
				elsewhere += pages
			}
		}
		for node := range p.hugePages() {
			if !nodes.Contains(node) {
				return false
			}
		}
		return elsewhere*os.Getpagesize() <= few
	})
	return cpus, nodes
}

// TestCrashDuringAMoveOnTheMachine kills berthd at each durable step of a resize and of a defragmentation that move a
// running container with its memory to another NUMA node. The next berthd ends the move, or knows nothing of it;
// then the kernel has the container where the ledger has it, and nobody has run on CPUs of another.
func TestCrashDuringAMoveOnTheMachine(t *testing.T) {
	for name, kind := range map[string]struct {
		// place admits the pod a, so that request moves it.
		place   func(d *daemon, counts map[int]int)
		request func(ctx context.Context, d *daemon, counts map[int]int) error
		// settings are of the configuration, and pages are the huge pages of the container.
		settings, pages string
		// both means that a move whose begin was not committed leaves the pod what it had and would get: the agent was
		// not answered, and repeats its call.
		both bool
	}{
		"resize": {
			place: func(d *daemon, _ map[int]int) { d.admitted(withMemory("a", 1, "128Mi")) },
			request: func(ctx context.Context, d *daemon, counts map[int]int) error {
				_, err := d.admission.Resize(ctx, berth.ResizeTo(withMemory("a", counts[1], "128Mi")))
				return err
			},
			both: true,
		},
		"resize with huge pages": {
			place: func(d *daemon, _ map[int]int) { d.admitted(withHugePages("a", 1)) },
			request: func(ctx context.Context, d *daemon, counts map[int]int) error {
				_, err := d.admission.Resize(ctx, berth.ResizeTo(withHugePages("a", counts[1])))
				return err
			},
			settings: movesHugePages, pages: "5 3 0 0", both: true,
		},
		"defrag": {
			place: func(d *daemon, counts map[int]int) {
				d.admitted(withMemory("first", counts[0]-2, "1Mi")) // the rest of node 0
				d.admitted(movable(withMemory("a", 1, "128Mi")))
				d.remove("first")
			},
			request: func(ctx context.Context, d *daemon, counts map[int]int) error {
				_, _, err := d.defragment(ctx, &admissionv1.DefragmentRequest{Pod: withMemory("new", counts[1], "1Mi"), MaxMoves: 1}, nil)
				return err
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if kind.pages != "" {
				needPages(t)
			}
			n, d, shared, counts, lowest := twoNodesWith(t, kind.settings)
			if len(counts) != 2 || lowest != 0 || counts[0] < 3 {
				t.Skipf("needs two NUMA nodes with three CPUs each; this machine has %v", counts)
			}
			crashDuringMoves(t, n, d, shared, kind.pages, kind.both, func(d *daemon) { kind.place(d, counts) }, func(d *daemon) error {
				ctx, cancel := context.WithTimeout(context.Background(), moveTimeout)
				defer cancel()
				return kind.request(ctx, d, counts)
			})
		})
	}
}

func crashDuringMoves(t *testing.T, n *node, d *daemon, shared *process, pages string, both bool, place func(*daemon),
	request func(*daemon) error) {
	const used = 24 // MiB
	d.admitted(withMemory("stays", 1, "64Mi"))
	c := &clashes{t: t, shared: shared, stays: d.started(n, "stays")}
	c.own = d.cpusOf(d.pods()["stays"])
	d.eventually("it has its CPUs for itself", func() bool { return c.stays.allowed() == c.own && !shared.allowed().Overlaps(c.own) })
	c.watch()
	crashes, ended, undone := 0, 0, 0
	// The other points leave the same behind as one of these: the claim record is written right before the commit.
	for _, point := range []string{store.BeforeCommit, store.AfterCommit} {
		for hit := 1; hit <= 8; hit++ {
			place(d)
			a := n.stoppedWith(used, asHuge+"="+pages)
			d.run(a, "a", "main", "c-a")
			a.works()
			was, from := d.agrees("a", a)
			to := d.cpusOfNode(1 - lowestOf(from))
			c.moves(a, to)
			d.kill()
			d = n.launch("--failpoint", point+":kill:"+strconv.Itoa(hit))
			died := !d.readyOrDead()
			if !died {
				died = request(d) != nil || !d.ends("a")
				d.kill()
			}
			d = n.start()
			cpus, nodes := d.agrees("a", a)
			after := cpus
			d.check()
			if moved := cpus.IsSubsetOf(to) && !nodes.Overlaps(from); moved {
				ended++
			} else if undone++; (cpus != was || nodes != from) && (!both || !was.IsSubsetOf(cpus) || !from.IsSubsetOf(nodes)) {
				t.Errorf("%s, hit %d: it has CPUs %s and memory of nodes %s, had %s and %s", point, hit, cpus, nodes, was, from)
			}
			if err := request(d); err != nil {
				t.Fatal(err)
			}
			if cpus, nodes = d.agrees("a", a); !cpus.IsSubsetOf(to) || nodes.Overlaps(from) {
				t.Errorf("%s, hit %d: after another call it has CPUs %s and memory of nodes %s, had %s and %s", point, hit, cpus, nodes,
					was, from)
			}
			c.moves(nil, cpuset.Set{})
			d.remove("a")
			d.check()
			if !died {
				break // the point is not hit so often
			}
			crashes++
			t.Logf("%s, hit %d: CPUs %s before, %s after the next start, and %s in the end", point, hit, was, after, cpus)
		}
	}
	t.Logf("%d crashes; %d times the move was over after the next start, and %d times it had not begun", crashes, ended, undone)
	if crashes < 6 || ended == 0 || undone == 0 {
		t.Errorf("%d crashes, %d moves ended, %d not begun", crashes, ended, undone)
	}
}

// lowestOf returns the only node of a mask.
func lowestOf(nodes numa.Mask) int {
	node, _ := nodes.Lowest()
	return node
}
