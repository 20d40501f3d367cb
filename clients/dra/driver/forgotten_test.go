package driver

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

// usedBy admits a pod whose container uses a claim, as berth-nri does.
func (p *place) usedBy(pod, claim string) {
	p.t.Helper()
	p.admitPod(pod, []*admissionv1.ExternalDevices{{ContainerName: "main",
		Devices: []*typesv1.ExternalDevice{{Resource: Kind, Id: claim + ":place"}}}}, &typesv1.Container{Name: "main"})
}

// TestForgottenClaims: a claim that the API server does not have, and that no container uses, is released after a while, whether it has
// a CDI file or not. All others stay.
func TestForgottenClaims(t *testing.T) {
	t.Parallel()
	elsewhere := allocated("a", 0, 6, "1Gi")
	elsewhere.Status.Allocation.Devices.Results[1].Pool = "another"
	unallocated := allocated("a", 0, 6, "1Gi")
	unallocated.Status.Allocation = nil
	for _, row := range []struct {
		name    string
		claim   *resourceapi.ResourceClaim // what the API server has of claim a
		change  func(p *place)
		release bool
	}{
		{name: "does not exist", release: true},
		{name: "another one has its name",
			claim: func() *resourceapi.ResourceClaim { c := allocated("b", 0, 6, "1Gi"); c.Name = "claim-a"; return c }(), release: true},
		{name: "not allocated", claim: unallocated, release: true},
		{name: "allocated elsewhere", claim: elsewhere, release: true},
		{name: "allocated here", claim: allocated("a", 0, 6, "1Gi")},
		{name: "used by a container", change: func(p *place) { p.usedBy("pod", "a") }},
		{name: "the kubelet is not ready", change: func(p *place) { p.api.ready = corev1.ConditionFalse }},
		{name: "the node was booted", change: func(p *place) {
			if err := p.files.remove("a"); err != nil {
				p.t.Fatal(err)
			}
			p.startDriver()
		}, release: true},
		{name: "berthd has lost it", change: func(p *place) { p.lose() }, release: true},
		{name: "berthd has lost the ledger, and the file is gone", change: func(p *place) {
			if err := p.files.remove("a"); err != nil {
				p.t.Fatal(err)
			}
			p.loseOnly("/state")
			p.startDriver()
		}, release: true},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t, "")
			if r := p.prepared(allocated("a", 0, 6, "1Gi")); r.Err != nil {
				t.Fatal(r.Err)
			}
			p.api.claims = map[string]*resourceapi.ResourceClaim{"default/claim-a": row.claim}
			if row.change != nil {
				row.change(p)
			}
			now := time.Unix(1, 0)
			for _, wait := range []time.Duration{0, grace - 1} {
				if err := p.forget(t.Context(), now.Add(wait)); err != nil {
					t.Fatal(err)
				}
				if r := p.prepared(allocated("b", 0, 1, "1Gi")); r.Err == nil {
					t.Fatalf("claim a is released after %v", wait)
				}
			}
			if err := p.forget(t.Context(), now.Add(grace)); err != nil {
				t.Fatal(err)
			}
			if r := p.prepared(allocated("b", 0, 1, "1Gi")); (r.Err == nil) != row.release {
				t.Errorf("%v, want a release: %v", r.Err, row.release)
			}
			if row.release {
				p.want("claim a is released", "b: 1")
			}
		})
	}
}

// TestAllocatedAgain: the kubelet has lost its state of claims, and a claim that is prepared is allocated on this node again, on another
// NUMA node or with another amount. Its old allocation is released, although the kubelet wants it prepared meanwhile.
func TestAllocatedAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]*resourceapi.ResourceClaim{
		"another NUMA node": allocated("a", 1, 2, "1Gi"), "other CPUs": allocated("a", 0, 3, "1Gi"),
		"other memory":    allocated("a", 0, 2, "2Gi"),
		"another device":  with(allocated("a", 0, 2, "1Gi"), allocated("a", 1, 1, "1Gi")),
		"another request": under("other", allocated("a", 0, 2, "1Gi")),
	} {
		for file, have := range map[string]func(*place){"with a file": func(*place) {}, "without a file": func(p *place) {
			if err := p.files.remove("a"); err != nil {
				t.Fatal(err)
			}
			p.startDriver()
		}} {
			p := newPlace(t, "")
			if r := p.prepared(allocated("a", 0, 2, "1Gi")); r.Err != nil {
				t.Fatal(r.Err)
			}
			have(p)
			p.api.claims = map[string]*resourceapi.ResourceClaim{"default/claim-a": c}
			for _, now := range []time.Duration{0, grace / 2, grace} {
				if r := p.prepared(c); r.Err == nil || !strings.Contains(r.Err.Error(), "prepared with another allocation") {
					t.Errorf("%s, %s: after %v: %v", name, file, now, r.Err)
				}
				if err := p.forget(t.Context(), time.Unix(1, 0).Add(now)); err != nil {
					t.Fatal(err)
				}
			}
			if r := p.prepared(c); r.Err != nil {
				t.Errorf("%s, %s: %v", name, file, r.Err)
			}
		}
	}
}

// TestForgottenForAMoment: the time counts from the last answer without the claim in a row, and begins again when the claim is prepared.
// Without an answer nothing is released.
func TestForgottenForAMoment(t *testing.T) {
	t.Parallel()
	p := newPlace(t, "")
	c := allocated("a", 0, 2, "1Gi")
	if r := p.prepared(c); r.Err != nil {
		t.Fatal(r.Err)
	}
	at := func(minutes int) {
		t.Helper()
		if err := p.forget(t.Context(), time.Unix(0, 0).Add(time.Duration(minutes)*time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	at(0)
	p.api.claims = map[string]*resourceapi.ResourceClaim{"default/claim-a": c}
	at(5)
	p.api.claims = nil
	at(10)
	at(15)
	p.want("it was there after 5 minutes", "a: 1,9")
	if r := p.prepared(c); r.Err != nil {
		t.Fatal(r.Err)
	}
	at(21)
	read := p.ReadClaim
	p.ReadClaim = func(context.Context, string, string) (*resourceapi.ResourceClaim, error) {
		return nil, errors.New("away")
	}
	if err := p.forget(t.Context(), time.Unix(0, 0).Add(time.Hour)); err == nil {
		t.Error("the API server does not answer")
	}
	p.want("it was prepared after 15 minutes, and nobody has answered later", "a: 1,9")
	p.ReadClaim = read
	at(61)
	p.want("it has not existed since 21 minutes", "")
}
