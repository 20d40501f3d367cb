package main

import (
	"context"
	"fmt"
	"github.com/berthd/berth/clients/berth"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
	"github.com/berthd/berth/hack/testing/script"
)

// hung is an admission that waits for a plugin.
type hung struct {
	cancel context.CancelFunc
	ended  chan string
}

// admitHung admits a pod whose plugin hangs, until the test ends the call.
func (d *daemon) admitHung(uid string) *hung {
	ctx, cancel := context.WithCancel(d.ctx())
	h := &hung{cancel, make(chan string, 1)}
	go func() {
		resp, err := d.admission.Admit(ctx, &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: withDevice(uid, gpu)}})
		h.ended <- fmt.Sprintf("%v %s, %v", resp.GetVerdict(), resp.GetMessage(), err)
	}()
	d.t.Cleanup(cancel)
	return h
}

// stillHangs fails the test if the admission has ended.
func (h *hung) stillHangs(t *testing.T, after string) {
	t.Helper()
	select {
	case how := <-h.ended:
		t.Fatalf("after %s the plugin does not hang any more: %s", after, how)
	default:
	}
}

// TestHungPlugin: a plugin hangs at one of its calls, and the agent tries again. Who
// does not need it is served meanwhile: all calls here are answered before the
// plugin is.
func TestHungPlugin(t *testing.T) {
	t.Parallel()
	for _, at := range []script.Method{script.Allocate, script.Preferred} {
		t.Run(string(at), func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.configure("providers: {callTimeout: 1h, allocateTimeout: 1h}\n")
			d := n.start("--topology-manager-policy", "single-numa-node")
			const nic = "example.com/nic"
			p, _ := n.runPlugin(script.Config{Resource: gpu, Preferred: true}, "g0 g1 g2")
			n.runPlugin(script.Config{Resource: nic, Preferred: true}, "n0 n1 n2")
			d.expectResource(gpu, "connected", 3, 3)
			d.expectResource(nic, "connected", 3, 3)
			d.admitted(guaranteed("old", 0, 0))
			d.admitted(burstable("shared"))
			p.Behave(at, script.Hang)
			first, again := d.admitHung("hung"), d.admitHung("hung")
			if _, err := p.Await(d.ctx(), at, 1); err != nil {
				t.Fatal(err)
			}

			d.admitted(withDevice("network", nic))
			first.stillHangs(t, "an admission with another plugin")
			d.admitted(guaranteed("plain", 0, 0))
			first.stillHangs(t, "an admission without devices")
			larger := burstable("shared")
			larger.Spec.Containers[0].Resources.Requests["cpu"] = "150m"
			if v, err := d.admission.Resize(d.ctx(), berth.ResizeTo(larger)); err != nil ||
				v.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
				t.Errorf("resize: %v, %v", v, err)
			}
			first.stillHangs(t, "a resize")
			sync, err := d.admission.SyncPods(d.ctx(), &admissionv1.SyncPodsRequest{ActivePodUids: []string{"network", "plain", "shared",
				"hung"}, KnownRevision: d.revision()})
			if err != nil || !slices.Equal(sync.GetRemovedPodUids(), []string{"old"}) {
				t.Errorf("sync: %v, %v", sync, err)
			}
			first.stillHangs(t, "a sync")
			if done := d.setPolicy(&topologyv1.SetPolicyRequest{TopologyScope: new("pod")}); !done.GetChanged() {
				t.Errorf("policy: %v", done)
			}
			first.stillHangs(t, "a change of policy")
			calls := len(p.Calls(script.Preferred))
			refused := d.admit(guaranteed("toomuch", 1000, 1))
			if refused.GetReason() != "TopologyAffinityError" || refused.GetTrace().GetTried() == 0 ||
				len(p.Calls(script.Preferred)) != calls {
				t.Errorf("%s %s, tried %d, the plugin was called %d times", refused.GetReason(), refused.GetMessage(),
					refused.GetTrace().GetTried(), len(p.Calls(script.Preferred))-calls)
			}
			first.stillHangs(t, "a rejection")
			again.stillHangs(t, "all that")
			d.remove("plain")

			first.cancel()
			again.cancel()
			for _, h := range []*hung{first, again} {
				if how := <-h.ended; !strings.Contains(how, status.Error(codes.Canceled, "").Error()[:len("rpc error: code = Canceled")]) {
					t.Errorf("a caller that gave up: %s", how)
				}
			}
			p.Behave(at, script.Well)
			d.admitted(withDevice("hung", gpu))
			d.check()
		})
	}
}

// TestReservedForAnother: what a pod is about to get is reserved. A pod that would fit
// without that waits until its deadline, and its message names the pod.
func TestReservedForAnother(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	d := n.start()
	p, _ := n.runPlugin(script.Config{Resource: gpu}, "g0")
	d.expectResource(gpu, "connected", 1, 1)
	p.Behave(script.Allocate, script.Hang)
	first := d.admitHung("first")
	if _, err := p.Await(d.ctx(), script.Allocate, 1); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(d.ctx(), 2*time.Second)
	defer cancel()
	resp, err := d.admission.Admit(ctx, &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: withDevice("second", gpu)}})
	if err != nil || resp.GetVerdict() != admissionv1.Verdict_VERDICT_DEFERRED ||
		resp.GetCondition().GetReason() != "AdmissionsInFlight" || !strings.HasSuffix(resp.GetMessage(), ": first") {
		t.Errorf("%v, %v", resp, err)
	}
	first.stillHangs(t, "that")
	// When the first one is given up, the next one gets the device, in the same call.
	second := make(chan *admissionv1.AdmitResponse, 1)
	go func() {
		resp, _ := d.admission.Admit(d.ctx(),
			&admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: withDevice("second", gpu)}})
		second <- resp
	}()
	p.Behave(script.Allocate, script.Well)
	first.cancel()
	if resp := <-second; resp.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
		t.Errorf("%v", resp)
	}
	d.check()
}
