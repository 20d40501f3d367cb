package ledger_test

import (
	"testing"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
)

// A container runs on those of its CPUs that are online, with the shared ones if none
// is; what it holds stays its own. Rules that are set later know what is offline.
func TestOffline(t *testing.T) {
	t.Parallel()
	rules := ledger.Rules{Machine: machinetest.Build("4c"), ReservedCPUs: cpuset.Of(0)}
	l := ledgertest.New(t, rules)
	if _, err := l.Update(t.Context(), func(d *ledger.Draft) error {
		d.PutPod(ledgertest.With(ledgertest.Pod("x", "c"), ledgertest.Exclusive("c", "2-3")))
		d.PutPod(ledgertest.Pod("s", "c"))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	x, s := ledger.Owner{Pod: "x", Container: "c"}, ledger.Owner{Pod: "s", Container: "c"}
	for _, row := range []struct {
		offline  cpuset.Set
		x, s     cpuset.Set
		findings int
		other    bool
	}{
		{offline: cpuset.Of(3), x: cpuset.Of(2), s: cpuset.Of(0, 1), findings: 1},
		{offline: cpuset.Of(3), x: cpuset.Of(2), s: cpuset.Of(0, 1), findings: 1, other: true},
		{offline: cpuset.Of(1, 2, 3), x: cpuset.Of(0), s: cpuset.Of(0), findings: 1},
		{offline: cpuset.Set{}, x: cpuset.Of(2, 3), s: cpuset.Of(0, 1)},
	} {
		var err error
		if row.other { // a policy is set meanwhile
			_, err = l.SetRules(t.Context(), ledger.Rules{Machine: l.View().Machine(), ReservedCPUs: cpuset.Of(1)})
		} else {
			now := rules
			if now.Machine, err = rules.Machine.Without(row.offline); err != nil {
				t.Fatal(err)
			}
			_, err = l.SetRules(t.Context(), now)
		}
		if err != nil {
			t.Fatal(err)
		}
		v := l.View()
		if v.Machine().Offline() != row.offline || v.RunsOn(x) != row.x || v.RunsOn(s) != row.s {
			t.Errorf("offline are %s: x runs on %s, s on %s; want %s, %s", v.Machine().Offline(), v.RunsOn(x), v.RunsOn(s), row.x, row.s)
		}
		if set, exclusive, _ := v.ContainerCPUs(x); !exclusive || set != cpuset.Of(2, 3) {
			t.Errorf("x holds %s, exclusive %t", set, exclusive)
		}
		if found := check.View(v); len(found) != row.findings || row.findings > 0 && found[0].Rule != check.RuleOffline {
			t.Errorf("offline are %s: %v", row.offline, found)
		}
	}
}
