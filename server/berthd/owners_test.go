package main

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
)

// TestTwoAgents: two agents side by side, over a crash of berthd and the loss of its
// ledger. An agent's SyncPods has no effect on the other's pods.
func TestTwoAgents(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.needKernel()
	d := n.start()
	admit := func(uid, owner string) {
		t.Helper()
		answer, err := d.admission.Admit(d.ctx(), &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: burstable(uid)},
			Owner: owner})
		if err != nil || answer.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
			t.Fatalf("pod %s of %s: %v, %v", uid, owner, err, answer)
		}
	}
	sync := func(owner string, living ...string) {
		t.Helper()
		if _, err := d.admission.SyncPods(d.ctx(), &admissionv1.SyncPodsRequest{
			ActivePodUids: living, AllowEmpty: len(living) == 0, KnownRevision: d.revision(), Owner: owner,
		}); err != nil {
			t.Fatal(err)
		}
	}
	left := func(want string) {
		t.Helper()
		var got []string
		for uid, p := range d.pods() {
			got = append(got, uid+" of "+p.GetOwner())
		}
		slices.Sort(got)
		if text := strings.Join(got, ", "); text != want {
			t.Errorf("left are %s; want %s", text, want)
		}
	}
	admit("k1", "kubernetes")
	admit("b1", "berthlet")
	admit("b2", "berthlet")
	mine, theirs := n.stopped(), n.stopped()
	d.run(mine, "b1", "main", "id-b1")
	d.run(theirs, "k1", "main", "id-k1")

	sync("berthlet", "b1")
	left("b1 of berthlet, k1 of kubernetes")
	if _, err := d.admission.RemovePod(d.ctx(), &admissionv1.RemovePodRequest{PodUid: "k1",
		Owner: "berthlet"}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("berthlet removes a pod of kubernetes: %v", err)
	}
	d.kill()
	d = n.start()
	sync("kubernetes", "k1")
	left("b1 of berthlet, k1 of kubernetes")

	// Without the ledger the claim records have the owners of the pods.
	d.kill()
	ledgerFaults["removed"](n)
	d = n.start()
	sync("berthlet")
	if mine.alive() || !theirs.alive() {
		t.Errorf("alive after berthlet has said that it has no pods: its own %v, kubernetes' %v", mine.alive(), theirs.alive())
	}
	if got := slices.Sorted(maps.Keys(n.podCgroups())); len(got) != 1 {
		t.Errorf("cgroups of %v, want only that of k1", got)
	}
	if _, err := d.admission.Admit(d.ctx(), &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: burstable("k1")},
		Owner: "berthlet"}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("berthlet admits a pod of kubernetes: %v", err)
	}
	admit("k1", "kubernetes")
	left("k1 of kubernetes")
	sync("kubernetes")
	left("")
}
