package admission_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/importer"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// file is a cpu_manager_state with the given entries ("uid/container=list") on
// the machine of build.
func file(pool string, entries ...string) []byte {
	byPod := map[string][]string{}
	var uids []string
	for _, e := range entries {
		owner, list, _ := strings.Cut(e, "=")
		uid, name, _ := strings.Cut(owner, "/")
		if byPod[uid] == nil {
			uids = append(uids, uid)
		}
		byPod[uid] = append(byPod[uid], fmt.Sprintf("%q:%q", name, list))
	}
	var pods []string
	for _, uid := range uids {
		pods = append(pods, fmt.Sprintf("%q:{%s}", uid, strings.Join(byPod[uid], ",")))
	}
	return fmt.Appendf(nil, `{"policyName":"static","defaultCpuSet":%q,"entries":{%s}}`, pool, strings.Join(pods, ","))
}

func (h *fixture) take(req importer.Request) (importer.Result, error) {
	return h.takeWith(context.Background(), req)
}

func (h *fixture) takeWith(ctx context.Context, req importer.Request) (importer.Result, error) {
	req.Kind, req.Settings.Policy = kubelet.CPU, "static"
	return h.importer().Import(ctx, req)
}

// outcomes lists what became of the pods.
func outcomes(done importer.Result) (out []string) {
	for _, p := range done.Pods {
		out = append(out, p.Pod.UID()+" "+p.Outcome)
	}
	return out
}

func TestImportTakesOver(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.Restricted)
	pods := []workload.Pod{guaranteed("a", 2, 0), guaranteed("b", 1, 1), guaranteed("bystander", 1, 0)}
	req := importer.Request{Data: file("0,4-15", "a/main=1-2", "b/main=3"), Pods: pods}

	before := h.ledger.View()
	dry := req
	dry.DryRun = true
	would, err := h.take(dry)
	must(t, err)
	if h.ledger.View() != before || len(h.cgroups.pods) != 0 {
		t.Error("the dry run changed something")
	}
	done, err := h.take(req)
	must(t, err)
	want := []string{"a new", "b new"}
	if !reflect.DeepEqual(outcomes(would), want) || !reflect.DeepEqual(outcomes(done), want) {
		t.Errorf("dry run: %q, import: %q; want %q", outcomes(would), outcomes(done), want)
	}
	if got := h.ledger.View().Generation() - before.Generation(); got != 1 {
		t.Errorf("%d commits, want one", got)
	}
	if h.cpus("a") != "1-2" || h.cpus("b") != "3" || !h.cgroups.pods["a"] || !h.cgroups.pods["b"] || h.cgroups.pods["bystander"] {
		t.Errorf("a has %s, b has %s, cgroups %v", h.cpus("a"), h.cpus("b"), h.cgroups.pods)
	}
	record, _ := h.ledger.View().Pod("a")
	if record.QoS != workload.Guaranteed || record.CgroupParent != "/kubepods/poda" || record.AdmissionID == "" ||
		!has(ledger.StepCommitted, record.Trace) || !strings.Contains(record.Trace.Steps[0].Text, "cpu_manager_state") {
		t.Errorf("record %+v, trace %+v", record, record.Trace)
	}
	// What the file does not contain is reported, once.
	if n := done.Facts.Notes; len(n) != 1 || !strings.Contains(n[0], "b/main requests "+gpu) {
		t.Errorf("notes %q", n)
	}

	// The agent admits its pods again after the move: same answer, nothing new.
	if v := h.admit(t, pods[0]); !v.Repeated || v.Pod.Claims[0].CPUs.Set.String() != "1-2" {
		t.Errorf("admitted again: %+v", v)
	}
	// The same file again changes nothing, also without the pods.
	req.Pods = nil
	again, err := h.take(req)
	must(t, err)
	if want := []string{"a known", "b known"}; !reflect.DeepEqual(outcomes(again), want) || again.View != h.ledger.View() {
		t.Errorf("got %q, want %q", outcomes(again), want)
	}
}

// TestImportWithoutCgroups: pods that have no cgroups of their own are taken over, too.
func TestImportWithoutCgroups(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.Restricted)
	h.cgroups.none = true
	_, err := h.take(importer.Request{Data: file("0,3-15", "a/main=1-2"), Pods: []workload.Pod{guaranteed("a", 2, 0)}})
	must(t, err)
	if got := h.cpus("a"); got != "1-2" {
		t.Errorf("it has CPUs %s", got)
	}
}

func TestImportExtendsAPod(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.Restricted)
	// A pod that berth admitted into the shared pool, by a request that a kubelet
	// read otherwise.
	p := guaranteed("a", 2, 0)
	p.QoS = workload.Burstable
	h.admit(t, p)
	done, err := h.take(importer.Request{Data: file("0,3-15", "a/main=1-2")})
	must(t, err)
	if want := []string{"a extended"}; !reflect.DeepEqual(outcomes(done), want) || h.cpus("a") != "1-2" {
		t.Errorf("got %q with %s, want %q", outcomes(done), h.cpus("a"), want)
	}
	if tr, ok := h.ledger.View().TraceOfPod("a"); !ok || !strings.Contains(tr.Steps[0].Text, "taken over") {
		t.Errorf("trace %+v", tr)
	}
}

func TestImportRefuses(t *testing.T) {
	t.Parallel()
	other := guaranteed("known", 3, 0)
	bad := guaranteed("a", 1, 0)
	bad.Containers[0].Requests = workload.Quantities{workload.CPU: -1}
	for name, c := range map[string]struct {
		data  []byte
		pods  []workload.Pod
		class errdefs.Class
		words []string
	}{
		"overlap with the ledger": {file("0,3-15", "a/main=1-2"), []workload.Pod{guaranteed("a", 2, 0)},
			errdefs.Precondition, []string{"CPUs 1-2", "pod a", "pod known"}},
		"overlap in the file": {file("0,4-15", "a/main=5-6", "b/main=6"), []workload.Pod{guaranteed("a", 2, 0), guaranteed("b", 1, 0)},
			errdefs.Precondition, []string{"CPUs 6", "pod a", "pod b"}},
		"another set for a known pod": {file("0,4-15", "known/main=3"), nil,
			errdefs.Precondition, []string{"known/main holds CPUs 1-2", "CPUs 3"}},
		"another specification": {file("0,3-15", "known/main=1-2"), []workload.Pod{other},
			errdefs.Precondition, []string{"known", "another specification"}},
		"nobody's": {file("0,4-15", "ghost/main=5", "known/ghost=6"), nil,
			errdefs.Precondition, []string{"CPUs 5 of ghost/main", "CPUs 6 of known/ghost"}},
		"given twice": {file("0,4-15"), []workload.Pod{guaranteed("a", 1, 0), guaranteed("a", 1, 0)},
			errdefs.Invalid, []string{"pods[1].metadata.uid"}},
		"not well-formed": {file("0,4-15"), []workload.Pod{bad}, errdefs.Invalid, []string{"requests"}},
		"damaged":         {[]byte(`{"policyName":"static","defaultCpuSet":"0","checksum":1}`), nil, errdefs.Invalid, []string{"checksum"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newFixture(t, topology.BestEffort)
			h.admit(t, guaranteed("known", 2, 0))
			before := h.ledger.View()
			for _, dry := range []bool{true, false} {
				_, err := h.take(importer.Request{Data: c.data, Pods: c.pods, DryRun: dry})
				if class(t, err) != c.class {
					t.Errorf("class %v: %v", errdefs.ClassOf(err), err)
				}
				for _, w := range c.words {
					if !strings.Contains(err.Error(), w) {
						t.Errorf("%v: want %q in it", err, w)
					}
				}
			}
			if h.ledger.View() != before || len(h.cgroups.pods) != 1 {
				t.Error("a refused import changed something")
			}
		})
	}
}

func TestImportSkipsTheUnknown(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.Restricted)
	v1 := []byte(`{"policyName":"static","defaultCpuSet":"0,4-15","entries":{"id-a":"1-2","id-b":"3"}}`)
	req := importer.Request{
		Data: v1, Pods: []workload.Pod{guaranteed("a", 2, 0)},
		ContainerIDs: map[string]ledger.Owner{"id-a": {Pod: "a", Container: "main"}},
	}
	if _, err := h.take(req); class(t, err) != errdefs.Precondition || !strings.Contains(err.Error(), "CPUs 3 of container id id-b") {
		t.Errorf("got %v", err)
	}
	req.SkipUnknown = true
	done, err := h.take(req)
	must(t, err)
	if done.Facts.Format != 1 || len(done.Facts.Skipped) != 1 || h.cpus("a") != "1-2" || h.ledger.View().ExclusiveCPUs().String() != "1-2" {
		t.Errorf("got %+v; exclusive %s", done.Facts, h.ledger.View().ExclusiveCPUs())
	}
}

// TestImportReportsWhatRulesForbid: with force it is kept, as at a start.
func TestImportReportsWhatRulesForbid(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.Restricted)
	req := importer.Request{Data: file("1-15", "a/main=0"), Pods: []workload.Pod{guaranteed("a", 1, 0)}}
	if _, err := h.take(req); class(t, err) != errdefs.Precondition || !strings.Contains(err.Error(), "reserved") {
		t.Errorf("without force: %v", err)
	}
	req.Force = true
	done, err := h.take(req)
	must(t, err)
	if len(done.Findings) != 1 || done.Findings[0].Rule != check.RuleReserved || h.cpus("a") != "0" {
		t.Errorf("findings %v", done.Findings)
	}
	if n := strings.Join(done.Facts.Notes, "\n"); !strings.Contains(n, "would not accept") {
		t.Errorf("notes %s", n)
	}
	_, _, err = h.Remove(context.Background(), "a", admission.Scope{}) // the ledger is checked at the end
	must(t, err)

	// A shared pool that nothing is left of is the CPU manager's to point out.
	all := []workload.Pod{guaranteed("a", 16, 0), {UID: "s", Name: "s", Containers: []workload.Container{{Name: "c"}}}}
	h.admit(t, all[1])
	done, err = h.take(importer.Request{Data: file("", "a/main=0-15"), Pods: all[:1], Force: true})
	must(t, err)
	if !slices.ContainsFunc(done.Findings, func(f check.Finding) bool {
		return f.Rule == check.RuleValidator && strings.Contains(f.Text, "shared pool would be empty")
	}) {
		t.Errorf("findings %v", done.Findings)
	}
	_, _, err = h.Remove(context.Background(), "a", admission.Scope{})
	must(t, err)
}

func TestImportIsUndone(t *testing.T) {
	t.Parallel()
	h := build(t, topology.Restricted, ledgertest.NewJournal())
	before := h.ledger.View()
	h.cgroups.fail["ensure"] = errors.New("no room")
	req := importer.Request{Data: file("0,3-15", "a/main=1", "b/main=2"),
		Pods: []workload.Pod{guaranteed("a", 1, 0), guaranteed("b", 1, 0)}}
	if _, err := h.take(req); err == nil || !strings.Contains(err.Error(), "make the cgroup of pod a: no room") {
		t.Errorf("got %v", err)
	}
	h.journal.FailNext(1, errors.New("disk full"))
	if _, err := h.take(req); class(t, err) != errdefs.Unavailable {
		t.Errorf("got %v", err)
	}
	if h.ledger.View() != before || len(h.cgroups.pods) != 0 {
		t.Errorf("left: %v", h.cgroups.pods)
	}
	_, err := h.take(req)
	must(t, err)
}

// TestImportIsPlannedAgain lets the ledger move between the plan and the
// commit: the import is made again.
func TestImportIsPlannedAgain(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.Restricted)
	h.cgroups.during = func() {
		h.cgroups.during = nil
		_, err := h.ledger.Update(context.Background(), func(d *ledger.Draft) error {
			d.PutResource(ledger.SeenResource{Name: "example.com/x"})
			return nil
		})
		must(t, err)
	}
	done, err := h.take(importer.Request{Data: file("0,2-15", "a/main=1"), Pods: []workload.Pod{guaranteed("a", 1, 0)}})
	must(t, err)
	if done.View.Generation() != 2 || h.cpus("a") != "1" {
		t.Errorf("generation %d, a has %s", done.View.Generation(), h.cpus("a"))
	}
}

// TestImportHoldsUpNobody: claim records are the kernel's, or wait for who writes there.
// Others are admitted meanwhile, and an import that would have what they got is refused.
func TestImportHoldsUpNobody(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ known, want string }{{"", ""}, {"a", "CPU"}} {
		h := newFixture(t, topology.BestEffort)
		if c.known != "" { // its claim is not reserved, as the pod is not on its way in
			_, err := h.ledger.Update(t.Context(), func(d *ledger.Draft) error {
				p := ledgertest.Pod("a")
				p.Pod.Containers = guaranteed("a", 1, 0).Containers
				d.PutPod(p)
				return nil
			})
			must(t, err)
		}
		var v admission.Verdict
		var err error
		h.cgroups.recording = func() {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			v, err = h.Admit(ctx, admission.Request{Pod: guaranteed("b", 1, 0)})
		}
		req := importer.Request{Data: file("0,2-15", "a/main=1")}
		if c.known == "" {
			req.Pods = []workload.Pod{guaranteed("a", 1, 0)}
		}
		_, failed := h.take(req)
		if err != nil || v.Outcome != admission.Admitted {
			t.Errorf("while a claim record is written: %+v, %v", v, err)
		}
		if c.want == "" && failed != nil || c.want != "" && (failed == nil || !strings.Contains(failed.Error(), c.want)) {
			t.Errorf("import: %v, want %q", failed, c.want)
		}
		h.nothingReserved(t)
	}
}

// TestImportWaitsForWhatItNames: an import does not touch a pod while another call is at
// it, also if the pod is known already and was not sent.
func TestImportWaitsForWhatItNames(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	h.admit(t, burstable("s", 500, 1<<20))
	tried := 0
	h.cgroups.resizing = func() {
		h.cgroups.resizing = nil
		tried++
		hasty, cancel := context.WithCancel(t.Context())
		cancel()
		for _, sent := range [][]workload.Pod{nil, {guaranteed("z", 2, 0)}} {
			_, err := h.importer().Import(hasty, importer.Request{
				Kind: kubelet.CPU, Data: file("0,3-15", "s/main=1-2"), Settings: kubelet.Settings{Policy: "static"}, Pods: sent,
			})
			if err == nil || !strings.Contains(err.Error(), "wait for another operation on pod s") {
				t.Errorf("with %d pods: %v", len(sent), err)
			}
		}
	}
	_, err := h.Resize(t.Context(), resizeTo(burstable("s", 700, 1<<20), false))
	must(t, err)
	if tried != 1 {
		t.Error("nothing was resized")
	}
	for _, uid := range []string{"s", "z"} {
		if _, _, err := h.Remove(t.Context(), uid, admission.Scope{}); err != nil {
			t.Errorf("a lock is left: %v", err)
		}
	}
}

// TestImportOfPodLevelFormats: entries that a kubelet writes with the feature gate
// PodLevelResourceManagers are refused where the gate is off here.
func TestImportOfPodLevelFormats(t *testing.T) {
	t.Parallel()
	cpuFile, err := (&kubelet.CPUState{Policy: "static", Shared: cpuset.Range(0, 13),
		Pods: map[string]cpuset.Set{"a": cpuset.Range(14, 15)}}).Marshal(4)
	must(t, err)
	memoryFile, err := (&kubelet.MemoryState{Policy: "Static", Pods: map[string][]kubelet.MemoryBlock{"a": nil}}).Marshal(3)
	must(t, err)
	for _, gate := range []bool{false, true} {
		h := newFixture(t, topology.Restricted)
		h.Features = workload.Features{PodLevelResources: true, PodLevelResourceManagers: gate}
		before := h.ledger.View()
		for kind, data := range map[kubelet.Kind][]byte{kubelet.CPU: cpuFile, kubelet.Memory: memoryFile} {
			_, err := h.importer().Import(t.Context(), importer.Request{Kind: kind, Data: data,
				Settings: kubelet.Settings{Policy: "static"}, SkipUnknown: true})
			refused := err != nil && strings.Contains(err.Error(), "PodLevelResourceManagers")
			if refused == gate || refused && (errdefs.ClassOf(err) != errdefs.Precondition || h.ledger.View() != before) {
				t.Errorf("%s, gate %t: %v", kind, gate, err)
			}
		}
	}
}

// importer returns an importer on the fixture's engine.
func (h *fixture) importer() importer.Importer { return importer.Importer{Engine: h.Engine.Engine} }
