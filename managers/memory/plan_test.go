package memory

import (
	"errors"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/workload"
)

// TestWhichNodes is the decision table of two nodes with 9 GiB each.
func TestWhichNodes(t *testing.T) {
	t.Parallel()
	type earlier struct {
		size string
		on   hint.Hint
	}
	for _, row := range []struct {
		name     string
		earlier  []earlier
		affinity hint.Hint
		size     string
		want     string // nodes, or a part of the error
	}{
		{"nobody decided", nil, anywhere, "1Gi", "0"},
		{"nobody decided, two nodes", nil, anywhere, "12Gi", "0-1"},
		{"nobody decided, too much", nil, anywhere, "19Gi", string(NoDefault)},
		{"preferred by nobody, one group", []earlier{{"12Gi", on(0, 1)}}, anywherePreferred, "1Gi", string(NoPreferredDefault)},
		{"too small a set", nil, on(0), "12Gi", "0-1"},
		{"too small a set, preferred", nil, preferably(0), "12Gi", "0-1"},
		{"too small a set, preferred by size only", []earlier{{"5Gi", on(0, 1)}}, preferably(0), "5Gi", string(NoPreferredExtension)},
		{"no wider set", []earlier{{"1Gi", on(0)}}, preferably(0), "17Gi", string(NoExtension)},
		{"one node is used alone", []earlier{{"1Gi", on(0)}}, on(0, 1), "9Gi", string(GroupTaken)},
		{"larger than needed", nil, on(0, 1), "1Gi", "0-1"},
		{"a node of a group", []earlier{{"1Gi", on(0, 1)}}, on(1), "1Gi", "1"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, nodesOf(9*gi, 9*gi))
			for i, e := range row.earlier {
				n.must(n.admit(pod("earlier"+string(rune('0'+i)), "c="+e.size), e.on))
			}
			err := n.admit(pod("a", "c="+row.size), row.affinity)
			var place *PlacementError
			switch {
			case err == nil:
				wantText(t, "nodes", n.placed("a", "c"), row.want)
			case !errors.As(err, &place) || string(place.Problem) != row.want:
				t.Errorf("got %v, want %s", err, row.want)
			case err.Error() != "[memorymanager] "+row.want:
				t.Errorf("users search for %q, not %q", "[memorymanager] "+row.want, err)
			case errdefs.ClassOf(err) != errdefs.Refused || len(place.Shortages) == 0:
				t.Errorf("class %s, shortages %v", errdefs.ClassOf(err), place.Shortages)
			}
		})
	}
}

// TestLifeOfAGroup follows charging and freeing through a group's life.
func TestLifeOfAGroup(t *testing.T) {
	t.Parallel()
	n := newNode(t, nodesOf(9*gi, 9*gi))
	n.must(n.admit(pod("a", "c=12Gi"), anywhere))
	wantText(t, "usage", n.usage("memory"), "9Gi[0-1] 3Gi[0-1]")
	n.must(n.admit(pod("b", "c=2Gi"), anywhere))
	wantText(t, "usage", n.usage("memory"), "9Gi[0-1] 5Gi[0-1]")
	n.remove("a")
	wantText(t, "usage", n.usage("memory"), "0[0-1] 2Gi[0-1]")
	n.remove("b")
	wantText(t, "usage", n.usage("memory"), "0[0] 0[1]")
}

// TestRefusalByStages is the longer worked example, under the topology policy
// restricted with CPUs on either node: each row is a pod, the hints it gets, what
// the merge decides, and how it ends.
func TestRefusalByStages(t *testing.T) {
	t.Parallel()
	n := newNode(t, nodesOf(9*gi, 9*gi))
	wantText(t, "hints of a", n.hintsFor(pod("a", "c=5Gi"), 0), "memory: 0p 1p 0-1")
	n.must(n.admit(pod("a", "c=5Gi"), preferably(0)))
	wantText(t, "hints of b", n.hintsFor(pod("b", "c=5Gi"), 0), "memory: 1p")
	n.must(n.admit(pod("b", "c=5Gi"), preferably(1)))
	wantText(t, "hints of c", n.hintsFor(pod("c", "c=12Gi"), 0), "")
	if err := n.admit(pod("c", "c=12Gi"), preferably(0)); err == nil || !strings.Contains(err.Error(), string(NoExtension)) {
		t.Errorf("c: %v", err)
	}
	wantText(t, "usage", n.usage("memory"), "5Gi[0] 5Gi[1]")
	n.remove("a")
	wantText(t, "hints of c, a gone", n.hintsFor(pod("c", "c=12Gi"), 0), "")
	n.remove("b")
	wantText(t, "hints of c, b gone", n.hintsFor(pod("c", "c=12Gi"), 0), "memory: 0-1p")
	wantText(t, "hints of d", n.hintsFor(pod("d", "c=2Gi"), 0), "memory: 0p 1p 0-1")
}

// TestHandingOn is the table of init containers' memory that later containers
// take over.
func TestHandingOn(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name       string
		containers []string
		// held after each container.
		held []string
		// after are what is held when the container in place starts.
		after map[string]string
	}{
		{"more each time", []string{"init:i=1Gi", "init:j=2Gi", "a=3Gi", "b=4Gi"}, []string{"1Gi", "2Gi", "3Gi", "7Gi"},
			map[string]string{"a": "7Gi"}},
		{"less each time", []string{"init:i=4Gi", "init:j=3Gi", "a=2Gi", "b=1Gi"}, []string{"4Gi", "4Gi", "4Gi", "4Gi"},
			map[string]string{"j": "3Gi", "a": "3Gi"}},
		{"just enough", []string{"init:i=7Gi", "init:j=4Gi", "a=4Gi", "b=3Gi"}, []string{"7Gi", "7Gi", "7Gi", "7Gi"},
			map[string]string{"b": "7Gi"}},
		{"just enough otherwise", []string{"init:i=7Gi", "init:j=4Gi", "a=5Gi", "b=2Gi"}, []string{"7Gi", "7Gi", "7Gi", "7Gi"}, nil},
		{"sidecars keep theirs", []string{"init:i=4Gi", "sidecar:s=2Gi", "init:j=5Gi", "a=1Gi"}, []string{"4Gi", "4Gi", "7Gi", "7Gi"},
			map[string]string{"a": "3Gi"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, nodesOf(9*gi))
			p := pod("a", row.containers...)
			for i, want := range row.held {
				n.must(n.commit(n.draft(p, on(0), i)))
				wantText(t, "held after "+p.Containers[i].Name, n.usage("memory"), want+"[0]")
			}
			for _, starting := range []string{"j", "a", "b"} {
				if want := row.after[starting]; want != "" {
					n.finish("a", starting)
					wantText(t, "held when "+starting+" has started", n.usage("memory"), want+"[0]")
				}
			}
			n.remove("a")
			wantText(t, "held in the end", n.usage("memory"), "0[0]")
		})
	}
}

// TestHandingOnAcrossNodes: what is taken over lies where it was, and the rest of
// a larger request beside it.
func TestHandingOnAcrossNodes(t *testing.T) {
	t.Parallel()
	n := newNode(t, nodesOf(4*gi, 4*gi, 4*gi))
	n.must(n.admit(pod("a", "init:i=6Gi", "a=9Gi", "b=1Gi"), on(0, 1, 2)))
	wantText(t, "usage", n.usage("memory"), "4Gi[0-2] 4Gi[0-2] 2Gi[0-2]")
	n.finish("a", "a")
	wantText(t, "usage", n.usage("memory"), "4Gi[0-2] 4Gi[0-2] 2Gi[0-2]")
}

// TestRepeatedAdmission: planning for an owner that has its memory takes nothing,
// for a container, a pod by containers, and a pod as a whole. What is left on a node does not
// suffice for any of them a second time.
func TestRepeatedAdmission(t *testing.T) {
	t.Parallel()
	n := newNode(t, nodesOf(9*gi, 9*gi))
	plain := pod("a", "init:i=6Gi", "a=1Gi", "b=6Gi")
	podCPUs := whole(pod("b", "a=1Gi", "b=1Gi"), "6Gi", "b")
	for range 3 {
		n.must(n.admit(plain, on(0)))
		n.must(n.admitWhole(plain, on(1)))
		n.must(n.admitWhole(podCPUs, on(1)))
		wantText(t, "usage", n.usage("memory"), "7Gi[0] 6Gi[1]")
	}
	for p, container := range map[*workload.Pod]int{plain: 2, podCPUs: -1} {
		claims, err := n.Plan(t.Context(), n.View(), hint.Request{Pod: p, Container: container}, on(0, 1))
		if err != nil || len(claims) > 0 {
			t.Errorf("pod %s gets %v again: %v", p.UID, claims, err)
		}
	}
	n.remove("b")
	wantText(t, "usage", n.usage("memory"), "7Gi[0] 0[1]")
}

func TestPodAsAWhole(t *testing.T) {
	t.Parallel()
	n := newNode(t, nodesOf(9*gi, 9*gi))
	p := whole(pod("a", "init:own=3Gi", "sidecar:s=1Gi", "init:any=1Gi", "excl=1Gi", "shared=1Gi"), "4Gi", "any", "shared")
	n.must(n.admitWhole(p, on(0)))
	wantText(t, "usage", n.usage("memory"), "4Gi[0] 0[1]")
	record, _ := n.View().Pod("a")
	for container, want := range map[string]uint64{"": 4 * gi, "own": 3 * gi, "s": gi, "any": 3 * gi, "excl": gi, "shared": 2 * gi} {
		claim, ok := record.Claim(container, "memory")
		if !ok || claim.Memory[0].Bytes != want || claim.Memory[0].Nodes != 1 {
			t.Errorf("container %q holds %+v, want %d bytes", container, claim.Memory, want)
		}
	}
	if s := n.State(n.View()); s[0].Blocks != 1 {
		t.Errorf("node 0 counts %d blocks, want that of the pod", s[0].Blocks)
	}
	n.remove("a")
	wantText(t, "usage", n.usage("memory"), "0[0] 0[1]")
}

func TestPodAsAWholeWithNothingToShare(t *testing.T) {
	t.Parallel()
	n := newNode(t, nodesOf(9*gi, 9*gi))
	for _, row := range []struct {
		name string
		pod  *workload.Pod
		init bool
	}{
		{"app containers take all", whole(pod("a", "a=2Gi", "b=1Gi"), "2Gi", "b"), false},
		{"sidecars take all before an init container", whole(pod("a", "sidecar:s=2Gi", "init:i=1Gi", "a=1Gi"), "2Gi", "i"), true},
	} {
		err := n.admitWhole(row.pod, on(0))
		reason, _ := errdefs.ReasonOf(err)
		var empty *EmptyPodPoolError
		if reason != errdefs.EmptyPodSharedPoolError || !errors.As(err, &empty) || empty.Init != row.init || empty.Resource != "memory" {
			t.Errorf("%s: %v", row.name, err)
		}
	}
	n.must(n.admitWhole(whole(pod("a", "a=2Gi", "b=1Gi"), "3Gi"), on(0)))
}

// TestUnknownPageSize: the kubelet crashes on a request for pages of a size
// that the machine, or one of its nodes, does not know.
func TestUnknownPageSize(t *testing.T) {
	t.Parallel()
	n := newNode(t, machinetest.Build("1s2n1c", machinetest.Memory(0, 9*gi), machinetest.Memory(1, 9*gi),
		machinetest.HugePages(1, 2*mi/ki, 512)))
	for _, affinity := range []hint.Hint{anywhere, on(0), preferably(0, 1)} {
		err := n.admit(pod("a", "c=1Gi 512Mi=512Mi"), affinity)
		var unknown *UnknownPagesError
		if !errors.As(err, &unknown) || unknown.Resource != "hugepages-512Mi" || errdefs.ClassOf(err) != errdefs.Refused {
			t.Errorf("under %v: %v", affinity, err)
		}
	}
	n.must(n.admit(pod("b", "c=1Gi 2Mi=2Mi"), on(0)))
	wantText(t, "nodes", n.placed("b", "c"), "0-1")
	wantText(t, "pages", n.usage("hugepages-2Mi"), "0[0-1] 2Mi[0-1]")
}

// TestDisjointNUMAGroups: a single node of a group is either let in, and then both
// belong to different groups and still nothing is lost; or, by configuration, the
// container is widened to the group.
func TestDisjointNUMAGroups(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		apart       bool
		want, usage string
	}{
		{false, "0", "9Gi[0] 1Gi[0-1]"},
		{true, "0-1", "9Gi[0-1] 1Gi[0-1]"},
	} {
		n := newNode(t, nodesOf(9*gi, 9*gi), func(c *Config) { c.DisjointNUMAGroups = row.apart })
		n.must(n.admit(pod("a", "c=5Gi"), on(0, 1)))
		n.must(n.admit(pod("b", "c=5Gi"), on(0, 1)))
		n.remove("a")
		n.must(n.admit(pod("c", "c=3Gi"), on(0)))
		n.must(n.admit(pod("d", "c=2Gi"), on(0)))
		wantText(t, "nodes", n.placed("c", "c"), row.want)
		wantText(t, "usage", n.usage("memory"), row.usage)
		n.remove("b")
		for _, uid := range []string{"c", "d"} {
			n.remove(uid)
		}
		wantText(t, "usage", n.usage("memory"), "0[0] 0[1]")
	}
}

// TestFreedIsWhatWasTaken: in the kubelet, freeing a group's block begins on the
// lowest node, wherever it was counted, so that with overlapping groups a node
// without blocks keeps bytes, and another one gives out what is held.
func TestFreedIsWhatWasTaken(t *testing.T) {
	t.Parallel()
	n := newNode(t, nodesOf(9*gi, 9*gi))
	n.must(n.admit(pod("a", "c=5Gi"), on(0, 1)))
	n.must(n.admit(pod("b", "c=6Gi"), on(0, 1)))
	n.remove("a")
	n.must(n.admit(pod("c", "c=5Gi"), on(0)))
	wantText(t, "usage", n.usage("memory"), "9Gi[0] 2Gi[0-1]")
	n.remove("b")
	wantText(t, "usage", n.usage("memory"), "5Gi[0] 0[1]")
	if err := n.admit(pod("d", "c=6Gi"), preferably(0)); err == nil {
		t.Error("node 0 gave out what c holds")
	}
}

// TestForeignNodes: an affinity that names nodes the machine lacks, or none, is
// followed as far as it can be.
func TestForeignNodes(t *testing.T) {
	t.Parallel()
	n := newNode(t, nodesOf(9*gi, 9*gi))
	n.must(n.admit(pod("a", "c=1Gi"), on(1, 7)))
	wantText(t, "nodes", n.placed("a", "c"), "1")
	n.must(n.admit(pod("b", "c=1Gi"), hint.Hint{}))
	wantText(t, "nodes", n.placed("b", "c"), "0")
	if err := n.admit(pod("c", "c=9Gi"), on(40)); err == nil {
		t.Error("admitted where no node has enough")
	}
}

func TestFinishedOfNobody(t *testing.T) {
	t.Parallel()
	record := &ledger.Pod{Pod: *pod("a", "init:i=1Gi", "c=1Gi")}
	if got := new(Manager).Finished(record, "unknown"); len(got) > 0 {
		t.Errorf("an unknown container ends init containers: %v", got)
	}
}

// TestUncountedPages: huge pages of a container that its pod as a whole does not request
// are refused, and nothing is held; those that it requests are given.
func TestUncountedPages(t *testing.T) {
	t.Parallel()
	n := newNode(t, machinetest.Build("1s2n1c,mem=8Gi,huge=1Gi:2"))
	p := whole(pod("a", "a=1Gi 1Gi=1Gi", "b=1Gi"), "4Gi", "b")
	var uncounted *UncountedPagesError
	err := n.admitWhole(p, on(0))
	if !errors.As(err, &uncounted) || uncounted.Container != "a" || uncounted.Resource != "hugepages-1Gi" {
		t.Fatalf("got %v", err)
	}
	if _, known := n.View().Pod("a"); known {
		t.Error("the refused pod is in the ledger")
	}
	p.Resources.Requests["hugepages-1Gi"] = 2 * gi // of which b has the rest; requests and limits are one map
	n.must(n.admitWhole(p, on(0)))
}

// TestNothingRequestedBesidePodLevel: in a pod with pod-level resources, a container without a memory request gets no
// hint and no memory of certain nodes, also if no node has any left.
func TestNothingRequestedBesidePodLevel(t *testing.T) {
	t.Parallel()
	n := newNode(t, nodesOf(9*gi, 9*gi))
	n.must(n.admit(pod("full", "a=9Gi", "b=9Gi"), anywhere))
	p := whole(pod("a", "c=1Gi", "d=1Gi"), "2Gi", "c", "d")
	wantText(t, "hints", n.hintsFor(p, 0), "")
	for _, affinity := range []hint.Hint{anywhere, on(0), preferably(1)} {
		draft, err := n.draft(p, affinity, 0, 1)
		n.must(err)
		if record, _ := draft.View().Pod("a"); len(record.Claims) != 0 {
			t.Errorf("claims %v", record.Claims)
		}
	}
}

// TestPagesOfInitContainersCount: in pod scope, what only an init container or a sidecar requests is in the pod's hints, so
// that the pod is placed where it is (kubernetes#140814).
func TestPagesOfInitContainersCount(t *testing.T) {
	t.Parallel()
	topo := machinetest.Build("2n4c", machinetest.Memory(0, 18*gi), machinetest.Memory(1, 18*gi), machinetest.HugePages(1, 1<<20, 4))
	for _, row := range []struct {
		init      string
		asKubelet bool
		hints     string
	}{
		{"init:i=1Gi 1Gi=4Gi", false, "hugepages-1Gi: 1p 0-1, memory: 1p 0-1"},
		{"sidecar:i=1Gi 1Gi=4Gi", false, "hugepages-1Gi: 1p 0-1, memory: 1p 0-1"},
		{"init:i=1Gi 1Gi=4Gi", true, "memory: 0p 1p 0-1"},
	} {
		n := newNode(t, topo, func(c *Config) { c.AsKubelet = row.asKubelet })
		p := pod("a", row.init, "c=1Gi")
		wantText(t, row.init, n.hintsFor(p, -1), row.hints)
		if !row.asKubelet {
			n.must(n.admitWhole(p, preferably(1)))
			wantText(t, "nodes", n.placed("a", "i")+" "+n.placed("a", "c"), "1 1")
		}
	}
}
