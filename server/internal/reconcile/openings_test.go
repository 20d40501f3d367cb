package reconcile

import (
	"context"
	"testing"
	"time"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/placement"
	"github.com/berthd/berth/server/internal/runtime"
)

// noRuntime answers nothing.
type noRuntime struct{}

func (noRuntime) List(context.Context, ...string) ([]runtime.Container, error)    { return nil, nil }
func (noRuntime) Sandboxes(context.Context, ...string) ([]runtime.Sandbox, error) { return nil, nil }
func (noRuntime) Update(context.Context, string, cgroup.Values) error             { return nil }

// parts are what the types without I/O have in common, over pods that are guaranteed.
type parts struct {
	cfg     *Config
	names   names
	tracker *tracker
}

func newParts(t *testing.T) parts {
	t.Helper()
	layout, err := cgroup.NewLayout("/", cgroup.Cgroupfs)
	if err != nil {
		t.Fatal(err)
	}
	return parts{&Config{Layout: layout, Runtime: noRuntime{}}, names{layout}, newTracker(time.Now, cgroup.Cgroupfs)}
}

// views returns a view with pods.
func viewOf(pods ...*ledger.Pod) *ledger.View {
	draft := ledger.NewDraft(ledger.Empty(ledger.Rules{Machine: machinetest.Build("4c")}))
	for _, p := range pods {
		draft.PutPod(p)
	}
	return draft.View()
}

func (p parts) openings() *openings {
	return &openings{cfg: p.cfg, names: p.names, tracker: p.tracker, pods: map[string]opening{}}
}

// TestOpenings: an opening pod's cgroup has the shared CPUs and its own. It is in the tracker until it stops.
func TestOpenings(t *testing.T) {
	t.Parallel()
	parts := newParts(t)
	view, o := viewOf(exclusivePod("own", "2-3"), exclusivePod("other", "1")), parts.openings()
	name := cgroup.ParseCgroupfs("/kubepods/podown")
	o.add(view, "own", opening{name: name}, cpuset.Range(0, 3))
	c, _ := o.tracker.Get(ofCgroup(name))
	if c.PossibleCPUs != cpuset.Range(0, 3) || c.WantedCPUs != cpuset.Of(0, 2, 3) || c.Phase != placement.Running ||
		c.Owner != sandboxOf("own") {
		t.Errorf("the tracker has %s on CPUs %s, wants %s, in phase %v", c.Name, c.PossibleCPUs, c.WantedCPUs, c.Phase)
	}
	another := cgroup.ParseCgroupfs("/kubepods/burstable/podown")
	nodes := []cgroup.Node{{Name: name}, {Name: another}, {Name: cgroup.ParseCgroupfs("/kubepods/podother")}}
	o.restrict(view, nodes)
	if !nodes[1].Values.CPUs.IsEmpty() || !nodes[2].Values.CPUs.IsEmpty() || nodes[0].Values.CPUs != cpuset.Of(0, 2, 3) {
		t.Errorf("CPUs %s, %s and %s", nodes[0].Values.CPUs, nodes[1].Values.CPUs, nodes[2].Values.CPUs)
	}
	if !o.confines(name) || o.confines(another) || !o.confines(append(another, "c")) || o.confines(name.Parent()) {
		t.Error("a pod's cgroup confines what is below it only while the pod is opening, one of a container always")
	}
	o.stop("own")
	if _, known := o.tracker.Get(ofCgroup(name)); known || o.confines(name) {
		t.Errorf("it is known: %t, %v", known, o.pods)
	}
}

// TestOpeningBeforeCommit: a pod that is being admitted has CPUs of its own before the ledger has it.
func TestOpeningBeforeCommit(t *testing.T) {
	t.Parallel()
	o := newParts(t).openings()
	o.add(viewOf(), "own", opening{cgroup.ParseCgroupfs("/kubepods/podown"), cpuset.Of(2)}, cpuset.Of(2))
	if got := o.cpus(viewOf(exclusivePod("other", "1-2")), "own"); got != cpuset.Of(0, 2, 3) {
		t.Errorf("CPUs %s", got)
	}
}

// TestOpensAgain: only a pod of a runtime without a container opens again.
func TestOpensAgain(t *testing.T) {
	t.Parallel()
	bound := ledger.NewDraft(viewOf(ledgertest.Pod("a", "c")))
	bound.Bind(ledger.Binding{ID: "id", Owner: ledger.Owner{Pod: "a", Container: "c"}})
	for what, row := range map[string]struct {
		view   *ledger.View
		change func(*Config, *tracker)
		opens  bool
	}{
		"a pod":          {viewOf(ledgertest.Pod("a", "c")), nil, true},
		"an unknown pod": {viewOf(), nil, false},
		"it has another": {bound.View(), nil, false},
		"no runtime":     {viewOf(ledgertest.Pod("a", "c")), func(c *Config, _ *tracker) { c.Runtime = nil }, false},
		"no cgroups":     {viewOf(ledgertest.Pod("a", "c")), func(c *Config, _ *tracker) { c.NoPodCgroups = true }, false},
		"a start goes on": {viewOf(ledgertest.Pod("a", "c")), func(_ *Config, tr *tracker) {
			tr.record(placement.Event{Kind: placement.Plan, Key: ofID("id"), Owner: placement.Owner{Pod: "a", Container: "c"}})
			tr.record(placement.Event{Kind: placement.Allow, Key: ofID("id")})
		}, false},
	} {
		parts := newParts(t)
		if row.change != nil {
			row.change(parts.cfg, parts.tracker)
		}
		o := parts.openings()
		if o.again(row.view, "a"); (len(o.pods) == 1) != row.opens {
			t.Errorf("%s: opening pods %v, want %t", what, o.pods, row.opens)
		}
	}
}

// TestSharers: sandboxes are those that the runtime lists, and stay until their cgroups are gone. Containers of unknown living
// pods share CPUs unless they run on those of their claims.
func TestSharers(t *testing.T) {
	t.Parallel()
	parts := newParts(t)
	draft := ledger.NewDraft(viewOf(exclusivePod("a", "3")))
	draft.PutUnknownLive(ledger.UnknownLivePod{UID: "own", Source: ledger.FromKernel, Claims: exclusivePod("own", "2").Claims})
	draft.PutUnknownLive(ledger.UnknownLivePod{UID: "shares", Source: ledger.FromKernel})
	view := draft.View()
	s := &sharers{names: parts.names, tracker: parts.tracker, pods: map[string][]sharer{}}
	seen := &cgroup.Snapshot{}
	for _, path := range []string{"/kubepods/poda/s1", "/kubepods/poda/s2", "/kubepods/poda/c", "/kubepods/podown/c",
		"/kubepods/podshares/c"} {
		seen.Nodes = append(seen.Nodes, cgroup.Observed{Name: cgroup.ParseCgroupfs(path), State: cgroup.Valid,
			Values: cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: cpuset.Of(2)}}})
	}
	all := func(want ...string) {
		t.Helper()
		found := map[string]bool{}
		for _, one := range s.all(nil) {
			found[one.name.String()] = one.sandbox
		}
		for _, path := range want {
			if _, ok := found[path]; !ok {
				t.Errorf("%s is missing in %v", path, found)
			}
			if _, known := s.tracker.Get(placement.Key{Cgroup: path}); !known {
				t.Errorf("%s is not tracked", path)
			}
		}
		if len(found) != len(want) {
			t.Errorf("sharers %v, want %q", found, want)
		}
	}
	s.note(view, seen, nil, false)
	if all("/kubepods/podshares/c"); s.known {
		t.Error("sandboxes are known without a list")
	}
	s.note(view, seen, []runtime.Sandbox{{ID: "s1", Pod: "a", Ready: true}, {ID: "s2", Pod: "a"}}, true)
	if all("/kubepods/podshares/c", "/kubepods/poda/s1"); !s.known {
		t.Error("sandboxes are unknown after a list")
	}
	s.note(view, seen, nil, false) // a list that failed
	all("/kubepods/podshares/c", "/kubepods/poda/s1")
	nodes := s.nodes(view, map[string]bool{"a": true})
	if len(nodes) != 1 || nodes[0].Values.CPUs != view.CommonCPUs() {
		t.Errorf("wanted values %+v", nodes)
	}
	if left := s.present(nodes, &cgroup.Snapshot{}); len(left) > 0 {
		t.Errorf("a sandbox that is gone would be created: %v", left)
	}
	s.forgetSandbox(ledger.Binding{ID: "s1", Owner: ledger.Owner{Pod: "a", Container: "c"}})
	all("/kubepods/podshares/c")
	s.forget("shares", cgroup.ParseCgroupfs("/kubepods/burstable/podshares"))
	all("/kubepods/podshares/c")
	s.forget("shares", cgroup.ParseCgroupfs("/kubepods/podshares"))
	if all(); len(s.pods) > 1 {
		t.Errorf("kept: %v", s.pods)
	}
}

// TestUnbounds: a cgroup without a binding is a finding when two passes in a row find processes in it, and is removed when both
// find none.
func TestUnbounds(t *testing.T) {
	t.Parallel()
	parts := newParts(t)
	parts.cfg.Runtime = nil
	us := &unbounds{cfg: parts.cfg, names: parts.names, tracker: parts.tracker, leaving: map[string]bool{}}
	p, name := ledgertest.Pod("a", "c", "d"), cgroup.ParseCgroupfs("/kubepods/poda/c")
	view := viewOf(p)
	at := func(path string, populated bool) cgroup.Observed {
		return cgroup.Observed{Name: cgroup.ParseCgroupfs(path), State: cgroup.Valid, Populated: populated}
	}
	seen := &cgroup.Snapshot{Nodes: []cgroup.Observed{
		at("/kubepods/poda", false), at("/kubepods/poda/c", false), at("/kubepods/poda/c/sub", true),
		at("/kubepods/poda/d", false), at("/kubepods/poda/other", true), at("/kubepods/burstable/poda/c", true)}}
	found, empty := us.look(view, seen)
	if len(found) > 0 || len(empty) != 1 || empty[0].owner.Container != "d" {
		t.Fatalf("found %v, empty %v", found, empty)
	}
	if nodes := us.nodes(view); len(nodes) != 1 || !nodes[0].Lives || !nodes[0].Name.Equal(name) {
		t.Errorf("wanted values %+v", nodes)
	}
	removed := 0
	us.outlived(view, empty, func(unbound) bool { removed++; return false })
	if found, empty = us.look(view, seen); removed > 0 || len(found) != 1 || found[0].Owner != (ledger.Owner{Pod: "a", Container: "c"}) {
		t.Errorf("found %v, removed %d", found, removed)
	}
	us.outlived(view, empty, func(unbound) bool { removed++; return false })
	if us.outlived(view, empty, func(unbound) bool { removed++; return true }); removed != 2 || len(us.empty) > 0 {
		t.Errorf("removed %d times, kept %v", removed, us.empty)
	}
	us.leaving["a"] = true
	if found, empty = us.look(view, seen); len(found)+len(empty)+len(us.live) > 0 {
		t.Errorf("a pod that leaves: %v, %v, %v", found, empty, us.live)
	}
	delete(us.leaving, "a")
	draft := ledger.NewDraft(view)
	draft.Bind(ledger.Binding{ID: "id", Owner: ledger.Owner{Pod: "a", Container: "c"}, Own: true, CgroupPath: "/kubepods/poda/c"})
	if _, unbound := us.at(draft.View(), name); unbound {
		t.Error("a bound cgroup is unbound")
	}
	parts.cfg.Runtime = noRuntime{}
	if live, empty := us.in(view, seen); len(live)+len(empty) > 0 {
		t.Errorf("cgroups of a runtime: %v, %v", live, empty)
	}
}

// TestFindings: a finding is logged once when it begins and once when it ends. A start that is repeated makes its own obsolete at
// once.
func TestFindings(t *testing.T) {
	t.Parallel()
	var fs findings
	warned := 0
	log := counting(&warned)
	pod := check.Finding{Kind: kindKernel, Rule: ruleUnbound, Owner: ledger.Owner{Pod: "a", Container: "c"}, Text: "a"}
	frozen := check.Finding{Kind: kindKernel, Rule: ruleFrozen, Text: "b"}
	for range 2 {
		fs.report(t.Context(), log, []check.Finding{pod, frozen})
	}
	if warned != 2 {
		t.Errorf("two findings are logged %d times", warned)
	}
	view := viewOf(ledgertest.Pod("a", "c"))
	bound := ledger.NewDraft(view)
	bound.Bind(ledger.Binding{ID: "id", Owner: pod.Owner})
	if a, b, c := len(fs.in(view)), len(fs.in(bound.View())), len(fs.in(viewOf())); a != 2 || b != 1 || c != 1 {
		t.Errorf("%d findings, %d with a binding and %d without the pod", a, b, c)
	}
	if fs.report(t.Context(), log, nil); len(fs.in(view)) > 0 || warned != 2 {
		t.Errorf("findings that are gone: %v, %d warnings", fs.in(view), warned)
	}
}

// TestWhose: a cgroup below that of a container is the container's.
func TestWhose(t *testing.T) {
	t.Parallel()
	ns := newParts(t).names
	draft := ledger.NewDraft(viewOf(ledgertest.Pod("a", "c", "d")))
	draft.Bind(ledger.Binding{ID: "own", Owner: ledger.Owner{Pod: "a", Container: "c"}, Own: true, CgroupPath: "/kubepods/poda/c"})
	draft.Bind(ledger.Binding{ID: "id", Owner: ledger.Owner{Pod: "a", Container: "d"}})
	cgroups := map[string]cgroup.Name{"id": cgroup.ParseCgroupfs("/kubepods/poda/id")}
	for path, want := range map[string]ledger.Owner{
		"/kubepods/poda/c/below": {Pod: "a", Container: "c"}, "/kubepods/poda/id": {Pod: "a", Container: "d"},
		"/kubepods/poda": {Pod: "a"}, "/kubepods/poda/other": {Pod: "a"}, "/kubepods": {},
	} {
		if got := ns.whose(draft.View(), cgroups, cgroup.ParseCgroupfs(path)); got != want {
			t.Errorf("%s is of %v, want %v", path, got, want)
		}
	}
}
