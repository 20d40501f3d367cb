package memory

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

const pages2Mi = "hugepages-2Mi"

// usesPages is what pods use of pages of 2 MiB, in pages; unknown where the map is nil.
func usesPages(pods map[string]uint64, system ...uint64) PodPages {
	out := PodPages{
		Of:  func(uid string, _ workload.Resource) (uint64, bool) { n, ok := pods[uid]; return n * 2 * mi, ok },
		All: func(workload.Resource) (uint64, bool) { return pods["all"] * 2 * mi, pods != nil },
	}
	out.System = map[int]map[workload.Resource]uint64{}
	for id, n := range system {
		out.System[id] = map[workload.Resource]uint64{pages2Mi: n * 2 * mi}
	}
	return out
}

// TestTakenPages: pages in use are those of pods with memory of the node, as far as their cgroups use them. The others are taken.
func TestTakenPages(t *testing.T) {
	t.Parallel()
	const unpinned = "burstable"
	for name, row := range map[string]struct {
		// pods on their nodes, with the pages that they hold.
		pods map[string][2]uint64 // nodes as a mask, pages
		// uses is nil where the kernel does not say it.
		uses   map[string]uint64
		system []uint64
		inUse  [2]uint64
		want   [2]uint64 // pages
		// outside are those that no pod uses.
		outside uint64
	}{
		"nothing": {inUse: [2]uint64{0, 0}, uses: map[string]uint64{}},
		"others":  {inUse: [2]uint64{0, 3}, uses: map[string]uint64{}, want: [2]uint64{0, 3}, outside: 3},
		"a pod that uses all": {map[string][2]uint64{"a": {1, 8}},
			map[string]uint64{"a": 8, "all": 8}, nil, [2]uint64{8, 0}, [2]uint64{}, 0},
		"a pod that uses some": {map[string][2]uint64{"a": {1, 8}},
			map[string]uint64{"a": 2, "all": 2}, nil, [2]uint64{8, 0}, [2]uint64{6, 0}, 6},
		"others on the other node": {map[string][2]uint64{"a": {1, 8}},
			map[string]uint64{"a": 8, "all": 8}, nil, [2]uint64{8, 4}, [2]uint64{0, 4}, 4},
		"the pod's are elsewhere": {map[string][2]uint64{"a": {1, 8}},
			map[string]uint64{"a": 8, "all": 8}, nil, [2]uint64{0, 8}, [2]uint64{0, 8}, 0},
		"unknown use": {map[string][2]uint64{"a": {1, 8}}, nil, nil, [2]uint64{9, 1}, [2]uint64{1, 1}, 2},
		"a pod on both": {map[string][2]uint64{"a": {3, 8}},
			map[string]uint64{"a": 8, "all": 8}, nil, [2]uint64{3, 6}, [2]uint64{0, 1}, 1},
		"one node before both": {map[string][2]uint64{"a": {3, 8}, "b": {2, 2}},
			map[string]uint64{"a": 4, "b": 2, "all": 6}, nil, [2]uint64{1, 5}, [2]uint64{}, 0},
		"without memory of a node": {map[string][2]uint64{unpinned: {0, 8}},
			map[string]uint64{"all": 5}, nil, [2]uint64{3, 3}, [2]uint64{3, 3}, 1},
		"the system's":           {nil, map[string]uint64{}, []uint64{4, 0}, [2]uint64{3, 0}, [2]uint64{}, 0},
		"more than the system's": {nil, map[string]uint64{}, []uint64{2, 2}, [2]uint64{3, 1}, [2]uint64{1, 0}, 1},
		"the system's and a pod's": {map[string][2]uint64{"a": {1, 4}},
			map[string]uint64{"a": 4, "all": 4}, []uint64{2, 0}, [2]uint64{6, 0}, [2]uint64{}, 0},
		"more than it may": {map[string][2]uint64{"a": {1, 2}},
			map[string]uint64{"a": 6, "all": 6}, nil, [2]uint64{6, 0}, [2]uint64{4, 0}, 0},
		"pages of a pod that ended": {nil, map[string]uint64{"all": 4}, nil, [2]uint64{4, 0}, [2]uint64{4, 0}, 0},
	} {
		n := newNode(t, machinetest.Build("1s2n1c,mem=8Gi,huge=2Mi:16"))
		for _, uid := range slices.Sorted(maps.Keys(row.pods)) {
			d := row.pods[uid]
			p := pod(uid, "c=1Gi 2Mi="+quantity(d[1]*2*mi))
			p.UID = uid
			record := &ledger.Pod{Pod: *p}
			if d[0] > 0 {
				claim := ledger.Claim{Owner: ledger.Owner{Pod: uid, Container: "c"}, Provider: Name, Resource: pages2Mi}
				claim.Memory = []ledger.Block{{Nodes: numa.Mask(d[0]), Bytes: d[1] * 2 * mi}}
				record.Claims = []ledger.Claim{claim}
			}
			if _, err := n.Ledger.Update(t.Context(), func(draft *ledger.Draft) error { draft.PutPod(record); return nil }); err != nil {
				t.Fatal(err)
			}
		}
		inUse := []Pool{{0, 2 * ki, row.inUse[0]}, {1, 2 * ki, row.inUse[1]}, {64, 2 * ki, 1}}
		var got [2]uint64
		outside := uint64(0)
		for _, p := range n.TakenPages(n.View(), inUse, usesPages(row.uses, row.system...)) {
			got[p.Node], outside = p.Bytes/(2*mi), outside+p.Outside/(2*mi)
			if p.Resource != pages2Mi || p.Outside > p.Bytes {
				t.Errorf("%s: %+v", name, p)
			}
		}
		if got != row.want || outside != row.outside {
			t.Errorf("%s: taken are %d pages, %d of them outside of pods, want %d and %d", name, got, outside, row.want, row.outside)
		}
	}
}

// TestTakenPagesAreNotGivenOut: a pod gets pages of another node, of both, or none, and running pods keep theirs.
func TestTakenPagesAreNotGivenOut(t *testing.T) {
	t.Parallel()
	n := newNode(t, machinetest.Build("1s2n1c,mem=8Gi,huge=2Mi:16"))
	n.must(n.admit(pod("running", "c=1Gi 2Mi=8Mi"), on(0)))
	take := func(pages ...uint64) {
		t.Helper()
		var list []ledger.TakenPages
		for id, n := range pages {
			list = append(list, ledger.TakenPages{Node: id, Resource: pages2Mi, Bytes: n * 2 * mi, Outside: n * 2 * mi})
		}
		if err := n.Ledger.SetTakenPages(t.Context(), list); err != nil {
			t.Fatal(err)
		}
	}
	take(12, 0)
	wantText(t, "hints", n.hintsFor(pod("new", "c=1Gi 2Mi=2Mi"), 0), "hugepages-2Mi: 1p, memory: 1p")
	if err := n.admit(pod("new", "c=1Gi 2Mi=2Mi"), on(0)); err == nil && n.placed("new", "c") == "0" {
		t.Error("a page that another process has was given out")
	}
	for _, state := range n.State(n.View()) {
		for _, r := range state.Resources {
			if r.Resource != pages2Mi {
				continue
			}
			if r.Held+r.Taken+r.Free != r.Allocatable || state.Node == 0 && (r.Held != 8*mi || r.Taken != 24*mi) {
				t.Errorf("node %d: %+v", state.Node, r)
			}
		}
	}
	take(14, 16) // more than pods leave
	if err := n.admit(pod("late", "c=1Gi 2Mi=2Mi"), anywhere); err == nil {
		t.Error("a page was given out, and there is none")
	}
	if got := n.placed("running", "c"); got != "0" {
		t.Errorf("the running pod is on %s", got)
	}
	const text = "28Mi of hugepages-2Mi on NUMA node 0 are in use outside of pods"
	if f := TakenFindings(n.View()); len(f) != 2 || !strings.Contains(f[0].Text, text) {
		t.Errorf("findings %+v", f)
	}
	take()
	n.must(n.admit(pod("late", "c=1Gi 2Mi=2Mi"), anywhere))
}

// TestNoTakenPageIsFree: whatever is in use, what is free of all nodes together is at most what the kernel has free, if pods use
// what they hold.
func TestNoTakenPageIsFree(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		n := newNode(t, machinetest.Build("1s2n1c,mem=8Gi,huge=2Mi:16"))
		uses := map[string]uint64{}
		var inUse [2]uint64
		for i := range rapid.IntRange(0, 4).Draw(r, "pods") {
			uid, node := string(rune('a'+i)), rapid.IntRange(0, 1).Draw(r, "node")
			pages := rapid.Uint64Range(1, 6).Draw(r, "pages")
			if n.admit(pod(uid, "c=64Mi 2Mi="+quantity(pages*2*mi)), on(node)) != nil || n.placed(uid, "c") != string(rune('0'+node)) {
				continue
			}
			uses[uid] = pages
			uses["all"] += pages
			inUse[node] += pages
		}
		for id := range inUse {
			inUse[id] = min(16, inUse[id]+rapid.Uint64Range(0, 16).Draw(r, "others"))
		}
		taken := n.TakenPages(n.View(), []Pool{{0, 2 * ki, inUse[0]}, {1, 2 * ki, inUse[1]}}, usesPages(uses))
		if err := n.Ledger.SetTakenPages(t.Context(), taken); err != nil {
			r.Fatal(err)
		}
		for _, state := range n.State(n.View()) {
			for _, c := range state.Resources {
				if c.Resource == pages2Mi && c.Free > (16-inUse[state.Node])*2*mi {
					r.Fatalf("%d bytes are free on node %d, and the kernel has %d pages in use", c.Free, state.Node, inUse[state.Node])
				}
			}
		}
	})
}
