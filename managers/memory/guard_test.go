package memory

import (
	"errors"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/workload"
)

// TestPageGuard: huge pages that other processes use are noticed before they
// are promised, by a pod that is new.
func TestPageGuard(t *testing.T) {
	t.Parallel()
	n := newNode(t, machinetest.Build("1s1n1c", machinetest.Memory(0, 8*gi), machinetest.HugePages(0, 2*ki, 512),
		machinetest.HugePages(0, gi/ki, 2)))
	n.must(n.admit(pod("running", "c=1Gi 2Mi=64Mi"), on(0)))
	broken := errors.New("no such file")
	for _, row := range []struct {
		name    string
		pod     *workload.Pod
		free    uint64
		failing error
		wait    bool
		want    string
	}{
		{"enough", pod("b", "c=1Gi 2Mi=64Mi"), 32, nil, false, ""},
		{"too few", pod("b", "c=1Gi 2Mi=64Mi"), 31, nil, false,
			"64Mi of hugepages-2Mi are needed on NUMA nodes 0, where 960Mi are free by the ledger and the kernel has 62Mi"},
		{"of two sizes", pod("b", "c=1Gi 1Gi=1Gi 2Mi=64Mi"), 31, nil, true,
			"1Gi of hugepages-1Gi are needed on NUMA nodes 0, where 2Gi are free by the ledger and the kernel has 0; " +
				"64Mi of hugepages-2Mi are needed on NUMA nodes 0, where 960Mi are free by the ledger and the kernel has 62Mi"},
		{"nobody knows", pod("b", "c=1Gi 2Mi=64Mi"), 0, broken, false, "no such file"},
		{"nobody asks", pod("b", "c=1Gi"), 0, broken, false, ""},
		{"runs already", pod("running", "c=1Gi 2Mi=64Mi"), 0, nil, false, ""},
	} {
		draft := ledger.NewDraft(n.View())
		if row.pod.UID != "running" {
			var err error
			if draft, err = n.draft(row.pod, on(0), 0); err != nil {
				t.Fatal(err)
			}
		}
		g := &PageGuard{Manager: n.Manager, Pages: Pages{
			Free: func() ([]FreePages, *ledger.View, error) {
				return []FreePages{{0, 2 * ki, row.free}}, n.View(), row.failing
			},
			Wait: row.wait,
		}}
		err := g.Validate(t.Context(), draft.View(), hint.Request{Pod: row.pod, Container: -1, Running: row.pod.UID == "running"})
		got := ""
		if err != nil {
			got = err.Error()
		}
		wantText(t, row.name, got, row.want)
		var waiter hint.Waiter
		if errors.As(err, &waiter) != row.wait || row.wait && waiter.Waits() != (hint.Wait{Condition: "HugePagesTaken",
			Resource: "hugepages-1Gi"}) {
			t.Errorf("%s: waits: %v", row.name, waiter)
		}
		if reason, _ := errdefs.Verdict(err); err != nil && row.failing == nil && reason != errdefs.OutOf(resourceOf(err)) {
			t.Errorf("%s: reason %s", row.name, reason)
		}
	}
}

// TestPagesOfAnotherView: on a view without the pods that use the pages, they are free.
func TestPagesOfAnotherView(t *testing.T) {
	t.Parallel()
	n := newNode(t, machinetest.Build("1s1n1c", machinetest.Memory(0, 8*gi), machinetest.HugePages(0, 2*ki, 64)))
	empty := n.View()
	n.must(n.admit(pod("running", "c=1Gi 2Mi=96Mi"), on(0)))
	draft, err := n.draft(pod("b", "c=1Gi 2Mi=32Mi"), on(0), 0)
	if err != nil {
		t.Fatal(err)
	}
	alone := ledger.NewDraft(draft.View())
	alone.RemovePod("running")
	for _, row := range []struct {
		name          string
		base, planned *ledger.View
		free          uint64
		fits          bool
	}{
		{"present, nothing free", n.View(), draft.View(), 0, false},
		{"alone, all used by the pod", empty, alone.View(), 0, true},
		{"alone, the pod uses none", empty, alone.View(), 64, true},
	} {
		got := n.checkPages(n.View(), row.base, row.planned, []FreePages{{0, 2 * ki, row.free}})
		if (len(got) == 0) != row.fits {
			t.Errorf("%s: %v", row.name, got)
		}
	}
	// Pages that no pod holds are used by other programs.
	if got := n.checkPages(empty, empty, alone.View(), nil); len(got) != 1 {
		t.Errorf("pages that others use: %v", got)
	}
}

// resourceOf reports which resource an error is about.
func resourceOf(err error) string {
	e := new(errdefs.Error)
	if errors.As(err, &e) {
		return e.Resource
	}
	return ""
}
