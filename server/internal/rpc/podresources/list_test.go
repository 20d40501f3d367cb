package podresources_test

import (
	"fmt"
	"testing"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/berthd/berth/hack/allocs"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/rpc/podresources"
)

// TestListFollowsTheLedger: an answer is the same until a pod changes, and has every change.
func TestListFollowsTheLedger(t *testing.T) {
	t.Parallel()
	l := put(t, ledgertest.Pod("a", "c"))
	c := serve(t, l, empty(), workload.Features{})
	expect := func(when, want string) {
		t.Helper()
		for range 2 {
			got, err := c.v1.List(t.Context(), &v1.ListPodResourcesRequest{})
			var text string
			for _, p := range got.GetPodResources() {
				text += p.GetName() + fmt.Sprint(p.GetContainers()[0].GetCpuIds())
			}
			if err != nil || text != want {
				t.Errorf("%s: %s, %v; want %s", when, text, err, want)
			}
		}
	}
	change := func(do func(*ledger.Draft)) {
		t.Helper()
		if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { do(d); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	expect("at first", "pod-a[]")
	change(func(d *ledger.Draft) {
		d.PutPod(ledgertest.With(ledgertest.Pod("b", "c"), ledgertest.Exclusive("c", "2")))
	})
	expect("with another pod", "pod-a[]pod-b[2]")
	change(func(d *ledger.Draft) {
		d.AddClaims("b", ledgertest.With(ledgertest.Pod("b", "c"), ledgertest.Exclusive("c", "3")).Claims...)
	})
	expect("with another CPU", "pod-a[]pod-b[3]")
	change(func(d *ledger.Draft) { d.RemovePod("a") })
	expect("without the first pod", "pod-b[3]")
}

// TestAllocationsOfList: nothing is computed for a reader while no pod changes.
func TestAllocationsOfList(t *testing.T) {
	pods := make([]*ledger.Pod, 100)
	for i := range pods {
		pods[i] = ledgertest.Pod(fmt.Sprint(i), "c")
	}
	s := podresources.New(podresources.Parts{
		Ledger: put(t, pods...), CPUs: cpus{cpuset.Range(1, 3)}, Inventory: inventory{empty()}, Counter: noCounter{},
	}, workload.Features{})
	allocs.AtMost(t, "List of an unchanged ledger", 1, func() error {
		_, err := s.List(t.Context(), &v1.ListPodResourcesRequest{})
		return err
	})
}

type noCounter struct{}

func (noCounter) Count(podresources.Metric, string) {}
