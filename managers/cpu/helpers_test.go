package cpu

import (
	"context"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// machines of the worked examples: A has 4 cores of 2 threads; B and C have 8 on
// two sockets, C with two nodes in each; D, E and F have 8 cores of 2, 1 and 4
// threads under two caches.
var machines = map[string]*machine.Topology{
	"A":      machinetest.Build("4c2t"),
	"B":      machinetest.Build("2s4c2t"),
	"C":      machinetest.Build("2s2n2c2t"),
	"D":      machinetest.Build("2l4c2t"),
	"E":      machinetest.Build("2l4c"),
	"F":      machinetest.Build("2l4c4t"),
	"hybrid": machinetest.Hybrid(),
}

func set(list string) cpuset.Set {
	s, err := cpuset.Parse(list)
	if err != nil {
		panic(err)
	}
	return s
}

var (
	allFeatures = Features{AlphaOptions: true, BetaOptions: true, Features: workload.Features{PodLevelResources: true,
		PodLevelResourceManagers: true}, ResizeExclusiveCPUs: true}
	anywhere = hint.Hint{Any: true}
)

func on(nodes ...int) hint.Hint { return hint.Hint{Nodes: numa.Of(nodes...)} }

// options turns "a b" into the option map that switches a and b on.
func optionMap(names string) map[string]string {
	m := map[string]string{}
	for _, name := range strings.Fields(names) {
		m[name] = "true"
	}
	return m
}

// node is a manager with a ledger of its own, checked when the test ends.
type testNode struct {
	*Manager
	*ledger.Ledger
	t ledgertest.T
}

func newNode(t ledgertest.T, topo *machine.Topology, reserved, options string) *testNode {
	t.Helper()
	cfg := Config{
		Policy: PolicyStatic, Options: optionMap(options), Features: allFeatures,
		ReservedCPUs: set(reserved), AllowUnreserved: true,
	}
	m, err := New(cfg, topo)
	if err != nil {
		t.Fatalf("new manager: %v", err)
	}
	rules := ledger.Rules{Machine: topo, ReservedCPUs: m.Reserved(), StrictReservation: m.StrictReservation()}
	return &testNode{Manager: m, Ledger: ledgertest.New(t, rules), t: t}
}

// plan plans the requests one after the other on a draft that holds the pod.
func (n *testNode) plan(pod *workload.Pod, affinity hint.Hint, containers ...int) (*ledger.Draft, error) {
	draft := ledger.NewDraft(n.View())
	if _, known := n.View().Pod(pod.UID); !known {
		draft.PutPod(&ledger.Pod{Pod: *pod, Digest: "digest", AdmissionID: "admission-" + pod.UID, QoS: workload.Guaranteed})
	}
	for _, i := range containers {
		claims, err := n.Plan(context.Background(), draft.View(), hint.Request{Pod: pod, Container: i}, affinity)
		if err != nil {
			return nil, err
		}
		draft.AddClaims(pod.UID, claims...)
	}
	if err := n.Validate(context.Background(), draft.View(), hint.Request{Pod: pod, Container: -1}); err != nil {
		return nil, err
	}
	return draft, nil
}

// admit plans every container of a pod by itself and commits.
func (n *testNode) admit(pod *workload.Pod, affinity hint.Hint) error {
	return n.commit(n.plan(pod, affinity, indices(pod)...))
}

// admitWhole plans a pod in one request and commits.
func (n *testNode) admitWhole(pod *workload.Pod, affinity hint.Hint) error {
	return n.commit(n.plan(pod, affinity, -1))
}

func (n *testNode) commit(draft *ledger.Draft, err error) error {
	n.t.Helper()
	if err != nil {
		return err
	}
	if _, err := n.Commit(context.Background(), draft); err != nil {
		n.t.Fatalf("commit: %v", err)
	}
	for _, f := range check.View(n.View()) {
		// A test may have taken CPUs offline, all shared ones among them.
		if f.Rule != check.RuleOffline && (f.Rule != check.RuleShared || n.topo.Offline().IsEmpty()) {
			n.t.Fatalf("check: %v", f)
		}
	}
	return nil
}

func (n *testNode) remove(uid string) {
	n.t.Helper()
	draft := ledger.NewDraft(n.View())
	draft.RemovePod(uid)
	if err := n.commit(draft, nil); err != nil {
		n.t.Fatalf("remove: %v", err)
	}
}

// held is what a container holds, as a list.
func (n *testNode) held(uid, container string) string {
	claim, ok := n.View().Claim(ledger.Owner{Pod: uid, Container: container}, Resource)
	if !ok {
		return "-"
	}
	return claim.CPUs.Set.String()
}

func indices(pod *workload.Pod) []int {
	all := make([]int, len(pod.Containers))
	for i := range all {
		all[i] = i
	}
	return all
}

// pod makes a Guaranteed pod from words like "init:a=1", "sidecar:b=2", "c=4":
// role, name and CPUs of a container. "c=500m" requests thousandths.
func pod(uid string, containers ...string) *workload.Pod {
	p := &workload.Pod{UID: uid, Namespace: "default", Name: uid}
	for _, text := range containers {
		name, amount, _ := strings.Cut(text, "=")
		c := workload.Container{Name: name, Role: workload.App}
		if role, rest, found := strings.Cut(name, ":"); found {
			c.Name, c.Role = rest, map[string]workload.Role{"init": workload.Init, "sidecar": workload.Sidecar}[role]
		}
		c.Requests = workload.Quantities{workload.CPU: milli(amount), workload.Memory: 1 << 30}
		c.Limits = c.Requests
		p.Containers = append(p.Containers, c)
	}
	return p
}

func milli(amount string) int64 {
	digits, thousandths := strings.CutSuffix(amount, "m")
	var n int64
	for _, d := range digits {
		n = n*10 + int64(d-'0')
	}
	if thousandths {
		return n
	}
	return n * 1000
}

// whole gives a pod CPUs as a whole.
func whole(p *workload.Pod, amount string) *workload.Pod {
	q := workload.Quantities{workload.CPU: milli(amount), workload.Memory: 8 << 30}
	p.Resources = &workload.Resources{Requests: q, Limits: q}
	return p
}

// wantCPUs compares a result with a list; an empty list stands for an error.
func wantCPUs(t *testing.T, what string, got cpuset.Set, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err == nil:
		t.Errorf("%s: got %s, want an error", what, got)
	case want != "" && err != nil:
		t.Errorf("%s: %v, want %s", what, err, want)
	case got.String() != want:
		t.Errorf("%s: got %s, want %s", what, got, want)
	}
}
