package reconcile

import (
	"testing"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/workload"
)

// TestNames: whose a cgroup is follows from its name, with both drivers.
func TestNames(t *testing.T) {
	t.Parallel()
	for _, driver := range []cgroup.Driver{cgroup.Cgroupfs, cgroup.Systemd} {
		layout, err := cgroup.NewLayout("/", driver)
		if err != nil {
			t.Fatal(err)
		}
		ns := names{layout}
		own, other := ledgertest.Pod("a", "c"), ledgertest.Pod("b", "c")
		other.QoS = workload.Burstable
		own.QoS = workload.Guaranteed
		draft := ledger.NewDraft(ledger.Empty(ledger.Rules{Machine: machinetest.Build("4c")}))
		draft.PutPod(own)
		view := draft.View()
		p, pod, err := ns.pod(view, "a")
		if err != nil || p.UID() != "a" {
			t.Fatalf("%v: pod %v, %v", driver, p, err)
		}
		if _, _, err := ns.pod(view, "b"); errdefs.ClassOf(err) != errdefs.Internal {
			t.Errorf("%v: a pod that is not in the view: %v", driver, err)
		}
		container, err := ns.container(p, "c")
		if err != nil {
			t.Fatal(err)
		}
		literal, err := layout.Literal(container)
		if err != nil {
			t.Fatal(err)
		}
		draft.Bind(ledger.Binding{ID: "1", Owner: ledger.Owner{Pod: "a", Container: "c"}, Own: true, CgroupPath: literal})
		draft.Bind(ledger.Binding{ID: "2", Owner: ledger.Owner{Pod: "a", Container: "c"}})
		view = draft.View()
		for _, row := range []struct {
			name                cgroup.Name
			in                  string
			inside, isContainer bool
		}{
			{layout.Pods(), "", false, false},
			{layout.Tier(workload.Burstable), "", false, false},
			{pod, "a", false, false},
			{container, "a", true, true},
			{append(pod[:len(pod):len(pod)], "cri-2.scope"), "a", true, true},
			{append(pod[:len(pod):len(pod)], "cri-3.scope"), "a", true, false},
			{append(container[:len(container):len(container)], "below"), "a", true, false},
		} {
			if got := ns.inPod(row.name); got != row.in {
				t.Errorf("%v: %s is in pod %q, want %q", driver, row.name, got, row.in)
			}
			if got := ns.inContainer(row.name); got != row.inside {
				t.Errorf("%v: %s is in a container: %t", driver, row.name, got)
			}
			if got := ns.isContainer(view, "a", row.name); got != row.isContainer {
				t.Errorf("%v: %s is a container: %t", driver, row.name, got)
			}
		}
		if !ns.isOf(own, pod) || ns.isOf(other, pod) {
			t.Errorf("%v: the cgroup %s is of the wrong class", driver, pod)
		}
		if got := ns.pathOf(container); got != literal {
			t.Errorf("%v: %s is spelt %s, want %s", driver, container, got, literal)
		}
	}
}
