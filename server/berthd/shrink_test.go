package main

import (
	"strings"
	"testing"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
)

// TestMachineShrinks starts berthd on less of a machine than its pods hold: it
// starts, reports what is wrong, admits and removes pods, and is well again
// when the machine is.
func TestMachineShrinks(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.kernel = false
	whole, less := "1s2n8c1t,mem=8Gi", "1s1n2c1t,mem=1Gi"
	memory := []string{"--memory-manager-policy", "Static", "--system-reserved", "memory=128Mi",
		"--reserved-memory", "0:memory=228Mi"}
	start := func(machine string) *daemon { return n.start(append(memory, "--machine", machine)...) }
	d := start(whole)
	for _, uid := range []string{"a", "b", "c"} {
		d.admitted(guaranteed(uid, 2, 0))
	}
	d.admitted(burstable("d"))
	// placed is what pods hold, without where that is on the machine.
	placed := func() map[string]string {
		pods := d.pods()
		for _, p := range pods {
			for _, c := range p.GetContainers() {
				c.CpuLocations = nil
			}
		}
		return texts(pods)
	}
	held := placed()
	d.kill()

	d = start(less)
	findings := map[inspectv1.FindingKind]int{}
	check, err := d.inspect.Check(n.ctx(), &inspectv1.CheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range check.GetFindings() {
		findings[f.GetKind()]++
	}
	if findings[inspectv1.FindingKind_FINDING_KIND_POLICY] == 0 || findings[inspectv1.FindingKind_FINDING_KIND_STRUCTURAL] > 0 ||
		!strings.Contains(strings.Join(check.GetStartReport(), "\n"), "machine has changed") {
		t.Errorf("findings %v, start %q", check.GetFindings(), check.GetStartReport())
	}
	for uid, text := range placed() {
		if uid != "d" && text != held[uid] { // d runs on what is shared
			t.Errorf("pod %s became %s", uid, text)
		}
	}
	d.admitted(burstable("e"))
	if v := d.admit(guaranteed("f", 2, 0)); v.GetVerdict() != admissionv1.Verdict_VERDICT_REJECTED {
		t.Errorf("two CPUs of one that can be had: %s", v.GetVerdict())
	}
	d.remove("c")
	d.remove("e")
	d.kill()

	d = start(whole)
	d.check()
	d.admitted(guaranteed("f", 2, 0))
	for _, uid := range []string{"a", "b", "d", "f"} {
		d.remove(uid)
	}
	d.check()
	if pods := d.pods(); len(pods) > 0 {
		t.Errorf("left: %v", pods)
	}
}
