package memory

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

const (
	ki = 1 << 10
	mi = 1 << 20
	gi = 1 << 30
)

// bytes reads an amount as tests write it: 3, 2Mi, 9Gi.
func bytes(text string) int64 {
	for unit, suffix := range []string{"", "Ki", "Mi", "Gi", "Ti"} {
		digits, _ := strings.CutSuffix(text, suffix)
		if n, err := strconv.ParseInt(digits, 10, 64); err == nil && digits+suffix == text {
			return n << (10 * unit)
		}
	}
	panic("no amount: " + text)
}

// pod makes a Guaranteed pod. A container is its name, with "init:" or
// "sidecar:" before it, an equals sign, and its amounts: first of memory, then as
// 2Mi=64Mi of huge pages.
func pod(uid string, containers ...string) *workload.Pod {
	p := &workload.Pod{UID: uid, Namespace: "default", Name: "pod-" + uid, QoS: workload.Guaranteed}
	for _, text := range containers {
		c := workload.Container{Requests: workload.Quantities{workload.CPU: 1000}}
		name, list, _ := strings.Cut(text, "=")
		role, after, found := strings.Cut(name, ":")
		if c.Name = name; found {
			c.Name = after
			c.Role = map[string]workload.Role{"init": workload.Init, "sidecar": workload.Sidecar}[role]
		}
		for i, amount := range strings.Fields(list) {
			if size, n, pages := strings.Cut(amount, "="); pages {
				c.Requests[workload.Resource("hugepages-"+size)] = bytes(n)
			} else if i == 0 {
				c.Requests[workload.Memory] = bytes(amount)
			}
		}
		c.Limits = c.Requests
		p.Containers = append(p.Containers, c)
	}
	return p
}

// whole gives a pod resources as a whole, and takes the amounts of those
// containers away that are named as sharing.
func whole(p *workload.Pod, amount string, sharing ...string) *workload.Pod {
	q := workload.Quantities{workload.CPU: 4000, workload.Memory: bytes(amount)}
	p.Resources = &workload.Resources{Requests: q, Limits: q}
	for _, name := range sharing {
		c := p.Container(name)
		c.Requests, c.Limits = nil, nil
	}
	return p
}

var (
	anywhere          = hint.Hint{Any: true}
	anywherePreferred = hint.Hint{Any: true, Preferred: true}
)

func on(nodes ...int) hint.Hint { return hint.Hint{Nodes: numa.Of(nodes...)} }

func preferably(nodes ...int) hint.Hint {
	return hint.Hint{Nodes: numa.Of(nodes...), Preferred: true}
}

// testNode is a manager with a ledger of its own, checked when the test ends.
type testNode struct {
	*Manager
	*ledger.Ledger
	t ledgertest.T
}

// allFeatures are on in tests.
var allFeatures = workload.Features{PodLevelResources: true, PodLevelResourceManagers: true}

func newNode(t ledgertest.T, topo *machine.Topology, change ...func(*Config)) *testNode {
	t.Helper()
	cfg := Config{Policy: PolicyStatic, Features: allFeatures, AllowUnreserved: true, ResizePinned: true}
	for _, f := range change {
		f(&cfg)
	}
	m, err := New(cfg, topo)
	if err != nil {
		t.Fatalf("new manager: %v", err)
	}
	return &testNode{Manager: m, Ledger: ledgertest.New(t, ledger.Rules{Machine: topo}), t: t}
}

// nodesOf makes a machine of nodes with so much memory each.
func nodesOf(memory ...uint64) *machine.Topology {
	var options []machinetest.Option
	for node, bytes := range memory {
		options = append(options, machinetest.Memory(node, bytes))
	}
	return machinetest.Build(fmt.Sprintf("1s%dn1c", len(memory)), options...)
}

// draft plans the requests one after the other on a draft that holds the pod.
func (n *testNode) draft(p *workload.Pod, affinity hint.Hint, containers ...int) (*ledger.Draft, error) {
	draft := ledger.NewDraft(n.View())
	if _, known := n.View().Pod(p.UID); !known {
		draft.PutPod(&ledger.Pod{Pod: *p, Digest: "digest", AdmissionID: "admission-" + p.UID, QoS: workload.Guaranteed})
	}
	for _, i := range containers {
		claims, err := n.Plan(context.Background(), draft.View(), hint.Request{Pod: p, Container: i}, affinity)
		if err != nil {
			return draft, err
		}
		draft.AddClaims(p.UID, claims...)
	}
	return draft, nil
}

// admit plans every container of a pod by itself and commits.
func (n *testNode) admit(p *workload.Pod, affinity hint.Hint) error {
	indices := make([]int, len(p.Containers))
	for i := range indices {
		indices[i] = i
	}
	return n.commit(n.draft(p, affinity, indices...))
}

// admitWhole plans a pod in one request and commits.
func (n *testNode) admitWhole(p *workload.Pod, affinity hint.Hint) error {
	return n.commit(n.draft(p, affinity, -1))
}

func (n *testNode) commit(draft *ledger.Draft, err error) error {
	if err != nil {
		return err
	}
	if _, err := n.Commit(context.Background(), draft); err != nil {
		n.t.Fatalf("commit: %v", err)
	}
	return nil
}

func (n *testNode) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatalf("%v", err)
	}
}

func (n *testNode) remove(uid string) {
	n.t.Helper()
	draft := ledger.NewDraft(n.View())
	draft.RemovePod(uid)
	n.must(n.commit(draft, nil))
}

// finish drops what the init containers before a container still hold.
func (n *testNode) finish(uid, starting string) {
	n.t.Helper()
	record, _ := n.View().Pod(uid)
	draft := ledger.NewDraft(n.View())
	draft.DropClaims(uid, n.Finished(record, starting)...)
	n.must(n.commit(draft, nil))
}

// resource returns the state of a resource; zero if the node does not know it.
func (n *NodeState) resource(name string) ResourceState {
	for _, r := range n.Resources {
		if r.Resource == name {
			return r
		}
	}
	return ResourceState{Resource: name}
}

// usage shows the state of a resource in short: for each node what is held and
// what group it is in, as "5Gi[0] 0[1]".
func (n *testNode) usage(resource string) string { return n.usageIn(n.View(), resource) }

func (n *testNode) usageIn(view *ledger.View, resource string) string {
	var out []string
	for _, s := range n.State(view) {
		out = append(out, fmt.Sprintf("%s[%s]", quantity(s.resource(resource).Held), s.Group))
	}
	return strings.Join(out, " ")
}

// shown writes hints in short: "0p 1p 0-1".
func shown(hints []hint.Hint) string {
	var out []string
	for _, h := range hints {
		text := h.Nodes.String()
		if h.Preferred {
			text += "p"
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

// hintsFor calls Hints for a container, or with -1 for the pod, and returns the
// answers as "resource: hints", or their kind.
func (n *testNode) hintsFor(p *workload.Pod, container int) string {
	n.t.Helper()
	answers, err := n.Hints(context.Background(), n.View(), hint.Request{Pod: p, Container: container})
	if err != nil {
		n.t.Fatalf("hints: %v", err)
	}
	if err := hint.CheckReply(hint.Reply{Provider: Name, Answers: answers}, n.nodes); err != nil {
		n.t.Errorf("%v", err)
	}
	var out []string
	for _, a := range answers {
		text := string(a.Kind)
		if a.Kind == hint.Options || a.Kind == hint.ByRule {
			hints, err := a.Expand(1 << 12)
			if err != nil {
				n.t.Fatalf("hints: %v", err)
			}
			text = shown(hints)
		}
		out = append(out, a.Resource+": "+text)
	}
	return strings.Join(out, ", ")
}

// placed returns the nodes of a container's memory.
func (n *testNode) placed(uid, container string) string {
	claim, ok := n.View().Claim(ledger.Owner{Pod: uid, Container: container}, "memory")
	if !ok {
		return "nowhere"
	}
	return claim.Memory[0].Nodes.String()
}

func wantText(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}
