package main

import (
	"strings"
	"testing"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	"github.com/berthd/berth/managers/cpuset"
)

// TestChangedRulesKeepClaims starts daemons on the same state under other
// reservations, policies and machines. None of them refuses to start or takes
// anything from the pod that is there; each has what it would not have given, and
// gives nothing of it to others.
func TestChangedRulesKeepClaims(t *testing.T) {
	t.Parallel()
	n := simulated(t, "2s1n4c2t", "")
	d := n.start()
	d.admitted(guaranteed("a", 4, 0))
	cpusOf := func(d *daemon, uid string) cpuset.Set {
		set, err := cpuset.Parse(d.pods()[uid].GetContainers()[0].GetCpus().GetList())
		if err != nil {
			t.Fatal(err)
		}
		return set
	}
	own := cpusOf(d, "a")
	d.kill()
	for _, row := range []struct {
		name, says, rule string
		findings         float64
		args             []string
	}{
		{"reserved since", "kept although today's rules would not allow it: CPUs ", "reserved", 1, []string{"--reserved-cpus", "0-3,8-11"}},
		{"without policy", `the configuration has changed since the last commit: cpu.policy from "static" to the default`, "", 0,
			[]string{"--cpu-manager-policy", "none", "--reserved-cpus", ""}},
		{"half the machine", "broken: CPUs ", "vanished", 1, []string{"--machine", "1s1n4c2t"}},
		{"as before", "", "", 0, nil},
	} {
		d := n.start(row.args...)
		if got := cpusOf(d, "a"); got != own {
			t.Errorf("%s: the pod has %s, it had %s", row.name, got, own)
		}
		check, err := d.inspect.Check(n.ctx(), &inspectv1.CheckRequest{})
		if err != nil || len(check.GetFindings()) != int(row.findings) ||
			!strings.Contains(strings.Join(check.GetStartReport(), "\n"), row.says) {
			t.Errorf("%s: %v, %v; want %q", row.name, check, err, row.says)
		}
		if row.rule != "" {
			d.scrape().expect(t, row.name, metrics{`berth_ledger_findings{kind="policy",rule="` + row.rule + `"}`: row.findings})
		}
		resp := d.admitted(guaranteed("b", 1, 0))
		if got := resp.GetAllocations()[0]; got.GetExclusiveCpus() && cpusOf(d, "b").Overlaps(own) {
			t.Errorf("%s: another pod got %s of %s", row.name, got.GetCpus().GetList(), own)
		}
		d.remove("b")
		d.kill()
	}
}
