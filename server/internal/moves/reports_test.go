package moves

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/numa"
)

// reporting has a pod p whose container c has memory of node 0 and moves to node 1, or is about to if moves is
// false. Its id is "id". The container d shares memory.
func reporting(t *testing.T, moves bool, migrating ...string) *bench {
	t.Helper()
	b := newBench(t, memtree.V2(), func(c *Config) { c.Reported = true })
	from, to := ledgertest.Memory("c", "memory", "0", 1<<30), ledgertest.Memory("c", "memory", "1", 1<<30)
	now := ledgertest.Memory("c", "memory", "0-1", 1<<30)
	if !moves {
		now = from
	}
	pod := ledgertest.With(ledgertest.Pod("p", "c", "d"), now)
	owned := func(c ledger.Claim) []ledger.Claim {
		c.Owner.Pod = "p"
		return []ledger.Claim{c}
	}
	if moves {
		pod.Move = &ledger.Move{From: owned(from), To: owned(to), Migrating: migrating}
	}
	b.update(func(d *ledger.Draft) {
		d.PutPod(pod)
		d.Bind(ledger.Binding{ID: "id", Owner: ledger.Owner{Pod: "p", Container: "c"}, Sequence: 1})
		d.Bind(ledger.Binding{ID: "shares", Owner: ledger.Owner{Pod: "p", Container: "d"}, Sequence: 2})
	})
	return b
}

// A move of memory that only agents see begins after a report that the memory can move.
func TestReportsBeforeAMove(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		report  *Report
		refusal string
	}{
		"none":      {nil, "has not reported where its memory is"},
		"immovable": {&Report{Immovable: "with cgroup v1, it stays"}, "with cgroup v1, it stays"},
		"movable":   {&Report{Nodes: numa.Of(0)}, ""},
	} {
		b := reporting(t, false)
		if row.report != nil {
			if found, used, news := b.ReportMemory("id", *row.report); !found || !used || !news {
				t.Errorf("%s: found %t, news %t", name, found, news)
			}
			if _, _, news := b.ReportMemory("id", *row.report); news {
				t.Errorf("%s: the same report is news", name)
			}
		}
		err := b.CheckMove(t.Context(), b.ledger.View(), "p", &ledger.Move{})
		if reason, _ := errdefs.ReasonOf(err); row.refusal == "" && err != nil || row.refusal != "" &&
			(reason != errdefs.Infeasible || !strings.Contains(err.Error(), row.refusal)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A move goes on only after a report of its last step, and from a migration only when the memory has arrived.
func TestReportsDuringAMove(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		migrating bool
		age       uint64 // revisions before the step
		report    *Report
		waits     string // why; empty if the move goes on
	}{
		"no report":       {false, 0, nil, "has not reported"},
		"widened":         {false, 0, &Report{Nodes: numa.Of(0, 1)}, ""},
		"not yet":         {false, 0, &Report{Nodes: numa.Of(0)}, "may use memory of NUMA nodes 0, and not of 0-1 only"},
		"before the step": {false, 1, &Report{Nodes: numa.Of(0, 1)}, "has not reported"},
		"not narrowed":    {true, 0, &Report{Nodes: numa.Of(0, 1)}, "may use memory of NUMA nodes 0-1, and not of 1 only"},
		"memory stays": {true, 0, &Report{Nodes: numa.Of(1), Bytes: map[int]uint64{0: 5 << 20, 1: 1 << 20}},
			"of 6291456 bytes"},
		"a little memory":      {true, 0, &Report{Nodes: numa.Of(1), Bytes: map[int]uint64{0: 4 << 20, 1: 1 << 20}}, ""},
		"all memory":           {true, 0, &Report{Nodes: numa.Of(1), Bytes: map[int]uint64{1: 1 << 30}}, ""},
		"arrived in the past":  {true, 1, &Report{Nodes: numa.Of(1), Bytes: map[int]uint64{1: 1 << 30}}, "has not reported"},
		"cannot be seen today": {true, 0, &Report{Nodes: numa.Of(1), Immovable: "no cgroup"}, "no cgroup"},
	} {
		var migrating []string
		if row.migrating {
			migrating = []string{"c"}
		}
		b := reporting(t, true, migrating...)
		view := b.ledger.View()
		if row.report != nil {
			pod, _ := view.Pod("p")
			row.report.Revision = view.RevisionOf(pod.ChangedGeneration) - row.age
			b.ReportMemory("id", *row.report)
		}
		err := b.Settled(t.Context(), view, "p")
		if row.waits == "" && err != nil || row.waits != "" && (errdefs.ClassOf(err) != errdefs.Unavailable ||
			!strings.Contains(err.Error(), row.waits)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Reports of containers whose cgroups berthd reads are not used: they neither take memory nor cause attempts.
func TestReportsOfTrackedContainers(t *testing.T) {
	t.Parallel()
	b := reporting(t, true)
	b.Reported = false
	b.update(func(d *ledger.Draft) {
		d.Bind(ledger.Binding{ID: "own", Owner: ledger.Owner{Pod: "p", Container: "c"}, Own: true, CgroupPath: "/kubepods/podp/c",
			Sequence: 3})
	})
	if found, used, news := b.ReportMemory("own", Report{Immovable: "it is my secret"}); !found || used || news ||
		len(b.reports.byID) > 0 {
		t.Errorf("found %t, used %t, news %t, stored %v", found, used, news, b.reports.byID)
	}
	if found, used, _ := b.ReportMemory("id", Report{}); !found || !used {
		t.Errorf("a container that is not tracked: found %t, used %t", found, used)
	}
}

// A report does not outlive its container's id. Reports show where the memory of a pod is.
func TestReportsAreForgotten(t *testing.T) {
	t.Parallel()
	b := reporting(t, false)
	if found, _, _ := b.ReportMemory("other", Report{}); found {
		t.Error("a container that is not bound has a report")
	}
	b.ReportMemory("id", Report{Nodes: numa.Of(0), Bytes: map[int]uint64{0: 7}})
	var use live.PodUse
	if b.addReported(b.ledger.View(), "p", &use); use.NodeBytes[0] != 7 {
		t.Errorf("used: %v", use)
	}
	b.update(func(d *ledger.Draft) { d.Unbind("id") })
	if len(b.reports.byID) > 0 {
		t.Errorf("left: %v", b.reports.byID)
	}
}

// What the containers of a pod use together stays a number, whatever their agent reports: all nodes together, too.
func TestReportedSumsDoNotOverflow(t *testing.T) {
	t.Parallel()
	b := reporting(t, true)
	const ids = 200
	b.update(func(d *ledger.Draft) {
		for i := range ids {
			d.Bind(ledger.Binding{ID: fmt.Sprint("more", i), Owner: ledger.Owner{Pod: "p", Container: "c"}, Sequence: uint64(3 + i)})
		}
	})
	for i := range ids {
		b.ReportMemory(fmt.Sprint("more", i), Report{Nodes: numa.Of(1), Bytes: map[int]uint64{0: MaxNodeBytes, 1: 1}})
	}
	use := live.PodUse{NodeBytes: map[int]uint64{0: 1}}
	b.addReported(b.ledger.View(), "p", &use)
	if use.NodeBytes[0] != MaxNodeBytes || use.NodeBytes[1] != ids {
		t.Errorf("used: %v", use.NodeBytes)
	}
}
