package memory

import (
	"strings"
	"testing"

	"github.com/berthd/berth/managers/hint/hinttest"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/workload"
)

// TestDrift: a boot that moved a page between nodes, took huge pages away or a
// node, is reported, and claims are kept.
func TestDrift(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		now  []uint64
		want []string
	}{
		{"nothing", []uint64{9 * gi, 9 * gi, gi}, nil},
		{"a page moved", []uint64{9*gi - 4096, 9*gi + 4096, gi}, []string{
			"policy drift: memory of NUMA node 0 was 9Gi and is 9437180Ki",
			"policy drift: memory of NUMA node 1 was 9Gi and is 9437188Ki",
		}},
		{"pages lost under a group that was full", []uint64{9*gi - 4096, 9 * gi, gi}, []string{
			"policy drift: memory of NUMA node 0 was 9Gi and is 9437180Ki",
			"policy memory: group/c, more/c hold 18Gi of memory on NUMA nodes 0-1, which is 4Ki more than is allocatable there",
		}},
		{"a node with a pod is gone", []uint64{9 * gi, 9 * gi}, []string{"policy drift: NUMA node 2 is gone"}},
		{"a node is new", []uint64{9 * gi, 9 * gi, gi, gi}, []string{"policy drift: NUMA node 3 is new"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			j := ledgertest.NewJournal()
			topo := nodesOf(9*gi, 9*gi, gi)
			n := newNode(t, topo)
			n.Ledger, _ = ledgertest.Open(t, journal.Options{Journal: j, Rules: ledger.Rules{Machine: topo}})
			n.must(n.admit(pod("group", "c=12Gi"), on(0, 1)))
			n.must(n.admit(pod("more", "c=6Gi"), on(0, 1)))
			n.must(n.admit(pod("alone", "c=1Mi"), on(2)))
			before := n.Baseline()

			after := newNode(t, nodesOf(row.now...))
			after.Ledger, _ = ledgertest.Open(t, journal.Options{
				Journal: j.Reopen(), Rules: ledger.Rules{Machine: nodesOf(row.now...)},
			})
			for _, uid := range []string{"group", "more", "alone"} {
				wantText(t, uid, after.placed(uid, "c"), n.placed(uid, "c"))
			}
			var got []string
			for _, f := range after.Drift(after.View(), before) {
				got = append(got, f.String())
			}
			wantText(t, "findings", strings.Join(got, "\n"), strings.Join(row.want, "\n"))
			after.must(after.admit(pod("next", "c=0"), anywhere))
			after.remove("group")
			after.must(after.admit(pod("again", "c=11Gi"), on(0, 1)))
		})
	}
}

func TestDriftOfPages(t *testing.T) {
	t.Parallel()
	with := machinetest.Build("1s1n1c", machinetest.Memory(0, 8*gi), machinetest.HugePages(0, 2*ki, 512))
	n := newNode(t, with)
	n.must(n.admit(pod("a", "c=1Gi 2Mi=64Mi"), on(0)))
	without := newNode(t, nodesOf(8*gi))
	var got []string
	for _, f := range without.Drift(n.View(), n.Baseline()) {
		got = append(got, f.String())
	}
	wantText(t, "findings", strings.Join(got, "\n"), strings.Join([]string{
		"policy drift: hugepages-2Mi of NUMA node 0 was 1Gi and is 0",
		"policy drift: allocatable memory of NUMA node 0 was 7Gi and is 8Gi",
		"policy memory: a/c holds hugepages-2Mi, which no NUMA node has any more",
	}, "\n"))
}

// TestCheckPages: the kernel may have fewer pages free than the usage table.
func TestCheckPages(t *testing.T) {
	t.Parallel()
	n := newNode(t, machinetest.Build("1s2n1c", machinetest.Memory(0, 8*gi), machinetest.Memory(1, 8*gi),
		machinetest.HugePages(0, 2*ki, 512), machinetest.HugePages(1, 2*ki, 512)))
	n.must(n.admit(pod("a", "c=1Gi 2Mi=64Mi"), on(0)))
	pages := func(node0, node1 uint64) []FreePages {
		return []FreePages{{0, 2 * ki, node0}, {1, 2 * ki, node1}, {0, gi / ki, 100}, {-1, 2 * ki, 1}}
	}
	for _, row := range []struct {
		name string
		pod  *workload.Pod
		on   []int
		free []FreePages
		want string
	}{
		{"all is as it should be", pod("b", "c=1Gi 2Mi=960Mi"), []int{0}, pages(512, 512), ""},
		{"just enough", pod("b", "c=1Gi 2Mi=64Mi"), []int{0}, pages(32, 0), ""},
		{
			"somebody took them", pod("b", "c=1Gi 2Mi=64Mi"), []int{0}, pages(31, 512),
			"64Mi of hugepages-2Mi are needed on NUMA nodes 0, where 960Mi are free by the ledger and the kernel has 62Mi",
		},
		{"init containers hand on", pod("b", "init:i=1Gi 2Mi=64Mi", "c=1Gi 2Mi=64Mi"), []int{0}, pages(32, 0), ""},
		{"nothing is known", pod("b", "c=1Gi 2Mi=2Mi"), []int{1}, nil,
			"2Mi of hugepages-2Mi are needed on NUMA nodes 1, where 1Gi are free by the ledger and the kernel has 0"},
		{"no pages are wanted", pod("b", "c=1Gi"), []int{1}, nil, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			containers := make([]int, len(row.pod.Containers))
			for i := range containers {
				containers[i] = i
			}
			draft, err := n.draft(row.pod, on(row.on...), containers...)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, s := range n.checkPages(n.View(), n.View(), draft.View(), row.free) {
				got = append(got, s.String())
			}
			wantText(t, "shortages", strings.Join(got, "\n"), row.want)
		})
	}
}

func TestContract(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, shape string
		apart       bool
	}{
		{"two nodes", "2s4c,mem=8Gi,huge=2Mi:64", false},
		{"groups apart", "2s2n4c,mem=4Gi,huge=2Mi:64,huge=1Gi:1", true},
		{"many nodes", "2s6n4c,mem=4Gi,huge=2Mi:64", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			hinttest.Run(t, func() hinttest.Setup {
				n := newNode(t, machinetest.Build(row.shape), func(c *Config) { c.DisjointNUMAGroups = row.apart })
				n.must(n.admit(pod("earlier", "init:i=2Gi", "c=1Gi 2Mi=4Mi"), on(1)))
				return hinttest.Setup{Provider: n, View: n.View(), Pods: []*workload.Pod{
					pod("one", "c=1Gi"),
					pod("two", "c=5Gi 2Mi=64Mi"),
					pod("reuse", "init:i=3Gi", "sidecar:s=1Gi", "a=2Gi", "b=1Gi 2Mi=2Mi"),
					pod("huge", "c=1000Gi"),
					pod("unknown", "c=1Gi 512Mi=512Mi"),
					whole(pod("whole", "init:i=1Gi", "a=1Gi", "b=1Gi"), "4Gi", "b"),
				}}
			})
		})
	}
}
