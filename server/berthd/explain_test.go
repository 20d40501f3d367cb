package main

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

// trace returns the explanation of a pod's last admission.
func (d *daemon) trace(uid string) *typesv1.Trace {
	d.t.Helper()
	resp, err := d.inspect.GetTrace(d.ctx(), &inspectv1.GetTraceRequest{Subject: &inspectv1.GetTraceRequest_PodUid{PodUid: uid}})
	if err != nil {
		d.t.Fatal(err)
	}
	return resp.GetTrace()
}

// A rejection names what is missing, who holds it and what would help; following
// that helps; and all of it is there after a crash.
func TestRejectionIsExplainedAndRemembered(t *testing.T) {
	t.Parallel()
	needCPUs(t, 2)
	n := newNode(t)
	d := n.start()
	d.plugin("g0 g1")
	d.admitted(guaranteed("holder", 1, 1))
	cpus := runtime.NumCPU() - 1
	resp := d.admit(guaranteed("large", cpus, 2))
	if resp.GetVerdict() != admissionv1.Verdict_VERDICT_REJECTED {
		t.Fatalf("%s", resp.GetVerdict())
	}
	steps := resp.GetTrace().GetSteps()
	missing := map[string]*typesv1.Shortage{}
	for _, s := range steps[len(steps)-1].GetShortages() {
		missing[s.GetResource()] = s
	}
	for resource, need := range map[string]int{"cpu": cpus, gpu: 2} {
		s := missing[resource]
		holders := ""
		for _, h := range s.GetHolders() {
			holders += h.GetPodUid() + "/" + h.GetContainerName() + " "
		}
		if s.GetNeed() != uint64(need) || s.GetFree() != uint64(need-1) || holders != "holder/main " {
			t.Errorf("shortage of %s: %v", resource, s)
		}
	}
	if words := strings.Join(resp.GetTrace().GetMissing(), "; "); strings.Count(words, "held by default/holder/main") != 2 {
		t.Errorf("in words: %s", words)
	}
	list, err := d.inspect.ListTraces(n.ctx(), &inspectv1.ListTracesRequest{Refused: true})
	if err != nil || len(list.GetTraces()) != 1 || !slices.Equal(list.GetTraces()[0].GetMissing(), resp.GetTrace().GetMissing()) {
		t.Errorf("the list of rejections says %v, %v", list, err)
	}
	dry, err := d.admission.Admit(n.ctx(),
		&admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: guaranteed("large", cpus, 2)}, DryRun: true})
	if err != nil || len(dry.GetTrace().GetSuggestions()) != len(resp.GetTrace().GetSuggestions()) {
		t.Errorf("a dry run suggests %v, %v", dry.GetTrace().GetSuggestions(), err)
	}
	if kept := d.trace("large"); !proto.Equal(kept, resp.GetTrace()) {
		t.Errorf("kept is\n%v\nanswered was\n%v", kept, resp.GetTrace())
	}
	d.kill()
	d = n.start()
	if kept := d.trace("large"); !proto.Equal(kept, resp.GetTrace()) {
		t.Errorf("after a crash\n%v\nbefore\n%v", kept, resp.GetTrace())
	}
	if first := d.trace("holder"); !first.GetAdmitted() {
		t.Errorf("the holder's admission is remembered as %v", first)
	}

	var removal *typesv1.Suggestion
	for _, s := range resp.GetTrace().GetSuggestions() {
		if s.GetKind() == typesv1.SuggestionKind_SUGGESTION_KIND_REMOVAL {
			removal = s
		}
	}
	if fmt.Sprint(removal.GetRemovePodUids()) != "[holder]" {
		t.Fatalf("suggestions: %v", resp.GetTrace().GetSuggestions())
	}
	d.plugin("g0 g1")
	d.remove("holder")
	d.admitted(guaranteed("large", cpus, 2))
	d.check()
}
