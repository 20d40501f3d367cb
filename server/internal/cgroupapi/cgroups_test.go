package cgroupapi

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/reconcile"
)

func TestChange(t *testing.T) {
	t.Parallel()
	b := newBench(t, memtree.V1(), nil)
	b.pass()
	limited := cgroup.Values{MemoryBytes: ptr(int64(1 << 20)), HugePages: map[int64]int64{2 << 20: 4 << 20}}
	node := cgroup.Node{Name: name("/kubepods/extra"), Values: limited}
	if _, err := b.change(t.Context(), node, false); errdefs.ClassOf(err) != errdefs.NotFound {
		t.Errorf("update of an absent cgroup: %v", err)
	}
	planned, err := b.Cgroups.PlanChange(t.Context(), node, true)
	if err != nil || len(planned) != 1 || b.seen("/kubepods/extra").State != cgroup.Absent {
		t.Errorf("plan %v, %v", planned, err)
	}
	if _, err := b.change(t.Context(), node, true); err != nil {
		t.Fatal(err)
	}
	v := b.seen("/kubepods/extra").Values
	if *v.MemoryBytes != 1<<20 || v.HugePages[2<<20] != 4<<20 || v.HugePages[1<<30] != 0 {
		t.Errorf("created with %d bytes, huge pages %v", *v.MemoryBytes, v.HugePages)
	}
	// What is absent stays, huge pages too.
	ops, err := b.change(t.Context(), cgroup.Node{Name: node.Name, Values: cgroup.Lightest()}, false)
	v = b.seen("/kubepods/extra").Values
	if err != nil || len(ops) != 1 || *v.CPUShares != 2 || *v.MemoryBytes != 1<<20 || v.HugePages[2<<20] != 4<<20 {
		t.Errorf("%v, %v: %+v", ops, err, v)
	}
	b.pass()
	if len(b.last.Ops) != 0 || b.last.Orphans != 0 {
		t.Errorf("a pass does %v and takes it for an orphan", b.last.Ops)
	}
	b.tree.Break(node.Name, "lacks cpu")
	if _, err := b.change(t.Context(), node, false); errdefs.ClassOf(err) != errdefs.Precondition {
		t.Errorf("update of an invalid cgroup: %v", err)
	}
	if _, err := b.change(t.Context(), node, true); err != nil || b.seen("/kubepods/extra").State != cgroup.Valid {
		t.Errorf("repair: %v", err)
	}
	if err := b.destroy(t.Context(), node.Name); err != nil || b.seen("/kubepods/extra").State != cgroup.Absent {
		t.Errorf("destroy: %v", err)
	}
	if err := b.destroy(t.Context(), node.Name); err != nil {
		t.Errorf("destroy again: %v", err)
	}
}

func TestBounds(t *testing.T) {
	t.Parallel()
	b := newBench(t, memtree.V1(), nil)
	b.admit("a", workload.Burstable, cpus(500))
	b.pass()
	path, err := b.EnsureContainer(t.Context(), b.ledger.View(), admission.Start{Binding: ledger.Binding{ID: "1",
		Owner: ledger.Owner{Pod: "a", Container: "c"}}})
	if err != nil {
		t.Fatal(err)
	}
	b.update(func(d *ledger.Draft) {
		d.Bind(ledger.Binding{ID: "1", Owner: ledger.Owner{Pod: "a", Container: "c"}, CgroupPath: path, Own: true})
	})
	for path, want := range map[string]errdefs.Class{
		"/kubepods/../etc":           errdefs.Invalid,
		"/kubepods":                  errdefs.Precondition,
		"/kubepods/besteffort":       errdefs.Precondition,
		"/kubepods/burstable/poda":   errdefs.Precondition,
		"/kubepods/burstable/poda/c": errdefs.Precondition,
	} {
		if _, err := b.change(t.Context(), cgroup.Node{Name: name(path)}, true); err == nil || errdefs.ClassOf(err) != want {
			t.Errorf("change %s: %v, want class %s", path, err, want)
		}
		if err := b.destroy(t.Context(), name(path)); err == nil || errdefs.ClassOf(err) != want {
			t.Errorf("destroy %s: %v, want class %s", path, err, want)
		}
		_, err := b.Look(t.Context(), name(path))
		if (err == nil) != (want == errdefs.Precondition) {
			t.Errorf("look at %s: %v", path, err)
		}
		if _, err := b.Cgroups.Procs(t.Context(), name(path)); (err == nil) != (want == errdefs.Precondition) {
			t.Errorf("processes of %s: %v", path, err)
		}
	}
	// Below what is berth's, in the wrong tier, and beside the pods is for others.
	for _, path := range []string{"/kubepods/burstable/poda/extra", "/kubepods/poda", "/kubepodsx", "/batch/job1"} {
		if _, err := b.change(t.Context(), cgroup.Node{Name: name(path)}, true); err != nil {
			t.Errorf("change %s: %v", path, err)
		}
	}
}

// The cgroup of a pod that is just being admitted, or of its container that is just
// being started, exists before the ledger has it: manual operations must not write or destroy it.
func TestNobodyTouchesWhatIsOnItsWay(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]struct {
		waited  string
		refused bool
	}{
		"/kubepods/podnew":           {"new", true},
		"/kubepods/podnew/c":         {"new", true},
		"/kubepods/podnew/c/below":   {"new", false},
		"/kubepods/burstable/podnew": {"new", false},
		"/kubepods/extra":            {"", false},
	} {
		for what, do := range map[string]func(context.Context, *Cgroups) error{
			"destroy": func(ctx context.Context, h *Cgroups) error { return h.Destroy(ctx, name(path)) },
			"change": func(ctx context.Context, h *Cgroups) error {
				_, err := h.Change(ctx, cgroup.Node{Name: name(path), Values: cgroup.Lightest()}, false)
				return err
			},
		} {
			b := newBench(t, memtree.V1(), nil)
			b.pass()
			for _, there := range []string{"/kubepods/podnew", "/kubepods/podnew/c", path} {
				b.set(there, cgroup.Values{})
			}
			waited := ""
			err := do(t.Context(), &Cgroups{Loop: b.Loop, Alone: func(ctx context.Context, uid string,
				do func(context.Context, *ledger.View) error) error {
				// What is under way comes to its end.
				waited = uid
				b.admit(uid, workload.Guaranteed, cpus(500))
				b.update(func(d *ledger.Draft) {
					d.Bind(ledger.Binding{ID: "1", Owner: ledger.Owner{Pod: uid, Container: "c"}, CgroupPath: "/kubepods/podnew/c",
						Own: true})
				})
				return do(ctx, b.ledger.View())
			}})
			if waited != want.waited || (errdefs.ClassOf(err) == errdefs.Precondition) != want.refused || (err == nil) == want.refused {
				t.Errorf("%s %s: waited for pod %q, %v", what, path, waited, err)
			}
			if gone := b.seen(path).State == cgroup.Absent; gone != (what == "destroy" && !want.refused) {
				t.Errorf("%s %s: gone: %v", what, path, gone)
			}
		}
	}
}

func TestPods(t *testing.T) {
	t.Parallel()
	b := newBench(t, memtree.V1(), nil)
	b.admit("a", workload.Burstable, cpus(500))
	pods := &Pods{b.Cgroups}
	if o, err := pods.Look(t.Context(), "a"); err != nil || o.State != cgroup.Absent {
		t.Errorf("before: %s, %v", o.State, err)
	}
	parent, created, err := pods.Ensure(t.Context(), "a")
	if err != nil || !created || parent != "/kubepods/burstable/poda" {
		t.Errorf("ensure: %q, %t, %v", parent, created, err)
	}
	if _, created, err := pods.Ensure(t.Context(), "a"); err != nil || created {
		t.Errorf("ensure again: %t, %v", created, err)
	}
	if _, _, err := pods.Ensure(t.Context(), "x"); errdefs.ClassOf(err) != errdefs.NotFound {
		t.Errorf("ensure an unknown pod: %v", err)
	}
	b.set("/kubepods/besteffort/podlost", cgroup.Values{CPUShares: ptr(uint64(100))})
	b.set("/kubepods/podlost", cgroup.Values{})
	list, err := pods.List(t.Context())
	if err != nil || len(list) != 3 || !list[1].Known || list[1].UID != "a" || list[0].Known || list[0].UID != "lost" {
		t.Errorf("list %v, %v", list, err)
	}
	if o, err := pods.Look(t.Context(), "lost"); err != nil || o.State != cgroup.Valid {
		t.Errorf("a lost one: %s, %v", o.State, err)
	}
	if ops, err := pods.Reduce(t.Context(), "lost"); err != nil || len(ops) != 2 || b.shares("/kubepods/besteffort/podlost") != 2 {
		t.Errorf("reduce: %v, %v", ops, err)
	}
	if removed, err := pods.Destroy(t.Context(), "lost"); err != nil || len(removed) != 2 {
		t.Errorf("destroy: %v, %v", removed, err)
	}
	if removed, err := pods.Destroy(t.Context(), "lost"); err != nil || len(removed) != 0 {
		t.Errorf("destroy again: %v, %v", removed, err)
	}
	if _, err := pods.Destroy(t.Context(), "a"); errdefs.ClassOf(err) != errdefs.Precondition {
		t.Errorf("destroy an admitted pod: %v", err)
	}
	if _, err := pods.Reduce(t.Context(), "a"); errdefs.ClassOf(err) != errdefs.Precondition {
		t.Errorf("reduce an admitted pod: %v", err)
	}
	if n, _, err := pods.Name("new", workload.BestEffort); err != nil || n.String() != "/kubepods/besteffort/podnew" {
		t.Errorf("name: %s, %v", n, err)
	}
	if n, _, err := pods.Name("a", ""); err != nil || n.String() != "/kubepods/burstable/poda" {
		t.Errorf("name of an admitted pod: %s, %v", n, err)
	}
	if _, _, err := pods.Name("new", "Best"); errdefs.ClassOf(err) != errdefs.Invalid {
		t.Errorf("name without a class: %v", err)
	}
	for literal, want := range map[string]string{
		"/kubepods/burstable/poda": "a", "/kubepods/podx-1": "x-1", "/machine/podman1": "", "/kubepods": "", "": "",
	} {
		if uid, ok := pods.Of(literal); uid != want || ok != (want != "") {
			t.Errorf("%s is of %q, %t", literal, uid, ok)
		}
	}
}

// TestOthersCgroups: what is the kernel's or another manager's is refused by name, and so
// is what lies elsewhere, unless the configuration names it.
func TestOthersCgroups(t *testing.T) {
	t.Parallel()
	const fine = errdefs.Class(-1)
	for _, tt := range []struct {
		root, path string
		want       errdefs.Class
		says       string
	}{
		{"/", "/", errdefs.Precondition, "the kernel's"},
		{"/", "/system.slice", errdefs.Precondition, "systemd's"},
		{"/", "/system.slice/cron.service", errdefs.Precondition, "systemd's"},
		{"/", "/user.slice/user-1000.slice/session-1.scope", errdefs.Precondition, "systemd's"},
		{"/", "/system", errdefs.Precondition, "systemd's"},
		{"/", "/docker/4f5e", errdefs.Precondition, "Docker's"},
		{"/", "/lxc.payload.web", errdefs.Precondition, "LXC's"},
		{"/node", "/system.slice", errdefs.Invalid,
			"neither below /node (cgroups.root) nor named by the configuration (/reserved, /system.slice/kubelet.service)"},
		{"/node", "/nodes", errdefs.Invalid, "neither below /node"},
		{"/node", "/node/some.service", errdefs.Precondition, "systemd's"},
		{"/node", "/node/release_agent", errdefs.Invalid, "the name of a control file"},
		{"/node", "/node/kubepods/cpu.max", errdefs.Invalid, "the name of a control file"},
		{"/node", "/node/cgroup.x/y", errdefs.Invalid, "the name of a control file"},
		{"/node", "/node/cpu", fine, ""},
		{"/node", "/node/docker", fine, ""},
		{"/node", "/node/extra", fine, ""},
		{"/node", "/reserved", fine, ""},
		{"/node", "/system.slice/kubelet.service", fine, ""},
	} {
		b := newBench(t, memtree.V2(), func(c *reconcile.Config) {
			layout, err := cgroup.NewLayout(tt.root, c.Layout.Driver())
			if err != nil {
				t.Fatal(err)
			}
			c.Layout = layout
			if tt.root != "/" {
				c.Listed = []reconcile.Listed{
					{Name: name("/reserved"), Field: "node.kubeReservedCgroup"},
					{Name: name("/system.slice/kubelet.service"), Field: "node.kubeletCgroups", Plain: true},
				}
			}
		})
		check := func(what string, err error) {
			t.Helper()
			if tt.want == fine && err != nil || tt.want != fine && (errdefs.ClassOf(err) != tt.want ||
				!strings.Contains(fmt.Sprint(err), tt.says)) {
				t.Errorf("%s %s with the root %s: %v, want class %v and %q", what, tt.path, tt.root, err, tt.want, tt.says)
			}
		}
		_, err := b.Look(t.Context(), name(tt.path))
		check("look at", err)
		_, err = b.Cgroups.Procs(t.Context(), name(tt.path))
		check("list the processes of", err)
		_, err = b.Cgroups.PlanChange(t.Context(), cgroup.Node{Name: name(tt.path)}, true)
		check("plan to change", err)
		_, err = b.change(t.Context(), cgroup.Node{Name: name(tt.path), Values: cgroup.Lightest()}, true)
		check("change", err)
	}
}

// TestWhatIsNotRemovedByHand: pods, what the configuration names and berthd live on.
func TestWhatIsNotRemovedByHand(t *testing.T) {
	t.Parallel()
	b := newBench(t, memtree.V2(), func(c *reconcile.Config) {
		c.Layout, _ = cgroup.NewLayout("/a/node", c.Layout.Driver())
		c.Listed = []reconcile.Listed{{Name: name("/a/node/agents/kube"), Field: "node.kubeReservedCgroup"}, {Name: name("/other")}}
		c.Reserved = []cgroup.Node{{Name: name("/other"), Values: cgroup.Lightest()}}
	})
	b.set("/other", cgroup.Values{})
	b.set("/a/node/extra", cgroup.Values{})
	for path, says := range map[string]string{
		"/a/node":             "the cgroup of all pods, /a/node/kubepods, lies in it",
		"/a/node/kubepods":    "parent of pods",
		"/a/node/agents":      "names /a/node/agents/kube (node.kubeReservedCgroup)",
		"/a/node/agents/kube": "names /a/node/agents/kube (node.kubeReservedCgroup)",
		"/other":              "node.enforceNodeAllocatable",
	} {
		if err := b.destroy(t.Context(), name(path)); errdefs.ClassOf(err) != errdefs.Precondition || !strings.Contains(err.Error(), says) {
			t.Errorf("destroy %s: %v, want %q", path, err, says)
		}
	}
	if _, err := b.change(t.Context(), cgroup.Node{Name: name("/other"), Values: cgroup.Lightest()},
		false); errdefs.ClassOf(err) != errdefs.Precondition {
		t.Errorf("change a reserved cgroup: %v", err)
	}
	if err := b.destroy(t.Context(), name("/a/node/extra")); err != nil {
		t.Error(err)
	}
	if b.seen("/a/node/extra").State != cgroup.Absent {
		t.Error("the cgroup beside the pods is still there")
	}
}

// TestNoPodCgroupsAnswers: the cgroups of pods are answered for as by the kubelet's
// variant without any.
func TestNoPodCgroupsAnswers(t *testing.T) {
	t.Parallel()
	b := newBench(t, memtree.V1(), func(c *reconcile.Config) {
		c.NoPodCgroups = true
		c.Layout, _ = cgroup.NewLayout("/berth", c.Layout.Driver())
	})
	b.admit("a", workload.Guaranteed, cpus(500))
	pods := &Pods{b.Cgroups}
	for _, uid := range []string{"a", "nobody"} {
		if o, err := pods.Look(t.Context(), uid); o.State != cgroup.Valid || err != nil {
			t.Errorf("exists %s: %v, %v", uid, o, err)
		}
		if parent, created, err := pods.Ensure(t.Context(), uid); parent != "" || created || err != nil {
			t.Errorf("ensure %s: %q, %t, %v", uid, parent, created, err)
		}
		if name, parent, err := pods.Name(uid, ""); name.String() != "/berth" || parent != "" || err != nil {
			t.Errorf("name of %s: %s, %q, %v", uid, name, parent, err)
		}
		if removed, err := pods.Destroy(t.Context(), uid); len(removed) > 0 || err != nil {
			t.Errorf("destroy %s: %v, %v", uid, removed, err)
		}
		if done, err := pods.Reduce(t.Context(), uid); len(done) > 0 || err != nil {
			t.Errorf("reduce %s: %v, %v", uid, done, err)
		}
	}
	if list, err := pods.List(t.Context()); len(list) > 0 || err != nil {
		t.Errorf("list: %v, %v", list, err)
	}
	if uid, ok := pods.Of("/berth/kubepods/poda"); ok {
		t.Errorf("the cgroup of pod %s", uid)
	}
}
