package main

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

// export returns cpu_manager_state as the daemon would leave it to a kubelet.
func (d *daemon) export(format uint32) string {
	d.t.Helper()
	resp, err := d.inspect.Export(d.ctx(), &inspectv1.ExportRequest{Kind: inspectv1.StateFileKind_STATE_FILE_KIND_CPU, Format: format})
	if err != nil {
		d.t.Fatal(err)
	}
	return string(resp.GetState())
}

func (d *daemon) importCPUs(state string, pods ...*typesv1.Pod) *inspectv1.ImportResponse {
	d.t.Helper()
	resp, err := d.inspect.Import(d.ctx(), &inspectv1.ImportRequest{Kind: inspectv1.StateFileKind_STATE_FILE_KIND_CPU,
		State: []byte(state), Pods: pods})
	if err != nil {
		d.t.Fatal(err)
	}
	return resp
}

// TestNodeMovesFromAKubeletAndBack: a kubelet's file is taken over, berth continues
// from it, crashes, and what it leaves is what a kubelet continues from.
func TestNodeMovesFromAKubeletAndBack(t *testing.T) {
	t.Parallel()
	const shape = "2s1n4c2t" // CPU 0 is reserved
	const fromKubelet = `{"policyName":"static","defaultCpuSet":"0,4-7,11-15","entries":{"a":{"main":"1,9"},"b":{"main":"2-3,8,10"}},"checksum":88103633}`
	a, b, c := guaranteed("a", 2, 0), guaranteed("b", 4, 0), guaranteed("c", 2, 0)

	n := simulated(t, shape, "")
	d := n.start()
	empty := d.export(2)
	if got := d.importCPUs(fromKubelet, a, b); len(got.GetPods()) != 2 || len(got.GetNotes())+len(got.GetFindings()) != 0 {
		t.Fatalf("got %v", got)
	}
	if got := d.export(2); got != fromKubelet {
		t.Errorf("came back as\n%s, want\n%s", got, fromKubelet)
	}
	// The agent admits its living pods again, and another one comes.
	for uid, p := range map[string]*typesv1.Pod{"a": a, "b": b} {
		want := d.pods()[uid].GetContainers()[0].GetCpus().GetList()
		if got := d.admitted(p).GetAllocations()[0].GetCpus().GetList(); got != want {
			t.Errorf("pod %s got %s, it has %s", uid, got, want)
		}
	}
	d.admitted(c)
	d.check()
	d.kill()
	d = n.start()
	for _, uid := range []string{"a", "b", "c"} {
		if p := d.pods()[uid]; p == nil || !p.GetContainers()[0].GetExclusiveCpus() || p.GetCgroupParent() == "" {
			t.Errorf("pod %s after a crash: %v", uid, p)
		}
	}

	// Back to a kubelet, and from there to another berth: nothing has moved.
	toKubelet := d.export(2)
	other := simulated(t, shape, "").start()
	other.importCPUs(toKubelet, a, b, c)
	if got := other.export(2); got != toKubelet {
		t.Errorf("came back as\n%s, want\n%s", got, toKubelet)
	}
	if got := other.importCPUs(toKubelet); !slices.EqualFunc(got.GetPods(), []string{"a", "b", "c"},
		func(p *inspectv1.ImportedPod, uid string) bool {
			return p.GetPod().GetUid() == uid && p.GetOutcome() == inspectv1.ImportOutcome_IMPORT_OUTCOME_KNOWN
		}) {
		t.Errorf("the second import says %v", got)
	}
	other.check()
	for _, uid := range []string{"a", "b", "c"} {
		other.remove(uid)
	}
	if got := other.export(2); got != empty {
		t.Errorf("left behind:\n%s, want\n%s", got, empty)
	}
}

func TestImportConflictsAreNamed(t *testing.T) {
	t.Parallel()
	d := simulated(t, "2s1n4c2t", "").start()
	d.admitted(guaranteed("here", 2, 0))
	before, cpus := d.export(2), d.pods()["here"].GetContainers()[0].GetCpus().GetList()
	state := `{"policyName":"static","defaultCpuSet":"0","entries":{"there":{"main":"` + cpus + `"}}}`
	_, err := d.inspect.Import(d.ctx(), &inspectv1.ImportRequest{Kind: inspectv1.StateFileKind_STATE_FILE_KIND_CPU, State: []byte(state),
		Pods: []*typesv1.Pod{guaranteed("there", 2, 0)}})
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "pod here") ||
		!strings.Contains(err.Error(), "pod there") {
		t.Errorf("got %v, want both owners named", err)
	}
	if after := d.export(2); after != before {
		t.Errorf("a refused import changed the ledger:\n%s, was\n%s", after, before)
	}
	d.check()
}
