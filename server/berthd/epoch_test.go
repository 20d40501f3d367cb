package main

import (
	"os"
	"path/filepath"
	"testing"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
)

// TestOlderCopyOfAnEpochBefore puts back a copy of the ledger from before its file was made
// anew: the mark of the last commit is of another epoch, which shows it.
func TestOlderCopyOfAnEpochBefore(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--cgroup-tree", "memory")
	n.kernel = false
	d := n.start()
	d.admitted(burstable("before"))
	d.stop()
	path := filepath.Join(n.root, "state", "ledger.db")
	copied, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	d = n.start()
	d.admitted(guaranteed("alive", 1, 0))
	mine := d.pods()["alive"].GetContainers()[0].GetCpus().GetList()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if v := d.admit(guaranteed("large", 100000, 0)); v.GetVerdict().String() != "VERDICT_REJECTED" { // its trace is a commit
		t.Fatal(v)
	}
	d.says("was written again")
	d.kill()
	if err := os.WriteFile(path, copied, 0o600); err != nil {
		t.Fatal(err)
	}
	d = n.start()
	report, err := d.inspect.GetStartReport(n.ctx(), &inspectv1.GetStartReportRequest{})
	if err != nil || !report.GetOlderCopy() {
		t.Errorf("older copy: %t, %v", report.GetOlderCopy(), err)
	}
	if c := d.cases()["alive"]; !c.GetWaits() {
		t.Errorf("an acknowledged pod is lost: %v", c)
	}
	d.admit(guaranteed("next", 1, 0)) // rejected where there is no other CPU
	if next := d.pods()["next"]; next != nil && next.GetContainers()[0].GetCpus().GetList() == mine {
		t.Errorf("pod next got the CPUs %s of pod alive", mine)
	}
}
