package memory

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// drawMachine makes a machine of up to so many nodes, some without memory, some
// with pages of two sizes.
func drawMachine(t *rapid.T, most int) *machine.Topology {
	nodes := rapid.IntRange(1, most).Draw(t, "nodes")
	var options []machinetest.Option
	for node := range nodes {
		options = append(options, machinetest.Memory(node, rapid.SampledFrom([]uint64{0, 4 * gi, 8 * gi, 8*gi + 4096}).Draw(t, "memory")))
		for _, size := range []uint64{2 * ki, gi / ki} {
			if rapid.Bool().Draw(t, "pages") {
				options = append(options, machinetest.HugePages(node, size, rapid.Uint64Range(0, 2).Draw(t, "count")))
			}
		}
	}
	if nodes > 1 && rapid.Bool().Draw(t, "gap") {
		ids := []int{0, 2, 3, 5, 8, 9, 10, 40, 63}
		options = append(options, machinetest.NodeIDs(ids[:nodes]...))
	}
	return machinetest.Build(fmt.Sprintf("1s%dn1c", nodes), options...)
}

// drawPod makes a pod with up to two init containers, a sidecar and two app
// containers, sometimes with resources as a whole that have room for those of the
// containers.
func drawPod(t *rapid.T, uid string) *workload.Pod {
	var containers []string
	amount := func() string {
		text := fmt.Sprintf("%dMi", rapid.Uint64Range(0, 10).Draw(t, "memory")*512)
		if rapid.IntRange(0, 3).Draw(t, "small") == 0 {
			text += fmt.Sprintf(" 2Mi=%dMi", 2*rapid.IntRange(0, 3).Draw(t, "pages"))
		}
		if rapid.IntRange(0, 3).Draw(t, "large") == 0 {
			text += fmt.Sprintf(" 1Gi=%dGi", rapid.IntRange(0, 2).Draw(t, "pages"))
		}
		return text
	}
	for i, role := range []string{"init:", "sidecar:", "init:", "", ""} {
		if i == 3 || rapid.Bool().Draw(t, "container") {
			containers = append(containers, fmt.Sprintf("%sc%d=%s", role, i, amount()))
		}
	}
	p := pod(uid, containers...)
	if rapid.IntRange(0, 4).Draw(t, "as a whole") == 0 {
		needed := workload.PodTotal(p, func(c *workload.Container) int64 { return c.Requests[workload.Memory] })
		whole(p, fmt.Sprintf("%dMi", needed/mi+512*rapid.Int64Range(0, 2).Draw(t, "more")))
		if rapid.Bool().Draw(t, "shares") {
			c := &p.Containers[rapid.IntRange(0, len(p.Containers)-1).Draw(t, "who")]
			c.Requests, c.Limits = nil, nil
		}
	}
	defaulted, _ := workload.Defaulted(*p, workload.Features{PodLevelResources: true})
	return &defaulted
}

func drawAffinity(t *rapid.T, nodes numa.Mask) hint.Hint {
	h := hint.Hint{Preferred: rapid.Bool().Draw(t, "preferred")}
	for id := range nodes.All() {
		if rapid.IntRange(0, 2).Draw(t, "node") == 0 {
			h.Nodes = h.Nodes.With(id)
		}
	}
	if h.Nodes == 0 {
		h.Any = true
	}
	return h
}

// TestHistory lives through random admissions, releases and restarts, and holds
// the usage against what was admitted after every step.
func TestHistory(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		topo := drawMachine(t, 5)
		j := ledgertest.NewJournal()
		rules := ledger.Rules{Machine: topo}
		n := newNode(t, topo, func(c *Config) { c.DisjointNUMAGroups = rapid.Bool().Draw(t, "apart") })
		n.Ledger, _ = ledgertest.Open(t, journal.Options{Journal: j, Rules: rules})
		pods := map[string]*workload.Pod{}
		for step := range rapid.IntRange(1, 12).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			default:
				uid := fmt.Sprintf("p%d", step)
				p := drawPod(t, uid)
				affinity, before := drawAffinity(t, n.nodes), n.State(n.View())
				admit := n.admit
				if p.Resources != nil || rapid.Bool().Draw(t, "pod scope") {
					admit = n.admitWhole
				}
				if err := admit(p, affinity); err == nil {
					pods[uid] = p
				} else if !reflect.DeepEqual(before, n.State(n.View())) {
					t.Fatalf("a refusal changed the usage: %v", err)
				}
			case 0, 1, 2:
				if len(pods) == 0 {
					continue
				}
				uid := rapid.SampledFrom(slices.Sorted(maps.Keys(pods))).Draw(t, "leaves")
				delete(pods, uid)
				n.remove(uid)
			case 3:
				if len(pods) == 0 {
					continue
				}
				uid := rapid.SampledFrom(slices.Sorted(maps.Keys(pods))).Draw(t, "starts")
				n.finish(uid, rapid.SampledFrom(pods[uid].Containers).Draw(t, "container").Name)
			case 5, 6:
				if len(pods) == 0 {
					continue
				}
				uid := rapid.SampledFrom(slices.Sorted(maps.Keys(pods))).Draw(t, "resized")
				pods[uid] = n.resizeAny(t, pods[uid])
			case 4:
				before := n.State(n.View())
				j = j.Reopen()
				n.Ledger, _ = ledgertest.Open(t, journal.Options{Journal: j, Rules: rules})
				if after := n.State(n.View()); !reflect.DeepEqual(before, after) {
					t.Fatalf("a restart turned the usage from %+v into %+v", before, after)
				}
			}
			checkUsage(t, n, pods)
		}
		for uid := range pods {
			n.remove(uid)
		}
		if got, want := n.State(n.View()), n.State(newNode(t, topo).View()); !reflect.DeepEqual(got, want) {
			t.Fatalf("in the end the usage is %+v", got)
		}
	})
}

// resizeAny gives the containers of a pod other amounts of memory, and returns the pod as it is then.
func (n *testNode) resizeAny(t *rapid.T, old *workload.Pod) *workload.Pod {
	wanted := *old
	wanted.Containers = slices.Clone(old.Containers)
	for i := range wanted.Containers {
		c := &wanted.Containers[i]
		if _, has := c.Requests[workload.Memory]; has && !c.Role.Feeds() && rapid.Bool().Draw(t, "changes") {
			c.Requests = maps.Clone(c.Requests)
			c.Requests[workload.Memory] = 512 * mi * rapid.Int64Range(0, 10).Draw(t, "memory")
			c.Limits = c.Requests
		}
	}
	before, _ := n.View().Pod(old.UID)
	claims, err := n.Resize(t.Context(), n.View(), old, &wanted, hint.Widening{})
	if err != nil {
		if errdefs.ClassOf(err) != errdefs.Refused {
			t.Fatalf("resize: %v", err)
		}
		return old
	}
	record := *before
	record.Pod = wanted
	draft := ledger.NewDraft(n.View())
	draft.PutPod(&record)
	draft.AddClaims(old.UID, claims...)
	n.must(n.commit(draft, nil))
	after, _ := n.View().Pod(old.UID)
	for _, was := range before.Claims {
		is, has := after.Claim(was.Owner.Container, was.Resource)
		if !has || !was.Memory[0].Nodes.IsSubsetOf(is.Memory[0].Nodes) {
			t.Fatalf("%s had %v, has %v", was.Owner, was.Memory, is.Memory)
		}
	}
	return &wanted
}

// checkUsage holds the state against the pods: nothing is given out that is not
// there, and every pod has what it needs at its busiest moment, but not more.
func checkUsage(t *rapid.T, n *testNode, pods map[string]*workload.Pod) {
	t.Helper()
	for _, f := range check.View(n.View()) {
		t.Fatalf("%s", f)
	}
	if f := n.Drift(n.View(), n.Baseline()); len(f) > 0 {
		t.Fatalf("%v", f)
	}
	least, most := map[string]int64{}, map[string]int64{}
	for uid, p := range pods {
		record, _ := n.View().Pod(uid)
		if slices.ContainsFunc(record.Claims, func(c ledger.Claim) bool { return c.Owner.Container == "" }) {
			for r, bytes := range p.Resources.Requests {
				least[string(r)] += bytes
				most[string(r)] += bytes
			}
			continue
		}
		if p.Resources != nil {
			continue
		}
		for _, r := range []workload.Resource{"memory", "hugepages-2Mi", "hugepages-1Gi"} {
			least[string(r)] += workload.PodTotal(p, func(c *workload.Container) int64 {
				if c.Role.Feeds() {
					return 0 // may have been given back
				}
				return c.Requests[r]
			})
			for _, c := range p.Containers {
				most[string(r)] += c.Requests[r]
			}
		}
	}
	held := map[string]int64{}
	for _, s := range n.State(n.View()) {
		for _, r := range s.Resources {
			held[r.Resource] += int64(r.Held)
			if r.Held+r.Free != r.Allocatable || s.Blocks == 0 && r.Held > 0 {
				t.Fatalf("node %d: %+v with %d blocks", s.Node, r, s.Blocks)
			}
		}
		if !s.Group.Contains(s.Node) || s.Blocks == 0 && s.Group.Len() > 1 {
			t.Fatalf("node %d with %d blocks is in group %s", s.Node, s.Blocks, s.Group)
		}
	}
	for resource, bytes := range held {
		if bytes < least[resource] || bytes > most[resource] {
			t.Fatalf("%d bytes of %s are held, which is not between %d and %d", bytes, resource, least[resource], most[resource])
		}
	}
	for _, s := range n.State(n.View()) {
		if g := s.Group; n.apart && s.Blocks > 0 {
			for id := range g.All() {
				if got := n.table(n.View()).group(id); got != g {
					t.Fatalf("node %d is in group %s and node %d in %s", s.Node, g, id, got)
				}
			}
		}
	}
}

// TestHintsByDefinition holds hints against the definition of the family, worked
// out set by set, and those that a machine with more nodes gets by a rule as well.
func TestHintsByDefinition(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := newNode(t, drawMachine(t, 9))
		for i := range rapid.IntRange(0, 4).Draw(t, "pods") {
			p := drawPod(t, fmt.Sprint("earlier", i))
			p.Resources = nil
			_ = n.admit(p, drawAffinity(t, n.nodes)) // a refusal is as good as none
		}
		p := drawPod(t, "p")
		p.Resources = nil
		at := rapid.IntRange(0, len(p.Containers)-1).Draw(t, "container")
		if p.Containers[at].Requests == nil {
			return
		}
		before := make([]int, at)
		for i := range before {
			before[i] = i
		}
		draft, err := n.draft(p, drawAffinity(t, n.nodes), before...)
		if err != nil {
			return
		}
		view := draft.View()
		want := byDefinition(n.State(view), n.nodes, &p.Containers[at], func(nodes numa.Mask, r workload.Resource) int64 {
			record, _ := view.Pod("p")
			left := record.ReusableMemory(p.Containers[at].Name, string(r), nodes)
			return int64(left.Total())
		})
		req := hint.Request{Pod: p, Container: at}
		answers, err := n.Hints(context.Background(), view, req)
		if err != nil {
			t.Fatal(err)
		}
		if unknown := len(answers) == 1 && answers[0].Kind == hint.Impossible; unknown {
			if len(want) > 0 {
				t.Fatalf("impossible, where %s will do", shown(want))
			}
			return
		}
		if len(answers) == 0 && len(want) > 0 {
			t.Fatalf("no answer, where %s will do", shown(want))
		}
		for _, a := range answers {
			listed, _ := a.Expand(1 << 9)
			if shown(listed) != shown(want) {
				t.Fatalf("%s: got %q, want %q", a.Resource, shown(listed), shown(want))
			}
			for _, h := range a.Hints {
				if a.Kind == hint.ByRule && a.Rule.Allows(h.Nodes) {
					t.Fatalf("%s: the rule describes %s, which is beside it", a.Resource, h.Nodes)
				}
			}
		}
		for nodes := range numa.Subsets(n.nodes) {
			missing := n.Explain(view, req, nodes)
			if len(missing) > 0 && slices.ContainsFunc(want, func(h hint.Hint) bool { return h.Nodes == nodes }) {
				t.Fatalf("nodes %s lack %+v, and would do", nodes, missing)
			}
		}
	})
}

// byDefinition lists the family from what State says.
func byDefinition(state []NodeState, all numa.Mask, c *workload.Container, left func(numa.Mask, workload.Resource) int64) []hint.Hint {
	sum := func(nodes numa.Mask, r workload.Resource, of func(ResourceState) uint64) int64 {
		var n uint64
		for _, s := range state {
			if nodes.Contains(s.Node) {
				n += of(s.resource(string(r)))
			}
		}
		return int64(n)
	}
	capable := func(nodes numa.Mask) bool {
		for r, n := range c.Requests {
			if isMemory(r) && sum(nodes, r, func(s ResourceState) uint64 { return s.Allocatable }) < n {
				return false
			}
		}
		return true
	}
	allowed := func(nodes numa.Mask) bool {
		for _, s := range state {
			if nodes.Contains(s.Node) && s.Group.Len() > 1 && s.Group != nodes {
				return false
			}
			if nodes.Contains(s.Node) && s.Blocks > 0 && s.Group != nodes {
				return false
			}
		}
		for r, n := range c.Requests {
			if isMemory(r) && sum(nodes, r, func(s ResourceState) uint64 { return s.Free })+left(nodes, r) < n {
				return false
			}
		}
		return true
	}
	least := 0
	var out []hint.Hint
	for nodes := range numa.Subsets(all) {
		if !capable(nodes) {
			continue
		}
		if least == 0 {
			least = nodes.Len()
		}
		if allowed(nodes) {
			out = append(out, hint.Hint{Nodes: nodes, Preferred: nodes.Len() == least})
		}
	}
	return out
}
