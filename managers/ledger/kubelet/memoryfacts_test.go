package kubelet_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// memoryFixture is a memory manager on four nodes with pages of two sizes, of whose
// memory the system keeps some.
func memoryFixture(t ledgertest.T, features workload.Features) (*memory.Manager, *ledger.Ledger, kubelet.Settings) {
	t.Helper()
	shape, err := machine.ParseShape("4n2c,mem=8Gi,huge=2Mi:64,huge=1Gi:2")
	if err != nil {
		t.Fatalf("%v", err)
	}
	topo, err := machine.New(shape)
	if err != nil {
		t.Fatalf("%v", err)
	}
	m, err := memory.New(memory.Config{
		Policy: memory.PolicyStatic,
		Reserved: []memory.Reservation{{Node: 0, Resource: workload.Memory, Bytes: gi},
			{Node: 2, Resource: workload.Memory, Bytes: 3}},
		SystemReserved: map[workload.Resource]uint64{workload.Memory: gi + 3},
		Features:       features,
	}, topo)
	if err != nil {
		t.Fatalf("%v", err)
	}
	settings := kubelet.Settings{Policy: memory.PolicyStatic, ReservedMemory: m.Reserved()}
	return m, ledgertest.New(t, ledger.Rules{Machine: topo}), settings
}

// asks returns a container that requests memory.
func asks(name string, role workload.Role, bytes int64) workload.Container {
	q := workload.Quantities{workload.CPU: 1000, workload.Memory: bytes}
	return workload.Container{Name: name, Role: role, Requests: q, Limits: q}
}

func TestReadMemory(t *testing.T) {
	t.Parallel()
	_, l, settings := memoryFixture(t, workload.Features{})
	pods := map[string]*workload.Pod{
		"one": {UID: "one", Containers: []workload.Container{asks("i", workload.Init, 4*gi), asks("c", workload.App, 9*gi)}},
	}
	blocks := func(init, app uint64) map[string][]kubelet.MemoryBlock {
		return map[string][]kubelet.MemoryBlock{
			"i": {{Nodes: numa.Of(1, 3), Resource: "memory", Bytes: init}},
			"c": {{Nodes: numa.Of(1, 3), Resource: "memory", Bytes: app}},
		}
	}
	// The kubelet counts 5 GiB on node 1, as after a release, and 4 GiB on node 3.
	torn := map[int]kubelet.MemoryNode{
		1: {Tables: map[string]kubelet.MemoryTable{"memory": {Reserved: 5 * gi}}},
		3: {Tables: map[string]kubelet.MemoryTable{"memory": {Reserved: 4 * gi}}},
	}
	const wouldNot = "a kubelet with this machine and reservation would not accept the file: "
	for _, row := range []struct {
		name          string
		state         kubelet.MemoryState
		claims, notes string
		skipped       string
	}{
		{"shrunk blocks have their size back", kubelet.MemoryState{
			Nodes: torn, Containers: map[string]map[string][]kubelet.MemoryBlock{"one": blocks(0, 9*gi)},
		}, "one/i 4Gi on 1,3 [], one/c 9Gi on 1,3 [{1 5368709120} {3 4294967296}]",
			wouldNot + "there are tables of 2 NUMA nodes, and the machine has 4", ""},
		{"other size", kubelet.MemoryState{
			Nodes: torn, Containers: map[string]map[string][]kubelet.MemoryBlock{"one": {"c": {{Nodes: numa.Of(1), Resource: "memory",
				Bytes: gi}}, "i": {}}},
		}, "one/c 1Gi on 1 []",
			"one/i has an entry without memory|one/c holds 1Gi of memory on NUMA nodes 1 and requests 9Gi|8Gi of memory on NUMA nodes 1,3 are counted as allocated, and no entry allocates them|" + wouldNot + "there are tables of 2 NUMA nodes, and the machine has 4", ""},
		{"more than the tables say", kubelet.MemoryState{
			Containers: map[string]map[string][]kubelet.MemoryBlock{"one": {"c": {{Nodes: numa.Of(1, 3), Resource: "memory",
				Bytes: 9 * gi}}}},
		}, "one/c 9Gi on 1,3 []", wouldNot + "there are blocks of 1 pods, and no tables", ""},
		{"unknown owners", kubelet.MemoryState{
			Containers: map[string]map[string][]kubelet.MemoryBlock{"one": {"x": {{Nodes: 1, Resource: "memory", Bytes: 5}}},
				"two": blocks(1, 2)},
			Pods: map[string][]kubelet.MemoryBlock{"three": {{Nodes: 1, Resource: "memory", Bytes: 7}}},
		}, "", wouldNot + "there are blocks of 2 pods, and no tables",
			"5 of memory on NUMA nodes 0 of one/x|7 of memory on NUMA nodes 0 of pod three|2 of memory on NUMA nodes 1,3 of two/c|1 of memory on NUMA nodes 1,3 of two/i"},
	} {
		row.state.Policy = memory.PolicyStatic
		data, err := row.state.Marshal(2)
		if err != nil {
			t.Fatal(err)
		}
		in := kubelet.Input{View: l.View(), Pods: pods, Settings: settings, PodLevel: true, SkipUnknown: true}
		facts, err := kubelet.Read(kubelet.Memory, data, in)
		if err != nil {
			t.Errorf("%s: %v", row.name, err)
			continue
		}
		var claims []string
		for _, c := range facts.Claims {
			b := c.Memory[0]
			claims = append(claims, fmt.Sprintf("%s %s on %s %v", c.Owner, workload.Memory.Text(int64(b.Bytes)), b.Nodes, b.Parts))
		}
		for what, pair := range map[string][2]string{
			"claims":  {strings.Join(claims, ", "), row.claims},
			"notes":   {strings.Join(facts.Notes, "|"), row.notes},
			"skipped": {strings.Join(facts.Skipped, "|"), row.skipped},
		} {
			if pair[0] != pair[1] {
				t.Errorf("%s: %s:\n got %s\nwant %s", row.name, what, pair[0], pair[1])
			}
		}
		in.SkipUnknown = false
		if _, err := kubelet.Read(kubelet.Memory, data, in); (err != nil) != (row.skipped != "") {
			t.Errorf("%s: %v", row.name, err)
		}
	}
}

// TestMemoryNobodyHas: a claim on a node that is gone cannot be part of a file.
func TestMemoryNobodyHas(t *testing.T) {
	t.Parallel()
	l := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("4c")})
	draft := ledger.NewDraft(l.View())
	draft.PutPod(ledgertest.With(ledgertest.Pod("a", "c"), ledgertest.Memory("c", "memory", "3", 1)))
	_, err := kubelet.Write(kubelet.Memory, draft.View(), kubelet.Settings{Policy: memory.PolicyStatic}, 0)
	if err == nil || errdefs.ClassOf(err) != errdefs.Precondition || !strings.Contains(err.Error(),
		"export memory_manager_state: pod a, container c: a block of memory is on NUMA node 3") {
		t.Errorf("got %v", err)
	}
	if file, err := kubelet.Write(kubelet.Memory, draft.View(), kubelet.Settings{Policy: memory.PolicyNone}, 0); err != nil ||
		!strings.Contains(string(file.Data), `"machineState":{},"entries":{"a"`) {
		t.Errorf("without tables: %s, %v", file.Data, err)
	}
}

// memoryPod draws a pod, some of them with amounts for the pod as a whole.
func memoryPod(t *rapid.T, uid string) *workload.Pod {
	p := &workload.Pod{UID: uid, Name: uid, Namespace: "default"}
	roles := rapid.SliceOfN(rapid.SampledFrom([]workload.Role{workload.Init, workload.Sidecar, workload.Init}), 0,
		3).Draw(t, "init containers")
	for i, role := range append(roles, workload.App, workload.App)[:len(roles)+rapid.IntRange(1, 2).Draw(t, "apps")] {
		c := asks(fmt.Sprintf("c%d", i), role, rapid.Int64Range(0, 6).Draw(t, "memory")*gi)
		if n := rapid.Int64Range(0, 3).Draw(t, "pages"); n > 0 {
			c.Requests["hugepages-1Gi"], c.Limits["hugepages-1Gi"] = n*gi, n*gi
		}
		if c.Requests[workload.Memory] == 0 {
			c.Requests[workload.Memory] = 1
		}
		p.Containers = append(p.Containers, c)
	}
	if rapid.IntRange(0, 4).Draw(t, "whole") == 0 {
		q := workload.Quantities{workload.CPU: 9000, workload.Memory: rapid.Int64Range(20, 24).Draw(t, "pod memory") * gi}
		p.Resources = &workload.Resources{Requests: q, Limits: q}
		for i := range p.Containers {
			delete(p.Containers[i].Requests, "hugepages-1Gi")
			delete(p.Containers[i].Limits, "hugepages-1Gi")
		}
	}
	p.QoS = workload.Guaranteed
	return p
}

// TestMemoryComesBack: what berth has given out, in any history of admissions,
// starts and removals, a kubelet continues from; and what it has written then berth
// takes over, with the same amounts on the same groups of nodes.
func TestMemoryComesBack(t *testing.T) {
	t.Parallel()
	formats := map[int]int{}
	rapid.Check(t, func(t *rapid.T) {
		m, l, settings := memoryFixture(t, workload.Features{PodLevelResources: true, PodLevelResourceManagers: true})
		draft := ledger.NewDraft(l.View())
		for i := range rapid.IntRange(1, 8).Draw(t, "pods") {
			p := memoryPod(t, fmt.Sprint("pod", i))
			admitMemory(t, m, draft, p)
			if rapid.IntRange(0, 3).Draw(t, "remove") == 0 {
				draft.RemovePod(fmt.Sprint("pod", rapid.IntRange(0, i).Draw(t, "which")))
			}
		}
		view := draft.View()
		file, err := kubelet.Write(kubelet.Memory, view, settings, 0)
		if err != nil {
			t.Fatal(err)
		}
		formats[file.Format]++
		pods := map[string]*workload.Pod{}
		again := ledger.NewDraft(l.View())
		for p := range view.Pods() {
			pods[p.UID()] = &p.Pod
			again.PutPod(&ledger.Pod{Pod: p.Pod})
		}
		facts, err := kubelet.Read(kubelet.Memory, file.Data, kubelet.Input{View: l.View(), Pods: pods, Settings: settings, PodLevel: true})
		if err != nil || len(facts.Notes) > 0 {
			t.Fatalf("%s: %q, %v", file.Data, facts.Notes, err)
		}
		for _, c := range facts.Claims {
			again.AddClaims(c.Owner.Pod, c)
		}
		want, got := sums(m.State(view)), sums(m.State(again.View()))
		if !slices.Equal(got, want) {
			t.Fatalf("%s:\n got %q\nwant %q", file.Data, got, want)
		}
		second, err := kubelet.Write(kubelet.Memory, again.View(), settings, file.Format)
		if err != nil || string(second.Data) != string(file.Data) {
			t.Fatalf("%s\n%s\n%v", file.Data, second.Data, err)
		}
	})
	if formats[1] == 0 || formats[2] == 0 {
		t.Errorf("formats %v, want both", formats)
	}
}

// admitMemory gives a pod its memory if there is enough, and perhaps starts some
// of its containers.
func admitMemory(t *rapid.T, m *memory.Manager, draft *ledger.Draft, p *workload.Pod) {
	draft.PutPod(&ledger.Pod{Pod: *p})
	requests := []hint.Request{{Pod: p, Container: -1}}
	if !p.HasPodLevel() {
		requests = nil
		for i := range p.Containers {
			requests = append(requests, hint.Request{Pod: p, Container: i})
		}
	}
	for _, req := range requests {
		claims, err := m.Plan(t.Context(), draft.View(), req, hint.Hint{Any: true})
		if err != nil {
			draft.RemovePod(p.UID)
			return
		}
		draft.AddClaims(p.UID, claims...)
	}
	if rapid.Bool().Draw(t, "start") {
		record, _ := draft.View().Pod(p.UID)
		started := p.Containers[rapid.IntRange(0, len(p.Containers)-1).Draw(t, "container")].Name
		draft.DropClaims(p.UID, m.Finished(record, started)...)
	}
}

// sums are what groups of nodes hold.
func sums(nodes []memory.NodeState) (out []string) {
	type key struct {
		group    numa.Mask
		resource string
	}
	held := map[key]uint64{}
	for _, n := range nodes {
		for _, r := range n.Resources {
			held[key{n.Group, r.Resource}] += r.Held
		}
	}
	for k, n := range held {
		out = append(out, fmt.Sprint(k.group, " ", k.resource, " ", n))
	}
	slices.Sort(out)
	return out
}

// FuzzReadMemory: for any file, claims have owners that are known, and
// blocks whose parts are whole.
func FuzzReadMemory(f *testing.F) {
	f.Add([]byte(`{"policyName":"Static","machineState":{"0":{"memoryMap":{"memory":{"reserved":3}},"cells":[0,1]},"1":{"memoryMap":{"memory":{"reserved":9}}}},` +
		`"entries":{"one":{"i":[{"numaAffinity":[0,1],"type":"memory","size":0}],"c":[{"numaAffinity":[0,1],"type":"memory","size":7}],"x":[{"size":1}]},"two":{"c":[]}}}`))
	f.Add([]byte(`{"policyName":"None","machineState":{},"checksum":4236770233}`))
	l, _, err := journal.Open(f.Context(), journal.Options{Journal: ledgertest.NewJournal(),
		Rules: ledger.Rules{Machine: machinetest.Build("2n2c,mem=1Gi")}})
	if err != nil {
		f.Fatal(err)
	}
	pods := map[string]*workload.Pod{"one": {UID: "one", Containers: []workload.Container{asks("i", workload.Init, 5),
		asks("c", workload.App, 7)}}}
	f.Fuzz(func(t *testing.T, data []byte) {
		facts, err := kubelet.Read(kubelet.Memory, data, kubelet.Input{
			PodLevel: true,
			View:     l.View(), Pods: pods, Settings: kubelet.Settings{Policy: memory.PolicyStatic}, SkipUnknown: true,
		})
		if err != nil {
			if c := errdefs.ClassOf(err); c != errdefs.Invalid {
				t.Fatalf("class %v: %v", c, err)
			}
			return
		}
		for _, c := range facts.Claims {
			p := pods[c.Owner.Pod]
			if p == nil || c.Owner.Container != "" && p.Container(c.Owner.Container) == nil || len(c.Memory) == 0 {
				t.Fatalf("claim %+v of %s", c, data)
			}
			for _, b := range c.Memory {
				if len(b.Parts) > 0 && b.On(b.Nodes) != b.Bytes {
					t.Fatalf("block %+v of %s", b, data)
				}
			}
		}
	})
}
