package reconcile

import (
	"context"
	"fmt"
	"log/slog"
	gort "runtime"
	"strings"
	"sync"
	"testing"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/qos"
	"github.com/berthd/berth/server/internal/runtime"
)

// counted is a tree and a runtime that count what is read, written and listed. Calls to a runtime that take long go on beside the test.
type counted struct {
	facts cgroup.Facts
	mu    sync.Mutex // guards what is below
	nodes map[string]cgroup.Observed
	below map[string][]cgroup.Name
	boxes map[string]runtime.Container // by id
	pods  map[string]string            // the ids of sandboxes, by pod

	read, wrote, listed, updated int
}

func (c *counted) locked(do func(*counted)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	do(c)
}

func (c *counted) Observe(_ context.Context, n cgroup.Name, depth int) (*cgroup.Snapshot, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &cgroup.Snapshot{Facts: c.facts}
	var visit func(n cgroup.Name, depth int)
	visit = func(n cgroup.Name, depth int) {
		o, there := c.nodes[n.String()]
		if c.read++; !there {
			return
		}
		s.Nodes = append(s.Nodes, o)
		if depth != 0 {
			for _, child := range c.below[n.String()] {
				visit(child, depth-1)
			}
		}
	}
	if visit(n, depth); len(s.Nodes) == 0 {
		s.Nodes = append(s.Nodes, cgroup.Observed{Name: n})
	}
	return s, nil
}

func (c *counted) Ensure(_ context.Context, n cgroup.Node) (created bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wrote++
	for i := range len(n.Name) + 1 {
		name := n.Name[:i]
		if _, there := c.nodes[name.String()]; !there {
			created = i == len(n.Name)
			c.nodes[name.String()] = cgroup.Observed{Name: name, State: cgroup.Valid,
				Values: cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: cpuset.Range(0, 3)}}}
			c.below[name.Parent().String()] = append(c.below[name.Parent().String()], name)
		}
	}
	o := c.nodes[n.Name.String()]
	set := o.Values.Merge(n.Values.For(c.facts))
	set.Cpuset = merged(o.Values.Cpuset, n.Values.Cpuset)
	o.Values = set
	c.nodes[n.Name.String()] = o
	return created, nil
}

func (c *counted) Move(context.Context, cgroup.Name, ...int) error { return nil }

func (c *counted) Frozen(context.Context, cgroup.Name) (cgroup.Name, error) { return nil, nil }

func (c *counted) Procs(_ context.Context, n cgroup.Name) ([]int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read++
	return []int{1}, nil
}

func (c *counted) Remove(context.Context, cgroup.Name) error { return nil }

func (c *counted) List(_ context.Context, ids ...string) (out []runtime.Container, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(ids) == 0 {
		for _, b := range c.boxes {
			c.listed++
			out = append(out, b)
		}
	}
	for _, id := range ids {
		c.listed++
		if b, ok := c.boxes[id]; ok {
			out = append(out, b)
		}
	}
	return out, nil
}

func (c *counted) Sandboxes(_ context.Context, pods ...string) (out []runtime.Sandbox, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(pods) == 0 {
		for pod := range c.pods {
			pods = append(pods, pod)
		}
	}
	for _, pod := range pods {
		c.listed++
		out = append(out, runtime.Sandbox{ID: c.pods[pod], Pod: pod, Ready: true})
	}
	return out, nil
}

func (c *counted) Update(ctx context.Context, id string, v cgroup.Values) error {
	c.mu.Lock()
	c.updated++
	b := c.boxes[id]
	c.mu.Unlock()
	if b.Cgroup != nil {
		_, err := c.Ensure(ctx, cgroup.Node{Name: b.Cgroup, Values: v})
		return err
	}
	return nil
}

// node has containers that share the CPUs, each in a pod with a sandbox.
type node struct {
	*Loop
	t      *testing.T
	on     *counted
	ledger *ledger.Ledger
	beside bool
}

func newNode(t *testing.T, containers int, beside bool) *node {
	t.Helper()
	facts := memtree.V1()
	layout, err := cgroup.NewLayout("/", facts.Driver)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{
		t: t, beside: beside, ledger: ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("4c")}),
		on: &counted{
			facts: facts, nodes: map[string]cgroup.Observed{}, below: map[string][]cgroup.Name{}, boxes: map[string]runtime.Container{},
			pods: map[string]string{},
		},
	}
	config := Config{
		Tree: n.on, Layout: layout, Limits: Limits{QoS: qos.Config{Cgroup: cgroup.DefaultConfig(facts)}},
		View: n.ledger.View, Log: slog.New(slog.DiscardHandler),
	}
	if beside {
		config.Runtime = n.on
	}
	n.Loop = New(config)
	for i := range containers {
		n.admit(fmt.Sprint("p", i))
	}
	n.must(n.Pass(t.Context()))
	for i := range containers {
		n.start(fmt.Sprint("p", i))
	}
	n.must(n.Pass(t.Context()))
	return n
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) update(change func(*ledger.Draft)) {
	n.t.Helper()
	_, err := n.ledger.Update(n.t.Context(), func(d *ledger.Draft) error { change(d); return nil })
	n.must(err)
}

func (n *node) admit(uid string) {
	p := ledgertest.Pod(uid, "c")
	if strings.HasPrefix(uid, "own") {
		p = ledgertest.With(p, ledgertest.Exclusive("c", "2-3"))
	}
	n.update(func(d *ledger.Draft) { d.PutPod(p) })
	if n.beside {
		n.on.locked(func(c *counted) { c.pods[uid] = uid + "-sandbox" })
		_, err := n.on.Ensure(n.t.Context(), cgroup.Node{Name: name("/kubepods/pod" + uid + "/" + uid + "-sandbox")})
		n.must(err)
	}
}

// prestart is PreStartContainer.
func (n *node) prestart(uid string) (path string) {
	path, err := n.EnsureContainer(n.t.Context(), n.ledger.View(),
		admission.Start{Binding: ledger.Binding{ID: "id-" + uid, Owner: ledger.Owner{Pod: uid, Container: "c"}}})
	n.must(err)
	return path
}

// start starts the container of a pod.
func (n *node) start(uid string) {
	owner := ledger.Owner{Pod: uid, Container: "c"}
	if n.beside {
		at := name("/kubepods/pod" + uid + "/id-" + uid)
		n.on.locked(func(c *counted) {
			c.boxes["id-"+uid] = runtime.Container{ID: "id-" + uid, Owner: owner, Phase: runtime.Running, Cgroup: at}
		})
		_, err := n.on.Ensure(n.t.Context(), cgroup.Node{Name: at})
		n.must(err)
	}
	path := n.prestart(uid)
	n.update(func(d *ledger.Draft) {
		d.Bind(ledger.Binding{ID: "id-" + uid, Owner: owner, CgroupPath: path, Own: path != ""})
	})
}

// cost returns what a call reads, writes, lists and updates, and how often it allocates.
func (n *node) cost(do func()) (operations [4]int, allocations uint64) {
	n.on.locked(func(c *counted) { c.read, c.wrote, c.listed, c.updated = 0, 0, 0, 0 })
	var before, after gort.MemStats
	gort.ReadMemStats(&before)
	do()
	gort.ReadMemStats(&after)
	n.on.locked(func(c *counted) { operations = [4]int{c.read, c.wrote, c.listed, c.updated} })
	return operations, after.Mallocs - before.Mallocs
}

// The events of one container cost the same with 10 and with 500 other containers: in
// cgroups read and written, in containers listed and updated, and in allocations, of which
// each loop over all containers makes some. It counts the allocations of the whole
// process, so it is not parallel to other tests.
func TestEventCostsItsContainer(t *testing.T) { //nolint:paralleltest // see above
	for _, beside := range []bool{false, true} {
		t.Run(map[bool]string{false: "kernel", true: "runtime"}[beside], func(t *testing.T) { //nolint:paralleltest // see above
			few, many := newNode(t, 10, beside), newNode(t, 500, beside)
			own := func(n *node) {
				n.admit("own")
				n.must(n.Follow(t.Context()))
				n.start("own")
				n.must(n.Follow(t.Context()))
			}
			own(few)
			own(many)
			for _, event := range []struct {
				name        string
				before, now func(*node)
			}{
				{"an event of nobody", nil, func(n *node) { n.must(n.Follow(t.Context())) }},
				{"a pod comes", func(n *node) { n.admit("new") }, func(n *node) { n.must(n.Follow(t.Context())) }},
				{"a container is started", nil, func(n *node) { n.prestart("new") }},
				{"a container has started", func(n *node) { n.start("new") }, func(n *node) { n.must(n.Follow(t.Context())) }},
				{"a container with own CPUs is started and nobody is on them", nil, func(n *node) { n.prestart("own") }},
				{"a container ends", func(n *node) {
					n.on.locked(func(c *counted) { delete(c.boxes, "id-new") })
					n.update(func(d *ledger.Draft) { d.Unbind("id-new") })
				}, func(n *node) { n.must(n.Follow(t.Context())) }},
				{"a pod goes", nil, func(n *node) {
					n.must(n.RemovePod(t.Context(), n.ledger.View(), "new"))
				}},
				{"a pod has gone", func(n *node) { n.update(func(d *ledger.Draft) { d.RemovePod("new") }) },
					func(n *node) { n.must(n.Follow(t.Context())) }},
			} {
				var costs [2][4]int
				var allocations [2]uint64
				for i, n := range []*node{few, many} {
					if event.before != nil {
						event.before(n)
					}
					costs[i], allocations[i] = n.cost(func() { event.now(n) })
				}
				if costs[0] != costs[1] {
					t.Errorf("%s: reads, writes, listed and updated containers are %v with 10 and %v with 500 others", event.name,
						costs[0], costs[1])
				}
				if allocations[1] > allocations[0]+allocations[0]/4+50 {
					t.Errorf("%s: %d allocations with 10 and %d with 500 others", event.name, allocations[0], allocations[1])
				}
			}
		})
	}
}
