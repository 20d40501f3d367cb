package main

import (
	"strings"
	"testing"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	"github.com/berthd/berth/hack/plugin/script"
)

// TestEndWaitsForAdmissions tells berthd to end while a plugin is asked for
// devices: the connection to the plugin outlasts the admission, so what becomes of
// the pod is the plugin's doing and not that of the end.
func TestEndWaitsForAdmissions(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.configure("providers: {allocateTimeout: 2s}\n")
	d := n.start()
	p := d.plugin("g0")
	p.Behave(script.Allocate, script.Hang)
	type answer struct {
		resp *admissionv1.AdmitResponse
		err  error
	}
	answered := make(chan answer, 1)
	go func() {
		resp, err := d.admission.Admit(n.ctx(), &admissionv1.AdmitRequest{Pod: withDevice("x", gpu)})
		answered <- answer{resp, err}
	}()
	if _, err := p.Await(n.ctx(), script.Allocate, 1); err != nil {
		t.Fatal(err)
	}
	d.stop()
	got := <-answered
	if got.err != nil || !strings.Contains(got.resp.GetMessage(), "did not answer Allocate within 2s") {
		t.Errorf("%s: %s, %v", got.resp.GetVerdict(), got.resp.GetMessage(), got.err)
	}
	d = n.start()
	if d.trace("x").GetMessage() != got.resp.GetMessage() {
		t.Errorf("the next daemon remembers %q", d.trace("x").GetMessage())
	}
	d.check()
}
