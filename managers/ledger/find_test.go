package ledger_test

import (
	"testing"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
)

func TestFind(t *testing.T) {
	t.Parallel()
	l := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("4c")})
	near := ledgertest.Exclusive("main", "2")
	near.Affinity = &ledger.Affinity{Nodes: numa.Of(0)}
	record := ledgertest.With(ledgertest.Pod("a", "main", "other"), ledgertest.Devices("main", "example.com/gpu", "g0"), near)
	first := &ledger.Trace{AdmissionID: "1", Pod: "a", Namespace: "default", Name: "pod-a"}
	record.Trace = &ledger.Trace{AdmissionID: "2", Pod: "a", Namespace: "default", Name: "pod-a"}
	for _, change := range []func(*ledger.Draft){
		func(d *ledger.Draft) { d.PutTrace(first) },
		func(d *ledger.Draft) { d.PutPod(record) },
	} {
		if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { change(d); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	view := l.View()

	p, c, err := view.Find(ledger.Owner{Pod: "a"})
	if err != nil || p.UID() != "a" || c != nil {
		t.Errorf("the pod: %v, %v, %v", p, c, err)
	}
	if _, c, err = view.Find(ledger.Owner{Pod: "a", Container: "other"}); err != nil || c.Name != "other" {
		t.Errorf("its container: %v, %v", c, err)
	}
	for owner, want := range map[ledger.Owner]string{
		{Pod: "b"}:                   "pod b is not admitted",
		{Pod: "b", Container: "c"}:   "pod b is not admitted",
		{Pod: "a", Container: "who"}: `pod a has no container "who"`,
	} {
		if _, _, err := view.Find(owner); errdefs.ClassOf(err) != errdefs.NotFound || err.Error() != want {
			t.Errorf("%s: %v, want class not found: %s", owner, err, want)
		}
	}

	if got := p.Affinity("main"); got == nil || got.Nodes != numa.Of(0) {
		t.Errorf("the affinity of main is %v, want node 0", got)
	}
	if got := p.Affinity("other"); got != nil {
		t.Errorf("the affinity of other is %v, want none", got)
	}
	if !p.Holds("example.com/gpu") || p.Holds("memory") {
		t.Error("the pod holds devices and no memory")
	}
	if got, ok := view.TraceOfName("default", "pod-a"); !ok || got.AdmissionID != "2" {
		t.Errorf("the newest trace is %v", got)
	}
	if got, ok := view.TraceOfName("away", "pod-a"); ok {
		t.Errorf("another namespace has the trace %v", got)
	}
}

// TestFindName: a name is a pod only if one pod has it.
func TestFindName(t *testing.T) {
	t.Parallel()
	l := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("4c")})
	put := func(uid, namespace, name string) {
		p := ledgertest.Pod(uid, "main")
		p.Pod.Namespace, p.Pod.Name = namespace, name
		if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(p); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	put("a", "default", "web")
	put("b", "shop", "web")
	put("c", "shop", "twin")
	put("d", "shop", "twin")
	for _, row := range []struct {
		namespace, name, uid string
		class                errdefs.Class
	}{
		{"default", "web", "a", errdefs.Internal}, {"shop", "web", "b", errdefs.Internal}, {"shop", "twin", "", errdefs.Precondition},
		{"default", "twin", "", errdefs.NotFound}, {"", "web", "", errdefs.NotFound}, {"default", "a", "", errdefs.NotFound},
	} {
		p, err := l.View().FindName(row.namespace, row.name)
		if row.uid != "" && (err != nil || p.UID() != row.uid) || row.uid == "" && errdefs.ClassOf(err) != row.class {
			t.Errorf("%s/%s: %v, %v", row.namespace, row.name, p, err)
		}
	}
}
