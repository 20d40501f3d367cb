package reconcile

import (
	"testing"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/workload"
)

func name(path string) cgroup.Name { return cgroup.ParseCgroupfs(path) }

func TestReport(t *testing.T) {
	t.Parallel()
	b := newBench(t, memtree.V1(), func(c *Config) { c.DriftPolicy = ReportDrift })
	b.admit("a", workload.Burstable, cpus(500))
	b.pass()
	b.set("/kubepods/burstable/poda", cgroup.Values{CPUShares: ptr(uint64(7))})
	b.set("/kubepods/podlost", cgroup.Values{})
	if err := b.tree.Remove(t.Context(), name("/kubepods/besteffort")); err != nil {
		t.Fatal(err)
	}
	for range 2 { // looking changes nothing
		r, err := b.Report(t.Context())
		if err != nil || len(r.Drifts) != 0 {
			t.Fatalf("%v, %v", r.Drifts, err)
		}
		got := map[string]Entry{}
		for _, e := range r.Entries {
			got[e.Name.String()] = e
		}
		if e := got["/kubepods/burstable/poda"]; !e.Managed || len(e.Pending) != 1 || e.Pending[0].Writes[0].New != "512" {
			t.Errorf("the pod: %+v", e)
		}
		if e := got["/kubepods/podlost"]; e.Managed || e.State != cgroup.Valid || len(e.Pending) != 0 {
			t.Errorf("the orphan: %+v", e)
		}
		if e := got["/kubepods/besteffort"]; !e.Managed || e.State != cgroup.Absent || e.Pending[0].Kind != cgroup.Create {
			t.Errorf("what is gone: %+v", e)
		}
		if _, err := b.Plan(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	b.pass()
	if len(b.last.Drifts) != 2 {
		t.Errorf("drifts %v: a look has used them up", b.last.Drifts)
	}
	if r, err := b.Report(t.Context()); err != nil || len(r.Drifts) != 2 {
		t.Errorf("after the pass: %v, %v", r.Drifts, err)
	}
}

func TestUpdateTiers(t *testing.T) {
	t.Parallel()
	b := newBench(t, memtree.V1(), nil)
	b.pass()
	b.admit("a", workload.Burstable, cpus(500))
	ops, err := b.UpdateTiers(t.Context())
	if err != nil || len(ops) != 1 || b.shares("/kubepods/burstable") != 512 || b.seen("/kubepods/burstable/poda").State != cgroup.Absent {
		t.Errorf("%v, %v: %d shares", ops, err, b.shares("/kubepods/burstable"))
	}
	b.refuse["/kubepods/burstable"] = errRefused
	b.admit("b", workload.Burstable, cpus(500))
	if _, err := b.UpdateTiers(t.Context()); err == nil {
		t.Error("a refusal is not told")
	}
}
