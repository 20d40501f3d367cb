package cpu

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// anyMachine makes machines with up to three sockets and six nodes, whose cores,
// caches, nodes and sockets differ in size and need not nest, with holes in all
// numbers.
func anyMachine(t *rapid.T) *machine.Topology {
	even := rapid.Bool().Draw(t, "even")
	size := func(name string, most int) int {
		if even {
			return rapid.IntRange(1, most).Draw(t, name)
		}
		return most
	}
	threads, cores, caches := size("threads", 4), size("cores", 4), size("caches", 2)
	pick := func(name string, fixed int) int {
		if even {
			return fixed
		}
		return rapid.IntRange(1, fixed).Draw(t, name)
	}
	nodes := rapid.IntRange(1, 6).Draw(t, "nodes")
	sockets := rapid.IntRange(1, 3).Draw(t, "sockets")
	across := rapid.Bool().Draw(t, "across")
	var places []machine.CPU
	socketOf := map[int]int{} // a core is in one socket
	coreID := 0
	for n := range nodes {
		for c := range pick("caches", caches) {
			for range pick("cores", cores) {
				coreID++
				socketOf[coreID] = n * sockets / nodes
				if across {
					socketOf[coreID] = coreID % sockets
				}
				for range pick("threads", threads) {
					places = append(places, machine.CPU{Core: coreID, Node: n * 3, Socket: socketOf[coreID], Uncore: n*7 + c, Die: -1,
						Cluster: -1})
				}
			}
		}
	}
	ids := rapid.Permutation(numbers(len(places), rapid.IntRange(1, 3).Draw(t, "stride"))).Draw(t, "ids")
	if rapid.Bool().Draw(t, "in order") {
		slices.Sort(ids)
	}
	lowest := map[int]int{}
	for i := range places {
		places[i].ID = ids[i]
		if low, known := lowest[places[i].Core]; !known || ids[i] < low {
			lowest[places[i].Core] = ids[i]
		}
	}
	for i := range places {
		places[i].Core = lowest[places[i].Core]
	}
	topo, err := machine.New(machine.Snapshot{CPUs: places})
	if err != nil {
		t.Fatal(err)
	}
	return topo
}

func numbers(n, stride int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i * stride
	}
	return out
}

func anySubset(t *rapid.T, name string, of cpuset.Set) cpuset.Set {
	ids := of.IDs()
	if rapid.IntRange(0, 3).Draw(t, name+" all") == 0 {
		return of
	}
	return cpuset.Of(rapid.SliceOfDistinct(rapid.SampledFrom(ids), rapid.ID[int]).Draw(t, name)...)
}

// TestAssignmentAgreesWithOracle also shows that a choice has the requested size
// and takes free CPUs only.
func TestAssignmentAgreesWithOracle(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		topo := anyMachine(t)
		table := newTable(topo)
		free := anySubset(t, "free", topo.CPUs())
		n := rapid.IntRange(0, free.Len()+1).Draw(t, "n")
		check := func(what string, got cpuset.Set, err error, want cpuset.Set, ok bool) {
			if ok != (err == nil) || got != want || ok && (got.Len() != n || !got.IsSubsetOf(free)) {
				t.Fatalf("%s, %d of %s: got %s, %v; want %s", what, n, free, got, err, want)
			}
		}
		for _, m := range []manner{{}, {spread: true}, {spread: true, asKubelet: true}, {uncores: true, asKubelet: true}} {
			got, err := table.packed(free, n, m)
			want, ok := oraclePacked(topo, free, n, m)
			check(fmt.Sprintf("%+v", m), got, err, want, ok)
		}
		kubelet, err := table.packed(free, n, manner{uncores: true, asKubelet: true})
		got, err2 := table.packed(free, n, manner{uncores: true})
		if uncores := topo.ByUncore(); (err == nil) != (err2 == nil) || err == nil && (got.Len() != n || !got.IsSubsetOf(free) ||
			got != kubelet && len(slices.Collect(uncores.Touched(got))) >= len(slices.Collect(uncores.Touched(kubelet)))) {
			t.Fatalf("uncores, %d of %s: got %s, %v, the kubelet %s", n, free, got, err2, kubelet)
		}
		for _, how := range []evenly{{group: 1}, {group: 2}, {group: 3}, {group: 1, bySocket: true}, {group: 2, bySocket: true},
			{group: 1, least: 2}, {group: 2, least: 3, bySocket: true}} {
			got, err := table.distributed(free, n, how)
			want, ok := oracleDistributed(topo, free, n, how)
			check(fmt.Sprintf("distributed, %+v", how), got, err, want, ok)
		}
	})
}

var legalOptions = []string{
	"", FullPCPUsOnly, DistributeAcrossNUMA, DistributeAcrossCores, PreferUncores, StrictReservation,
	FullPCPUsOnly + " " + DistributeAcrossNUMA, FullPCPUsOnly + " " + PreferUncores + " " + StrictReservation,
	AlignBySocket, AlignBySocket + " " + DistributeAcrossNUMA + " " + StrictReservation,
}

// TestHistory: after any sequence of admissions, removals, resizes and CPUs that go offline and come
// back the ledger is sound (the helpers check it), every container has what it requested or is a
// finding, nothing reserved is given away, the affinity is followed as far as the free CPUs go,
// and everything comes back.
func TestHistory(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		topo := anyMachine(t)
		options := rapid.SampledFrom(legalOptions).Draw(t, "options")
		if topo.NumSockets() > topo.NumNUMANodes() && optionMap(options)[AlignBySocket] != "" {
			options = ""
		}
		reserved := anySubset(t, "reserved", topo.CPUs()).Lowest(topo.CPUs().Len() / 2)
		n := newNode(t, topo, reserved.String(), options)
		live := map[string]*workload.Pod{}
		for step := range rapid.IntRange(1, 12).Draw(t, "steps") {
			uid := fmt.Sprintf("p%d", step)
			if rapid.IntRange(0, 3).Draw(t, "hot-plug") == 0 {
				n.online(t, topo, topo.CPUs().Minus(anySubset(t, "gone", topo.CPUs()).Lowest(topo.CPUs().Len()-1)), options)
				continue
			}
			if len(live) > 0 && rapid.IntRange(0, 2).Draw(t, "remove") == 0 {
				for _, known := range sortedKeys(live)[:1] {
					n.remove(known)
					delete(live, known)
				}
				continue
			}
			if len(live) > 0 && rapid.IntRange(0, 1).Draw(t, "resize") == 0 {
				uid := rapid.SampledFrom(sortedKeys(live)).Draw(t, "resized")
				live[uid] = n.resize(t, live[uid])
				continue
			}
			p := anyPod(t, uid, topo.CPUs().Len())
			affinity := anyAffinity(t, n.topo)
			before := n.View()
			admit := n.admit
			if rapid.Bool().Draw(t, "at once") {
				admit = n.admitWhole
			}
			if err := admit(p, affinity); err != nil {
				if errdefs.ClassOf(err) != errdefs.Refused || n.View() != before {
					t.Fatalf("%s: %v", uid, err)
				}
				continue
			}
			live[uid] = p
			n.checkPod(t, p, before, affinity)
		}
		n.online(t, topo, topo.CPUs(), options)
		for _, uid := range sortedKeys(live) {
			n.remove(uid)
		}
		want := topo.CPUs()
		if n.StrictReservation() {
			want = want.Minus(n.Reserved())
		}
		if got := n.View().SharedCPUs(); got != want {
			t.Fatalf("after all is removed the shared pool is %s, want %s", got, want)
		}
	})
}

// online leaves only some CPUs of a machine online, with the same reserved CPUs. Containers keep what
// they hold; one that holds a missing CPU is a finding, and runs on no exclusive CPU of others.
func (n *testNode) online(t *rapid.T, whole *machine.Topology, online cpuset.Set, options string) {
	topo, err := whole.Without(whole.CPUs().Minus(online))
	if err != nil {
		t.Fatal(err)
	}
	m, err := New(Config{
		Policy: PolicyStatic, Options: optionMap(options), Features: allFeatures, ReservedCPUs: n.Reserved(), AllowUnreserved: true,
	}, topo)
	if err != nil {
		return // the options do not suit that machine: the one in use stays
	}
	before := n.View()
	rules := before.Rules()
	rules.Machine, rules.ReservedCPUs = topo, m.Reserved()
	after, err := n.SetRules(t.Context(), rules)
	if err != nil {
		t.Fatal(err)
	}
	n.Manager = m
	found := check.View(after)
	for p := range after.Pods() {
		was, _ := before.Pod(p.UID())
		if !ledger.SameClaims(was.Claims, p.Claims) {
			t.Fatalf("%s: had %v, has %v", p.UID(), was.Claims, p.Claims)
		}
		for _, c := range p.Claims {
			if c.CPUs.Use != ledger.CPUExclusive {
				continue
			}
			runs := after.RunsOn(c.Owner)
			if !c.CPUs.Set.IsSubsetOf(online) && !slices.ContainsFunc(found,
				func(f check.Finding) bool { return f.Owner == c.Owner && f.Rule == check.RuleOffline }) {
				t.Fatalf("%s holds %s and %s are online: no finding in %v", c.Owner, c.CPUs.Set, online, found)
			}
			if own := c.CPUs.Set.Intersect(online); !own.IsEmpty() && runs != own || own.IsEmpty() && !after.SharedCPUs().IsEmpty() &&
				runs != after.SharedCPUs() {
				t.Fatalf("%s holds %s, %s are online, and runs on %s", c.Owner, c.CPUs.Set, online, runs)
			}
		}
	}
}

// resize gives the containers of a pod other numbers of CPUs, and returns the pod as it is then.
func (n *testNode) resize(t *rapid.T, old *workload.Pod) *workload.Pod {
	wanted := *old
	wanted.Containers = slices.Clone(old.Containers)
	for i := range wanted.Containers {
		c := &wanted.Containers[i]
		if c.Role != workload.Init && rapid.Bool().Draw(t, "changes") {
			c.Requests = workload.Quantities{workload.CPU: 1000 * int64(rapid.IntRange(0, n.topo.CPUs().Len()/2+1).Draw(t, "cpus")),
				workload.Memory: 1 << 30}
			c.Limits = c.Requests
		}
	}
	before, _ := n.View().Pod(old.UID)
	claims, err := n.Resize(t.Context(), n.View(), old, &wanted, hint.Widening{})
	if err != nil {
		if errdefs.ClassOf(err) != errdefs.Refused {
			t.Fatalf("resize %s: %v", old.UID, err)
		}
		return old
	}
	draft := ledger.NewDraft(n.View())
	record := *before
	record.Pod = wanted
	draft.PutPod(&record)
	draft.AddClaims(old.UID, claims...)
	if err := n.commit(draft, nil); err != nil {
		t.Fatal(err)
	}
	after, _ := n.View().Pod(old.UID)
	d := n.demand(&wanted)
	for i := range wanted.Containers {
		c := &wanted.Containers[i]
		was, had := before.Claim(c.Name, Resource)
		is, has := after.Claim(c.Name, Resource)
		switch {
		case had != has:
			t.Fatalf("%s/%s: had %v, has %v", old.UID, c.Name, was, is)
		case !has || is.CPUs.Use != ledger.CPUExclusive:
			continue
		case is.CPUs.Set.Len() != d.of(c) && c.Role != workload.Init:
			t.Fatalf("%s/%s: has %s, requests %d", old.UID, c.Name, is.CPUs.Set, d.of(c))
		case !is.CPUs.Set.IsSubsetOf(was.CPUs.Set) && !was.CPUs.Set.Intersect(n.Manager.topo.CPUs()).IsSubsetOf(is.CPUs.Set):
			t.Fatalf("%s/%s: moved from %s to %s", old.UID, c.Name, was.CPUs.Set, is.CPUs.Set)
		case !is.CPUs.Admitted.IsSubsetOf(is.CPUs.Set):
			t.Fatalf("%s/%s: has %s, of which %s since the admission", old.UID, c.Name, is.CPUs.Set, is.CPUs.Admitted)
		}
	}
	return &wanted
}

func (n *testNode) checkPod(t *rapid.T, p *workload.Pod, before *ledger.View, affinity hint.Hint) {
	record, _ := n.View().Pod(p.UID)
	if _, isWhole := record.Claim("", Resource); isWhole != (p.Resources != nil) && isWhole {
		t.Fatalf("%s: holds CPUs as a whole", p.UID)
	}
	d := n.demand(p)
	first := true
	for _, c := range p.Walk() {
		claim, ok := record.Claim(c.Name, Resource)
		asked := d.of(c)
		switch {
		case !ok && asked > 0:
			t.Fatalf("%s/%s: has nothing, asked for %d", p.UID, c.Name, asked)
		case !ok || claim.CPUs.Use == ledger.CPUPodShared:
			continue
		case claim.CPUs.Set.Len() != asked:
			t.Fatalf("%s/%s: has %s, asked for %d", p.UID, c.Name, claim.CPUs.Set, asked)
		case claim.CPUs.Set.Overlaps(n.Reserved()):
			t.Fatalf("%s/%s: has reserved CPUs of %s", p.UID, c.Name, claim.CPUs.Set)
		}
		if first && !affinity.Any && claim.CPUs.Use == ledger.CPUExclusive {
			home := n.topo.CPUsInNodes(affinity.Nodes)
			if n.options.bySocket {
				home = n.topo.BySocket().Cover(home)
			}
			free := n.Allocatable().Minus(before.ExclusiveCPUs())
			if got, most := claim.CPUs.Set.IntersectLen(home), min(asked, free.IntersectLen(home)); got != most {
				t.Fatalf("%s/%s: %d CPUs on nodes %s, could be %d", p.UID, c.Name, got, affinity.Nodes, most)
			}
		}
		first = false
	}
}

func anyPod(t *rapid.T, uid string, most int) *workload.Pod {
	roles := []string{"init:", "sidecar:", "", ""}
	var containers []string
	for i := range rapid.IntRange(1, 4).Draw(t, "containers") {
		role := rapid.SampledFrom(roles).Draw(t, "role")
		containers = append(containers, fmt.Sprintf("%sc%d=%d", role, i, rapid.IntRange(0, most/2+1).Draw(t, "cpus")))
	}
	p := pod(uid, containers...)
	slices.SortStableFunc(p.Containers, func(a, b workload.Container) int {
		return appRank(a.Role) - appRank(b.Role)
	})
	if rapid.IntRange(0, 3).Draw(t, "whole") == 0 {
		whole(p, fmt.Sprint(rapid.IntRange(1, most).Draw(t, "total")))
	}
	return p
}

func appRank(r workload.Role) int {
	if r == workload.App {
		return 1
	}
	return 0
}

func anyAffinity(t *rapid.T, topo *machine.Topology) hint.Hint {
	if rapid.IntRange(0, 3).Draw(t, "any") == 0 {
		return anywhere
	}
	nodes := rapid.SliceOfDistinct(rapid.SampledFrom(topo.CPUNodeMask().IDs()), rapid.ID[int]).Draw(t, "affinity")
	return hint.Hint{Nodes: numa.Of(nodes...)}
}

func sortedKeys(m map[string]*workload.Pod) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// TestRuleAgreesWithDefinition: the sets of an answer are those that have enough.
func TestRuleAgreesWithDefinition(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		topo := anyMachine(t)
		n := newNode(t, topo, "", "")
		available := anySubset(t, "available", topo.CPUs())
		reusable := anySubset(t, "reusable", topo.CPUs()).Minus(available).Lowest(2)
		want := rapid.IntRange(1, topo.CPUs().Len()).Draw(t, "n")
		answer := n.generate(available, reusable, want)
		smallest := narrowest(topo, want)
		var got []hint.Hint
		for m := range numa.Subsets(topo.CPUNodeMask()) {
			free := topo.CPUsInNodes(m)
			if !topo.NodesOf(reusable).IsSubsetOf(m) || free.IntersectLen(available)+reusable.Len() < want {
				continue
			}
			got = append(got, hint.Hint{Nodes: m, Preferred: m.Len() == smallest})
		}
		if len(got) == 0 != (answer.Kind == hint.Impossible) {
			t.Fatalf("got %v, want %v", answer, got)
		}
		if answer.Kind == hint.Impossible {
			return
		}
		if listed, err := answer.Expand(1 << 12); err != nil || !slices.Equal(got, listed) {
			t.Fatalf("got %v, %v, want %v", listed, err, got)
		}
	})
}

// narrowest is the size of the first node set, by size, that has n CPUs.
func narrowest(topo *machine.Topology, n int) int {
	for m := range numa.Subsets(topo.CPUNodeMask()) {
		if topo.CPUsInNodes(m).Len() >= n {
			return m.Len()
		}
	}
	return topo.CPUNodeMask().Len()
}
