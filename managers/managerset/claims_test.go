package managerset_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

const gibi = 1 << 30

// dividedMachine has two NUMA nodes of 8 CPUs and 16 GiB, the first with two huge pages of 1 GiB.
func dividedMachine() *machine.Topology {
	return machinetest.Build("2s4c2t", machinetest.Memory(0, 16*gibi), machinetest.Memory(1, 16*gibi), machinetest.HugePages(0, 1<<20, 2))
}

// divided is a configuration in which claims have 4 CPUs and 4 GiB of each node, of the 10 CPUs and
// 5 GiB that are reserved.
func divided(m *machine.Topology, change func(*managerset.Config)) (*managerset.Set, error) {
	of := func(node int) cpuset.Set { return m.CPUsInNodes(numa.Of(node)) }
	first := func(set cpuset.Set, n int) cpuset.Set {
		var b cpuset.Builder
		for id := range set.All() {
			if n--; n >= 0 {
				b.Add(id)
			}
		}
		return b.Set()
	}
	claimed := first(of(0), 4).Union(first(of(1), 4))
	cfg := managerset.Config{
		CPU: cpu.Config{Policy: cpu.PolicyStatic, ReservedCPUs: first(of(0), 5).Union(first(of(1), 5))},
		Memory: memory.Config{
			Policy: memory.PolicyStatic,
			Reserved: []memory.Reservation{
				{Node: 0, Resource: workload.Memory, Bytes: 5 * gibi}, {Node: 1, Resource: workload.Memory, Bytes: 5 * gibi},
				{Node: 0, Resource: "hugepages-1Gi", Bytes: 2 * gibi},
			},
			SystemReserved: map[workload.Resource]uint64{workload.Memory: 10 * gibi, "hugepages-1Gi": 2 * gibi},
		},
		Topology: topology.Config{Policy: topology.None, Scope: hint.ContainerScope},
		Claims: &managerset.Claims{CPUs: claimed, Memory: map[int]map[workload.Resource]uint64{
			0: {workload.Memory: 4 * gibi, "hugepages-1Gi": 2 * gibi}, 1: {workload.Memory: 4 * gibi},
		}},
		Digest: "divided",
	}
	if change != nil {
		change(&cfg)
	}
	set, err := managerset.New(cfg, m)
	if err != nil {
		return nil, err
	}
	return set.Join(nil, nil)
}

func claim(uid string, node, cpus int, bytes int64) *workload.Pod {
	q := workload.Quantities{workload.CPU: int64(cpus) * 1000, workload.Memory: bytes}
	return &workload.Pod{
		UID: uid, Namespace: "default", Name: uid, ResourceClaim: &workload.ResourceClaim{Devices: []workload.ClaimDevice{{Node: node}}},
		Containers: []workload.Container{{Name: "place", Requests: q, Limits: q}},
	}
}

// and adds the devices of other claims to a claim.
func and(p *workload.Pod, others ...*workload.Pod) *workload.Pod {
	for _, o := range others {
		c := o.Containers[0]
		c.Name = fmt.Sprintf("place-%d", len(p.Containers))
		p.Containers = append(p.Containers, c)
		p.ResourceClaim.Devices = append(p.ResourceClaim.Devices, o.ResourceClaim.Devices[0])
	}
	return p
}

func onTrial(t *testing.T, set *managerset.Set) *live.Trial {
	t.Helper()
	return live.NewTrial(admission.Config{}, ledger.Empty(set.Rules), set.Bus, set.Topology).ForClaims(set.For)
}

// TestClaimsAreOfTheirNodes: each device of a claim gets CPUs, memory and huge pages of exactly its node,
// although the topology policy is none, and the claim gets all of its devices or nothing.
func TestClaimsAreOfTheirNodes(t *testing.T) {
	t.Parallel()
	m := dividedMachine()
	set, err := divided(m, nil)
	if err != nil {
		t.Fatal(err)
	}
	paged := claim("paged", 0, 1, gibi)
	paged.Containers[0].Requests["hugepages-1Gi"] = 2 * gibi // the map of the limits, too
	elsewhere := claim("elsewhere", 1, 1, gibi)
	elsewhere.Containers[0].Requests["hugepages-1Gi"] = gibi
	trial := onTrial(t, set)
	for _, row := range []struct {
		pod     *workload.Pod
		message string // of the refusal; "" is admitted
	}{
		{claim("a", 1, 3, gibi), ""},
		{claim("wide", 1, 2, gibi), "cpu 1 "},                // node 1 has 1 left, node 0 has 4
		{claim("large", 0, 1, 5*gibi), "memory 4294967296 "}, // node 0 has 4 GiB for claims
		{paged, ""},
		{elsewhere, "hugepages-1Gi 0 "},
		{claim("b", 0, 3, 3*gibi), ""},
		{claim("c", 1, 1, 2*gibi), ""},
		{claim("d", 0, 1, 1), "cpu 0 memory 0 "},
		{and(claim("halves", 1, 1, gibi/2), claim("", 0, 1, gibi/2)), "cpu 0 "},
	} {
		v, err := trial.Admit(t.Context(), row.pod)
		if err != nil {
			t.Fatal(err)
		}
		short := ""
		for _, step := range v.Trace.Steps {
			for _, s := range step.Shortages {
				if !strings.Contains(row.pod.ResourceClaim.Nodes().String(), s.Nodes) {
					t.Errorf("%s: a shortage on nodes %s, which it does not have", row.pod.UID, s.Nodes)
				}
				short += fmt.Sprint(s.Resource, " ", s.Free, " ")
			}
		}
		if row.message != "" {
			if v.Outcome != admission.Rejected || v.Reason != errdefs.TopologyAffinityError && short == "" || short != row.message {
				t.Errorf("%s: %v %s %s: lacks %q, want %q", row.pod.UID, v.Outcome, v.Reason, v.Message, short, row.message)
			}
			continue
		}
		if v.Outcome != admission.Admitted {
			t.Errorf("%s: %s: %s", row.pod.UID, v.Reason, v.Message)
			continue
		}
		checkClaim(t, set, v.Pod)
	}
	if found := check.View(trial.View()); len(found) > 0 {
		t.Error(found)
	}
	requests, pods := trial.View().Requests(workload.Features{}, "")
	if pods != 0 || len(requests) != 0 || trial.View().NumResourceClaims() != 4 {
		t.Errorf("%d pods request %v, %d claims", pods, requests, trial.View().NumResourceClaims())
	}
}

// failing is what a check of a test needs.
type failing interface {
	Helper()
	Errorf(format string, args ...any)
}

// checkClaim compares what a claim holds with what it requests.
func checkClaim(t failing, set *managerset.Set, p *ledger.Pod) {
	t.Helper()
	for i, c := range p.Pod.Containers {
		nodes := numa.Of(p.Pod.ResourceClaim.Devices[i].Node)
		for r, n := range c.Requests {
			held, ok := p.Claim(c.Name, string(r))
			switch {
			case !ok:
				t.Errorf("%s/%s holds no %s", p.UID(), c.Name, r)
			case r == workload.CPU:
				allowed := set.Rules.ClaimCPUs.Intersect(set.Rules.Machine.CPUsInNodes(nodes))
				if got := held.CPUs.Set; got.Len() != int(n/1000) || !got.IsSubsetOf(allowed) {
					t.Errorf("%s/%s holds CPUs %s, wants %d of %s", p.UID(), c.Name, got, n/1000, allowed)
				}
			case len(held.Memory) != 1 || held.Memory[0].Nodes != nodes || held.Memory[0].Bytes != uint64(n):
				t.Errorf("%s/%s holds %v of %s, wants %d on node %s", p.UID(), c.Name, held.Memory, r, n, nodes)
			}
		}
	}
}

// TestClaimOnSeveralNodes: two devices on two nodes, and two on one node.
func TestClaimOnSeveralNodes(t *testing.T) {
	t.Parallel()
	set, err := divided(dividedMachine(), nil)
	if err != nil {
		t.Fatal(err)
	}
	trial := onTrial(t, set)
	for _, row := range []struct {
		pod   *workload.Pod
		fits  bool
		nodes string
	}{
		{and(claim("across", 0, 2, gibi), claim("", 1, 3, gibi)), true, "0-1"},
		{and(claim("twice", 0, 1, gibi), claim("", 0, 1, gibi)), true, "0"},
		{and(claim("full", 1, 1, gibi), claim("", 0, 1, gibi)), false, "0-1"},
		{claim("rest", 1, 1, 3*gibi), true, "1"}, // the refused one left nothing behind
	} {
		v, err := trial.Admit(t.Context(), row.pod)
		if err != nil || (v.Outcome == admission.Admitted) != row.fits || row.pod.ResourceClaim.Nodes().String() != row.nodes {
			t.Fatalf("%s: %v %s, %v", row.pod.UID, v.Outcome, v.Message, err)
		}
		if row.fits {
			checkClaim(t, set, v.Pod)
		}
	}
	if found := check.View(trial.View()); len(found) > 0 {
		t.Error(found)
	}
}

// TestWholeCores: with full-pcpus-only, claims get no CPU of a core that is not theirs alone, whatever
// CPUs are for claims and free.
func TestWholeCores(t *testing.T) {
	t.Parallel()
	m := machinetest.Build("2s4c2t", machinetest.Memory(0, 16*gibi), machinetest.Memory(1, 16*gibi))
	set, err := divided(m, func(c *managerset.Config) {
		c.CPU.Options = map[string]string{cpu.FullPCPUsOnly: "true"}
		// 4 CPUs of each node, among them the cores 1 and 9 only as halves.
		c.Claims.CPUs = cpuset.Of(1, 2, 10, 3, 5, 6, 14, 15)
		c.CPU.ReservedCPUs = c.Claims.CPUs.Union(cpuset.Of(0, 8))
		c.Memory.Reserved = c.Memory.Reserved[:2]
		c.Memory.SystemReserved = map[workload.Resource]uint64{workload.Memory: 10 * gibi}
		delete(c.Claims.Memory[0], "hugepages-1Gi")
	})
	if err != nil {
		t.Fatal(err)
	}
	trial := onTrial(t, set)
	for _, row := range []struct {
		pod  *workload.Pod
		cpus string
	}{
		{claim("four", 0, 4, gibi), ""},
		{claim("odd", 0, 1, gibi), ""},
		{claim("two", 0, 2, gibi), "2,10"},
		{claim("more", 0, 2, gibi), ""},
		{and(claim("both", 1, 2, gibi), claim("", 0, 2, gibi)), ""},
		{claim("other", 1, 2, gibi), "6,14"},
	} {
		v, err := trial.Admit(t.Context(), row.pod)
		if err != nil || (v.Outcome == admission.Admitted) != (row.cpus != "") {
			t.Fatalf("%s: %v %s, %v", row.pod.UID, v.Outcome, v.Message, err)
		}
		if row.cpus == "" {
			continue
		}
		if held, _ := v.Pod.Claim("place", "cpu"); held.CPUs.Set.String() != row.cpus {
			t.Errorf("%s has %s, want %s", row.pod.UID, held.CPUs.Set, row.cpus)
		}
	}
}

// TestOptionsOfClaims: a claim has options of the CPU manager for itself, and no others.
func TestOptionsOfClaims(t *testing.T) {
	t.Parallel()
	set, err := divided(dividedMachine(), func(c *managerset.Config) {
		c.CPU.Features.AlphaOptions = true
		// The cores 0-1 and 8-9 of node 0: CPU 8 has its core alone, then the sibling of CPU 1 is 9.
		c.Claims.CPUs = cpuset.Of(0, 1, 2, 8, 9, 10, 4, 5)
		c.CPU.ReservedCPUs = c.Claims.CPUs.Union(cpuset.Of(3))
	})
	if err != nil {
		t.Fatal(err)
	}
	with := func(uid string, cpus int, options ...string) *workload.Pod {
		p := claim(uid, 0, cpus, gibi/4)
		p.ResourceClaim.Devices[0].CPUOptions = options
		return p
	}
	trial := onTrial(t, set)
	for _, row := range []struct {
		pod  *workload.Pod
		cpus string
	}{
		{with("spread", 2, cpu.DistributeAcrossCores), "0-1"},
		{with("half", 1, cpu.FullPCPUsOnly), ""},
		{with("core", 2, cpu.FullPCPUsOnly), "2,10"},
		{with("cores", 2, cpu.FullPCPUsOnly), ""}, // 8 and 9 are halves
		{with("rest", 2), "8-9"},
	} {
		v, err := trial.Admit(t.Context(), row.pod)
		if err != nil || (v.Outcome == admission.Admitted) != (row.cpus != "") {
			t.Fatalf("%s: %v %s, %v", row.pod.UID, v.Outcome, v.Message, err)
		}
		if row.cpus == "" {
			continue
		}
		if held, _ := v.Pod.Claim("place", "cpu"); held.CPUs.Set.String() != row.cpus {
			t.Errorf("%s has %s, want %s", row.pod.UID, held.CPUs.Set, row.cpus)
		}
	}
	for want, options := range map[string][]string{
		"expected one of full-pcpus-only": {cpu.AlignBySocket},
		"cannot be used together":         {cpu.FullPCPUsOnly, cpu.DistributeAcrossCores},
	} {
		if _, err := trial.Admit(t.Context(), with("bad", 2, options...)); errdefs.ClassOf(err) != errdefs.Invalid ||
			!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "resource_claim.devices[0].cpu_options") {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestDivisionIsRefused(t *testing.T) {
	t.Parallel()
	m := dividedMachine()
	for want, change := range map[string]func(c *managerset.Config){
		"dra.cpus: is required":                        func(c *managerset.Config) { c.Claims.CPUs = cpuset.Set{} },
		"dra.cpus: CPUs 15 are not reserved":           func(c *managerset.Config) { c.Claims.CPUs = c.Claims.CPUs.Union(cpuset.Of(15)) },
		"dra.cpus: the machine has no CPUs 99":         func(c *managerset.Config) { c.Claims.CPUs = c.Claims.CPUs.Union(cpuset.Of(99)) },
		"dra.cpus: are all of the reserved CPUs":       func(c *managerset.Config) { c.Claims.CPUs = c.CPU.ReservedCPUs },
		"is all of the memory that is reserved on":     func(c *managerset.Config) { c.Claims.Memory[1][workload.Memory] = 5 * gibi },
		"6Gi of memory on NUMA node 1 are more than":   func(c *managerset.Config) { c.Claims.Memory[1][workload.Memory] = 6 * gibi },
		"1Gi of hugepages-2Mi on NUMA node 0 are more": func(c *managerset.Config) { c.Claims.Memory[0]["hugepages-2Mi"] = gibi },
		"dra.cpus: has no CPUs of NUMA node 1": func(c *managerset.Config) {
			c.Claims.CPUs = c.Claims.CPUs.Intersect(m.CPUsInNodes(numa.Of(0)))
		},
		"dra.memory: NUMA node 1 has none": func(c *managerset.Config) { delete(c.Claims.Memory, 1) },
		"NUMA node 7 does not exist":       func(c *managerset.Config) { c.Claims.Memory[7] = c.Claims.Memory[0] },
	} {
		if _, err := divided(m, change); errdefs.ClassOf(err) != errdefs.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestOfflineNodeForClaims: a configuration stays valid while all CPUs for claims of a NUMA node are offline.
func TestOfflineNodeForClaims(t *testing.T) {
	t.Parallel()
	var claims managerset.Claims
	var reserved cpuset.Set
	if _, err := divided(dividedMachine(), func(c *managerset.Config) { claims, reserved = *c.Claims, c.CPU.ReservedCPUs }); err != nil {
		t.Fatal(err)
	}
	m := machinetest.Build("2s4c2t", machinetest.Memory(0, 16*gibi), machinetest.Memory(1, 16*gibi), machinetest.HugePages(0, 1<<20, 2),
		machinetest.Offline(claims.CPUs.Minus(dividedMachine().CPUsInNodes(numa.Of(0))).String()))
	if _, err := divided(m, func(c *managerset.Config) { c.Claims.CPUs, c.CPU.ReservedCPUs = claims.CPUs, reserved }); err != nil {
		t.Error(err)
	}
}

// TestClaimsNeedDivision: without dra in the configuration, and for nodes that are not one of the
// machine, a claim is an error and no verdict.
func TestClaimsNeedDivision(t *testing.T) {
	t.Parallel()
	m := dividedMachine()
	with, err := divided(m, nil)
	if err != nil {
		t.Fatal(err)
	}
	without, err := divided(m, func(c *managerset.Config) { c.Claims = nil })
	if err != nil {
		t.Fatal(err)
	}
	two := and(claim("two", 0, 1, gibi), claim("", 5, 1, gibi))
	for _, row := range []struct {
		set  *managerset.Set
		pod  *workload.Pod
		want errdefs.Class
	}{
		{without, claim("a", 0, 1, gibi), errdefs.Precondition},
		{with, claim("a", 5, 1, gibi), errdefs.Invalid},
		{with, two, errdefs.Invalid},
	} {
		if _, err := onTrial(t, row.set).Admit(t.Context(), row.pod); errdefs.ClassOf(err) != row.want {
			t.Errorf("%s on %s: %v", row.pod.UID, row.pod.ResourceClaim.Nodes(), err)
		}
	}
}

// TestPodsAndClaimsShareNothing: whatever comes and goes, no CPU has two holders, claims have only
// what is theirs, pods nothing of it, and neither is refused because of the other.
func TestPodsAndClaimsShareNothing(t *testing.T) {
	t.Parallel()
	m := dividedMachine()
	set, err := divided(m, func(c *managerset.Config) { c.Topology.Policy = topology.SingleNUMANode })
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(r *rapid.T) {
		trial := live.NewTrial(admission.Config{Tries: -1}, ledger.Empty(set.Rules), set.Bus, set.Topology).ForClaims(set.For)
		// The same without the other kind gives the same verdicts.
		alone := map[bool]*live.Trial{}
		for _, claims := range []bool{false, true} {
			alone[claims] = live.NewTrial(admission.Config{Tries: -1}, ledger.Empty(set.Rules), set.Bus,
				set.Topology).ForClaims(set.For)
		}
		living := map[string]bool{} // uid to whether it is a claim
		for i := range rapid.IntRange(1, 30).Draw(r, "steps") {
			if len(living) > 0 && rapid.Bool().Draw(r, "remove") {
				uid := rapid.SampledFrom(sortedKeys(living)).Draw(r, "uid")
				for _, one := range []*live.Trial{trial, alone[living[uid]]} {
					draft := ledger.NewDraft(one.View())
					draft.RemovePod(uid)
					one.On(draft.View(), time.Time{})
				}
				delete(living, uid)
				continue
			}
			pod := claim(fmt.Sprintf("u%02d", i), rapid.IntRange(0, 1).Draw(r, "node"), rapid.IntRange(1, 5).Draw(r, "cpus"),
				rapid.Int64Range(1, 5*gibi).Draw(r, "bytes"))
			if rapid.Bool().Draw(r, "two devices") {
				and(pod, claim("", rapid.IntRange(0, 1).Draw(r, "node"), rapid.IntRange(1, 3).Draw(r, "cpus"),
					rapid.Int64Range(1, 3*gibi).Draw(r, "bytes")))
			}
			isClaim := rapid.Bool().Draw(r, "claim")
			if !isClaim {
				pod.ResourceClaim = nil
			}
			v, err := trial.Admit(t.Context(), pod)
			w, err2 := alone[isClaim].Admit(t.Context(), pod)
			if err != nil || err2 != nil || v.Outcome != w.Outcome || v.Reason != w.Reason {
				r.Fatalf("%s, a claim: %t: %v %s %v, without the others %v %s %v", pod.UID, isClaim, v.Outcome, v.Reason, err, w.Outcome,
					w.Reason, err2)
			}
			if v.Outcome != admission.Admitted {
				continue
			}
			living[pod.UID] = isClaim
			if isClaim {
				checkClaim(r, set, v.Pod)
			}
			for _, held := range v.Pod.Claims {
				if !isClaim && held.CPUs != nil && held.CPUs.Set.Overlaps(set.Rules.ReservedCPUs) {
					r.Errorf("pod %s has reserved CPUs %s", pod.UID, held.CPUs.Set)
				}
			}
			if found := check.View(trial.View()); len(found) > 0 {
				r.Fatal(found)
			}
		}
	})
}

func sortedKeys(m map[string]bool) []string { return slices.Sorted(maps.Keys(m)) }
