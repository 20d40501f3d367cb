package main

import (
	"runtime"
	"strconv"
	"strings"
	"testing"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
)

const mib = 1 << 20

// TestContainerd makes pods in a real containerd that know nothing of berth, as a
// kubelet does, and kills everything that takes part, one after the other.
func TestContainerd(t *testing.T) {
	t.Parallel()
	if runtime.NumCPU() < 2 {
		t.Skipf("needs 2 CPUs, one of them for the system; here are %d", runtime.NumCPU())
	}
	n := newNode(t)
	// The exclusive containers want all CPUs but the reserved one.
	last := runtime.NumCPU() - 1
	all, shared, rest, milli := "0-"+strconv.Itoa(last), "0", range1(last), int64(last)*1000

	web := n.pod("web", "burstable")
	w := web.run(100, 0)
	n.runsOn("the shared container", w, all)

	trainer := n.pod("trainer", "")
	tr := trainer.run(milli, 128*mib)
	if got, began := allowed(tr), trainer.said("affinity"); got != rest || began != rest {
		t.Errorf("the container of its own runs on %s and began on %s, want %s", got, began, rest)
	}
	if quota := trainer.said("cgroup.cpu." + quotaFile(trainer)); !strings.HasPrefix(quota, "-1") && !strings.HasPrefix(quota, "max") {
		t.Errorf("the container of its own has the quota %s", quota)
	}
	if got := allowed(w); got != shared {
		t.Errorf("the shared container is still on %s", got)
	}

	greedy := n.pod("greedy", "")
	if _, err := greedy.create(1000, 128*mib); err == nil || !strings.Contains(err.Error(), "berth: place container main") {
		t.Errorf("a container that does not fit: %v", err)
	}
	greedy.remove()

	// A pod goes and another one comes while there is no plugin.
	n.plugin.kill()
	trainer.remove()
	late := n.pod("late", "burstable")
	l := late.run(100, 0)
	n.startPlugin()
	n.runsOn("the shared container", w, all)
	trainer = n.pod("trainer2", "")
	if got := allowed(trainer.run(milli, 128*mib)); got != rest {
		t.Errorf("the next container of its own runs on %s", got)
	}
	for what, pid := range map[string]int{"the shared container": w, "the one that came meanwhile": l} {
		if got := allowed(pid); got != shared {
			t.Errorf("%s is on %s", what, got)
		}
	}

	before := n.connections()
	if err := n.containerd.Kill(); err != nil {
		t.Fatal(err)
	}
	n.startContainerd()
	n.connected(before)
	if got := allowed(w); got != shared {
		t.Errorf("after containerd was killed the shared container is on %s", got)
	}

	// Without berthd nothing starts.
	n.berthd.kill()
	refused := n.pod("refused", "burstable")
	if _, err := refused.create(100, 0); err == nil || !strings.Contains(err.Error(), "berth: place container main") {
		t.Errorf("a container was made without berthd: %v", err)
	}
	n.startBerthd()
	n.eventually("a container is made again", func() bool { _, err := refused.create(100, 0); return err == nil })
	trainer.remove()
	n.runsOn("the shared container", w, all)

	for _, p := range []*pod{web, late, refused} {
		p.remove()
	}
	list, err := n.berth.Allocation().List(n.ctx(), &allocationv1.ListRequest{})
	if err != nil || len(list.GetPods()) > 0 {
		t.Errorf("berthd has pods that the runtime has not: %v, %v", list, err)
	}
	check, err := n.berth.Inspect().Check(n.ctx(), &inspectv1.CheckRequest{})
	if err != nil || len(check.GetFindings()) > 0 {
		t.Errorf("check of the ledger: %v, %v", check, err)
	}
}

// quotaFile names the file with a container's CPU quota, by the cgroup version that
// it has told of.
func quotaFile(p *pod) string {
	if p.said("shown") == "all" && strings.Contains(p.text(), "cgroup.cpu.max=") {
		return "max"
	}
	return "cfs_quota_us"
}
