package cgroup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// describe prints ops in a form that rows can hold.
func describe(ops []Op) []string {
	var out []string
	for _, op := range ops {
		line := fmt.Sprintf("%s %s", op.Kind, op.Name)
		for _, w := range op.Writes {
			line += fmt.Sprintf(" %s:%s>%s", w.File, w.Old, w.New)
		}
		out = append(out, line)
	}
	return out
}

func TestDiff(t *testing.T) {
	t.Parallel()
	v1, v2 := Facts{Version: V1, PageBytes: 4096, Controllers: []string{"freezer"}}, Facts{Version: V2, PageBytes: 4096}
	cpus := func(list string) Values {
		set, err := cpuset.Parse(list)
		if err != nil {
			t.Fatal(err)
		}
		return Values{Cpuset: Cpuset{CPUs: set}}
	}
	limit := func(bytes int64) Values { return Values{MemoryBytes: &bytes} }
	quota := func(us int64) Values { return Values{CPUQuotaUS: &us} }
	full := Values{CPUQuotaUS: new(int64(50_000)), CPUPeriodUS: new(uint64(200_000))}
	dead := Values{PIDs: new(int64(0)), Frozen: new(true)}
	pod, a, b := Name{"p"}, Name{"p", "a"}, Name{"p", "b"}
	there := func(n Name, v Values) Observed { return Observed{Name: n, State: Valid, Values: v} }
	for _, row := range []struct {
		name    string
		facts   Facts
		seen    []Observed
		desired []Node
		want    []string
	}{
		{"parents are created first", v1, nil, []Node{{Name: a, Values: limit(8192)}, {Name: pod, Values: Values{}}},
			[]string{"create /p", "create /p/a memory.limit_in_bytes:>8192"}},
		{"what is as it should be stays", v1, []Observed{there(pod, limit(8192))}, []Node{{Name: pod, Values: limit(8192 + 100)}}, nil},
		{"absent values stay", v1, []Observed{there(pod, limit(8192))}, []Node{{Name: pod, Values: Values{}}}, nil},
		{"who is not wanted is left alone", v1, []Observed{there(pod, limit(8192)), there(a, limit(4096))}, nil, nil},
		{"who is not wanted is a child all the same", v1, []Observed{there(pod, cpus("0-1")), there(a, cpus("0-1"))},
			[]Node{{Name: pod, Values: cpus("1-2")}},
			[]string{"set /p cpuset.cpus:0-1>0-2", "set /p cpuset.cpus:0-2>1-2"}},
		{"but not where nothing is left of it", v1, []Observed{there(pod, cpus("0-1")), {Name: a, State: Absent}},
			[]Node{{Name: pod, Values: cpus("1-2")}},
			[]string{"set /p cpuset.cpus:0-1>1", "set /p cpuset.cpus:1>1-2"}},
		{"of one that was seen twice the later counts", v1,
			[]Observed{there(a, limit(8192)), {Name: a, State: Invalid}, {Name: b, State: Invalid}, there(b, limit(8192))},
			[]Node{{Name: a, Values: limit(8192)}, {Name: b, Values: limit(4096)}},
			[]string{"create /p/a memory.limit_in_bytes:>8192", "set /p/b memory.limit_in_bytes:8192>4096"}},
		{"who lives is thawed and may fork, others stay as they are", v1,
			[]Observed{there(pod, dead), there(a, dead), there(b, dead)},
			[]Node{{Name: pod}, {Name: a, Lives: true}, {Name: b, Values: Values{PIDs: new(int64(1))}, Lives: true}},
			[]string{"set /p/a pids.max:0>max freezer.state:FROZEN>THAWED", "set /p/b pids.max:0>1 freezer.state:FROZEN>THAWED"}},
		{"a new one is not thawed", v1, nil, []Node{{Name: pod, Lives: true}}, []string{"create /p"}},
		{"invalid is repaired", v1, []Observed{{Name: pod, State: Invalid}}, []Node{{Name: pod, Values: Values{}}}, []string{"create /p"}},
		{"memory rises from above and falls from below", v1,
			[]Observed{there(pod, limit(8192)), there(a, limit(4096)), there(b, limit(8192))},
			[]Node{{Name: pod, Values: limit(16384)}, {Name: a, Values: limit(16384)}, {Name: b, Values: limit(4096)}},
			[]string{"set /p memory.limit_in_bytes:8192>16384", "set /p/a memory.limit_in_bytes:4096>16384",
				"set /p/b memory.limit_in_bytes:8192>4096"}},
		{"and the parent falls last", v1, []Observed{there(pod, limit(8192)), there(a, limit(8192))},
			[]Node{{Name: pod, Values: limit(4096)}, {Name: a, Values: limit(4096)}},
			[]string{"set /p/a memory.limit_in_bytes:8192>4096", "set /p memory.limit_in_bytes:8192>4096"}},
		{"CPUs move through the wider set", v1, []Observed{there(pod, cpus("0-1")), there(a, cpus("0-1")), there(b, cpus("1"))},
			[]Node{{Name: pod, Values: cpus("1-3")}, {Name: a, Values: cpus("1")}, {Name: b, Values: cpus("2-3")}},
			[]string{"set /p cpuset.cpus:0-1>0-3", "set /p/a cpuset.cpus:0-1>1", "set /p/b cpuset.cpus:1>2-3",
				"set /p cpuset.cpus:0-3>1-3"}},
		{"who had all CPUs leaves first on v2", v2, []Observed{there(pod, Values{}), there(a, cpus("1")), there(b, Values{})},
			[]Node{{Name: a, Values: cpus("0-1")}, {Name: b, Values: cpus("2-3")}},
			[]string{"set /p/b cpuset.cpus:>2-3", "set /p/a cpuset.cpus:1>0-1"}},
		{"an inner set is not narrowed early on v2", v2, []Observed{there(pod, Values{}), there(a, cpus("0-3"))},
			[]Node{{Name: pod, Values: cpus("0-1")}, {Name: a, Values: cpus("0")}},
			[]string{"set /p/a cpuset.cpus:0-3>0", "set /p cpuset.cpus:>0-1"}},
		{"a quota keeps the period beside it", v2, []Observed{there(pod, full)}, []Node{{Name: pod, Values: quota(100_000)}},
			[]string{"set /p cpu.max:50000 200000>100000 200000"}},
		{"no quota is more than any", v1, []Observed{there(pod, full), there(a, full)},
			[]Node{{Name: pod, Values: quota(Unlimited)}, {Name: a, Values: quota(Unlimited)}},
			[]string{"set /p cpu.cfs_period_us:200000>200000 cpu.cfs_quota_us:50000>-1",
				"set /p/a cpu.cfs_period_us:200000>200000 cpu.cfs_quota_us:50000>-1"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			got := describe(Diff(row.desired, &Snapshot{Facts: row.facts, Nodes: row.seen}))
			if !slices.Equal(got, row.want) {
				t.Errorf("ops %q\nwant %q", got, row.want)
			}
		})
	}
}

// refusing is a tree that refuses one cgroup.
type refusing struct {
	Tree
	name  Name
	asked int
}

func (r *refusing) Ensure(_ context.Context, n Node) (created bool, err error) {
	r.asked++
	if n.Name.Equal(r.name) {
		return false, errdefs.Unavailablef("the kernel's words")
	}
	return true, nil
}

func TestApplyStopsAtTheFirstError(t *testing.T) {
	t.Parallel()
	tree := &refusing{name: Name{"b"}}
	err := Apply(t.Context(), tree, []Op{{Kind: Create, Name: Name{"a"}}, {Kind: Set, Name: Name{"b"}}, {Kind: Set, Name: Name{"c"}}})
	var f *errdefs.Error
	if !errors.As(err, &f) || err.Error() != "the kernel's words" || tree.asked != 2 {
		t.Errorf("%v after %d calls", err, tree.asked)
	}
}

// draft is one on an empty ledger of a machine with 8 CPUs.
func draft(t *testing.T) *ledger.Draft {
	t.Helper()
	rules := ledger.Rules{Machine: machinetest.Build("1s8c")}
	return ledger.NewDraft(ledgertest.New(t, rules).View())
}

func TestPodNodes(t *testing.T) {
	t.Parallel()
	d := draft(t)
	d.PutPod(ledgertest.With(ledgertest.Pod("one", "c0", "c1"), ledgertest.Exclusive("c0", "2-3")))
	d.PutPod(ledgertest.Pod("two", "c0"))
	d.Bind(ledger.Binding{ID: "own", Owner: ledger.Owner{Pod: "one", Container: "c0"}, CgroupPath: "/kubepods/podone/own", Own: true})
	d.Bind(ledger.Binding{ID: "shared", Owner: ledger.Owner{Pod: "one", Container: "c1"}, CgroupPath: "/kubepods/podone/shared", Own: true})
	d.Bind(ledger.Binding{ID: "runtime", Owner: ledger.Owner{Pod: "two", Container: "c0"}, CgroupPath: "/kubepods/podtwo/x"})
	view := d.View()
	l, err := NewLayout("/", Cgroupfs)
	if err != nil {
		t.Fatal(err)
	}
	nodes := []Node{{Name: l.Pods()}}
	for p := range view.Pods() {
		own, err := PodNodes(view, p, l, exampleConfig())
		if err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, own...)
	}
	var names []string
	for _, n := range nodes {
		names = append(names, n.Name.String())
	}
	want := []string{"/kubepods", "/kubepods/podone", "/kubepods/podone/own", "/kubepods/podone/shared", "/kubepods/podtwo"}
	if !slices.Equal(names, want) {
		t.Fatalf("nodes %q, want %q", names, want)
	}
	if got := nodes[2].Values; got.CPUs != cpuset.Range(2, 3) || *got.CPUQuotaUS != Unlimited {
		t.Errorf("container with CPUs of its own: CPUs %s, quota %d", got.CPUs, *got.CPUQuotaUS)
	}
	if got := nodes[3].Values; got.CPUs != view.SharedCPUs() {
		t.Errorf("container without: CPUs %s, want the shared %s", got.CPUs, view.SharedCPUs())
	}
	if _, err := ContainerNode(view, ledger.Binding{Owner: ledger.Owner{Pod: "none"}, CgroupPath: "/a"},
		exampleConfig()); errdefs.ClassOf(err) != errdefs.Internal {
		t.Errorf("binding of an unknown pod: %v, want class internal", err)
	}
}

func TestContainerCpusetHasTheMemoryNodes(t *testing.T) {
	t.Parallel()
	p := ledgertest.Pod("one", "c0")
	p.Claims = []ledger.Claim{{
		Owner: ledger.Owner{Pod: "one", Container: "c0"}, Resource: string(workload.Memory),
		Memory: []ledger.Block{{Nodes: numa.Of(0), Bytes: 1}, {Nodes: numa.Of(2), Bytes: 1}},
	}}
	for shape, want := range map[string]numa.Mask{"1s3n1c1t": numa.Of(0, 2), "1s2n1c1t": numa.Of(0)} {
		d := ledger.NewDraft(ledger.Empty(ledger.Rules{Machine: machinetest.Build(shape)}))
		d.PutPod(p)
		if got := ContainerCpuset(d.View(), ledger.Owner{Pod: "one", Container: "c0"}); got.Mems != want {
			t.Errorf("on %s memory nodes %s, want %s", shape, got.Mems, want)
		}
	}
}

func TestMerge(t *testing.T) {
	t.Parallel()
	base := Values{PIDs: new(int64(5)), HugePages: map[int64]int64{1: 1, 2: 2}, Unified: map[string]string{"a": "1"}}
	over := Values{MemoryBytes: new(int64(7)), HugePages: map[int64]int64{2: 3}, Cpuset: Cpuset{CPUs: cpuset.Of(1), Mems: numa.Of(1)}}
	got := base.Merge(over)
	if *got.PIDs != 5 || *got.MemoryBytes != 7 || got.HugePages[1] != 1 || got.HugePages[2] != 3 || got.Unified["a"] != "1" ||
		got.CPUs != cpuset.Of(1) || got.Mems != numa.Of(1) {
		t.Errorf("merged %+v", got)
	}
	if base.HugePages[2] != 2 {
		t.Error("Merge wrote into its receiver")
	}
	if got := (Values{}).Merge(over); got.HugePages[2] != 3 {
		t.Errorf("merged into nothing: %+v", got)
	}
}
