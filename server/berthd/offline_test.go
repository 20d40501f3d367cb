package main

import (
	"os"
	"path/filepath"
	"testing"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	"github.com/berthd/berth/managers/cpuset"
)

// offlineEnv allows tests to take CPUs offline, which every process on the machine
// notices; hack/vm/test.sh sets it.
const offlineEnv = "BERTH_TEST_OFFLINE"

// neighbours are two containers with a CPU each, x and y, and one on the shared CPUs, s.
type neighbours struct {
	x, y, s *process
	// own are the CPUs of x, others those of y, and lost is the CPU of x that goes offline.
	own, others cpuset.Set
	lost        int
}

// neighbours admits and starts them.
func (d *daemon) neighbours(n *node) (b neighbours) {
	d.t.Helper()
	d.admitted(guaranteed("x", 1, 0))
	d.admitted(guaranteed("y", 1, 0))
	d.admitted(burstable("s"))
	b.x, b.y, b.s = d.started(n, "x"), d.started(n, "y"), d.started(n, "s")
	b.own, b.others = b.x.allowed(), b.y.allowed()
	var ok bool
	if b.lost, ok = b.own.Lowest(1).Max(); !ok || b.own.Len() != 1 || b.own.Overlaps(b.others) {
		d.t.Fatalf("x runs on %s, y on %s", b.own, b.others)
	}
	return b
}

// started starts the container of an admitted pod.
func (d *daemon) started(n *node, uid string) *process {
	d.t.Helper()
	p := n.stopped()
	d.run(p, uid, "main", "c-"+uid)
	p.works()
	return p
}

// TestCPUGoesOffline takes a CPU offline that a container has for itself. Its process
// runs with those that share, never on another's CPU; that is a finding; nobody is given
// the CPU; and its owner has it again once it is back. No other test runs beside it.
func TestCPUGoesOffline(t *testing.T) {
	if os.Getenv(offlineEnv) == "" {
		t.Skipf("takes a CPU of the machine offline: %s is not set", offlineEnv)
	}
	needCPUs(t, 4)
	n := newNode(t)
	n.needKernel()
	file := filepath.Join(n.root, "berth.yaml")
	text := "apiVersion: config.berthd.github.io/v1alpha1\nkind: BerthConfiguration\ncgroups: {reconcilePeriod: 200ms}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	d := n.start("--config", file)
	b := d.neighbours(n)
	x, y, s, own, lost := b.x, b.y, b.s, b.own, b.lost
	online := onlineFile(lost)
	if err := os.WriteFile(online, []byte("0"), 0); err != nil {
		t.Skipf("CPU %d cannot be taken offline: %v", lost, err)
	}
	t.Cleanup(func() { _ = os.WriteFile(online, []byte("1"), 0) })
	offline := func() bool {
		check, err := d.inspect.Check(n.ctx(), &inspectv1.CheckRequest{})
		return err == nil && len(check.GetFindings()) == 1 && check.GetFindings()[0].GetKind() == inspectv1.FindingKind_FINDING_KIND_POLICY
	}
	d.eventually("the check finds it", offline)
	d.eventually("its owner runs with those that share", func() bool {
		return x.allowed() == s.allowed() &&
			!x.allowed().Overlaps(y.allowed())
	})
	d.admitted(guaranteed("z", 1, 0))
	if z := d.started(n, "z").allowed(); z.Overlaps(own) || z.Overlaps(y.allowed()) || z.Len() != 1 {
		t.Errorf("z was given %s; CPUs %s are offline, and y has %s", z, own, y.allowed())
	}
	d.eventually("all others leave it", func() bool { return x.allowed() == s.allowed() })
	if err := os.WriteFile(online, []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	d.eventually("its owner has it again", func() bool { return x.allowed() == own })
	d.eventually("the check finds nothing", func() bool {
		check, err := d.inspect.Check(n.ctx(), &inspectv1.CheckRequest{})
		return err == nil && len(check.GetFindings()) == 0
	})
	for _, uid := range []string{"x", "y", "z", "s"} {
		d.remove(uid)
	}
	d.check()
}
