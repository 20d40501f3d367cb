package admission_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/hint/hinttest"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// registrar is a lessor that refuses a slot which another admission has reserved, as a
// provider with a usage table of its own does, and notes the requests that it gets.
type registrar struct {
	lessor
	by    map[string]string // admission by slot
	asked []string
	fail  error // once, after it has reserved
}

func (r *registrar) Prepare(ctx context.Context, id string, req hint.Request, claims []ledger.Claim) ([]ledger.Claim, error) {
	for _, c := range claims {
		for _, slot := range c.Devices.IDs() {
			r.asked = append(r.asked, id+" "+c.Owner.Container+" "+slot)
			if by := r.by[slot]; by != "" && by != id {
				return nil, errdefs.Refuse("", "slot %s is reserved for admission %s", slot, by)
			}
			r.by[slot] = id
		}
	}
	if err := r.fail; err != nil {
		r.fail = nil
		return nil, err
	}
	return r.Slots.Prepare(ctx, id, req, claims)
}

func (r *registrar) Abort(_ context.Context, id string) { r.heard = append(r.heard, "abort "+id) }

// takenOverWithSlots is a fixture with a pod of two containers that was taken over with a slot and
// a GPU in each; the provider of slots has the pod's admission.
func takenOverWithSlots(t *testing.T, mode hint.Mode) (*fixture, *registrar) {
	t.Helper()
	h := newFixture(t, topology.BestEffort)
	r := &registrar{
		lessor: lessor{Slots: hinttest.Slots{At: map[string]int{"s": 0, "z": 1}}, until: 1060},
		by:     map[string]string{"s": "adm-u", "z": "adm-u"},
	}
	bus, err := hint.NewBus(nil, append(h.bus.Load().Entries(), hint.Entry{Provider: r, Mode: mode}), nil)
	must(t, err)
	h.bus.Store(bus)
	q := workload.Quantities{gpu: 1, hinttest.SlotResource: 1, workload.CPU: 100}
	pod := workload.Pod{UID: "u", Name: "u", Namespace: "default", Containers: []workload.Container{
		{Name: "main", Requests: q, Limits: q}, {Name: "side", Requests: q, Limits: q},
	}}
	record := &ledger.Pod{Pod: pod, AdmissionID: "adm-u"}
	for i, name := range []string{"main", "side"} {
		owner := ledger.Owner{Pod: "u", Container: name}
		record.Claims = append(
			record.Claims,
			ledger.Claim{Owner: owner, Provider: "device", Resource: gpu, Devices: &ledger.Devices{
				Devices: []ledger.Device{{ID: []string{"g0", "g2"}[i]}}, Response: []byte("known"),
			}},
			ledger.Claim{Owner: owner, Provider: "slots", Resource: string(hinttest.SlotResource), Devices: &ledger.Devices{
				Devices: []ledger.Device{{ID: []string{"s", "z"}[i]}}, Answer: "not known",
			}},
		)
	}
	_, err = h.ledger.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(record); return nil })
	must(t, err)
	return h, r
}

// TestCompleteIsTheSameAdmission: a provider that answers late or whose answer is lost is
// called again under the pod's own admission, for the claims that lack an answer, and what
// it reserves is confirmed by a lease.
func TestCompleteIsTheSameAdmission(t *testing.T) {
	t.Parallel()
	h, r := takenOverWithSlots(t, hint.Required)
	r.fail = errors.New("the connection broke")
	if err := h.Complete(t.Context(), "u"); err == nil || !strings.Contains(err.Error(), "the connection broke") {
		t.Fatalf("%v", err)
	}
	if want := []string{"abort adm-u"}; !slices.Equal(r.heard, want) {
		t.Errorf("after a failure the provider heard %q, want %q", r.heard, want)
	}
	must(t, h.Complete(t.Context(), "u"))
	must(t, h.Complete(t.Context(), "u"))
	if want := []string{"adm-u main s", "adm-u main s", "adm-u side z"}; !slices.Equal(r.asked, want) {
		t.Errorf("asked %q, want %q", r.asked, want)
	}
	if len(h.plugins.calls) > 0 {
		t.Errorf("a plugin whose answer is known was asked: %q", h.plugins.calls)
	}
	leases := slices.Collect(h.ledger.View().Leases())
	if len(leases) != 1 || leases[0].AdmissionID != "adm-u" {
		t.Errorf("leases %+v", leases)
	}
	p, _ := h.ledger.View().Pod("u")
	for _, c := range p.Claims {
		if c.Devices.Response == nil {
			t.Errorf("no answer about %s of %s", c.Resource, c.Owner)
		}
	}
}

// TestCompleteWithoutAnAnswer: an advisory provider that fails leaves the pod what it
// runs with, and the caller hears of it.
func TestCompleteWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	h, r := takenOverWithSlots(t, hint.Advisory)
	r.fail = errors.New("the connection broke")
	err := h.Complete(t.Context(), "u")
	if errdefs.ClassOf(err) != errdefs.Unavailable || !strings.Contains(err.Error(), "the connection broke") {
		t.Fatalf("%v", err)
	}
	if p, _ := h.ledger.View().Pod("u"); len(p.Claims) != 4 {
		t.Errorf("claims %+v", p.Claims)
	}
	must(t, h.Complete(t.Context(), "u"))
}

// TestCompleteIsNotKept: where the answers cannot be committed the provider hears of it.
func TestCompleteIsNotKept(t *testing.T) {
	t.Parallel()
	h, r := takenOverWithSlots(t, hint.Required)
	h.journal.FailNext(1, errdefs.Unavailablef("disk"))
	if err := h.Complete(t.Context(), "u"); errdefs.ClassOf(err) != errdefs.Unavailable {
		t.Fatalf("%v", err)
	}
	if want := []string{"abort adm-u"}; !slices.Equal(r.heard, want) {
		t.Errorf("heard %q, want %q", r.heard, want)
	}
	_, err := h.Admit(t.Context(), admission.Request{Pod: guaranteed("b", 1, 0)})
	must(t, err)
}

// TestComplete: a plugin is called for its answer when a reader needs it, with exactly the
// devices that the pod runs with, and once.
func TestComplete(t *testing.T) {
	t.Parallel()
	h := build(t, topology.BestEffort, ledgertest.NewJournal())
	h.found(t, ledger.UnknownLivePod{UID: "u", Source: ledger.FromKernel, Claims: owned("main", "5-6"), DevicesUnknown: true})
	_, err := h.Admit(t.Context(), admission.Request{Pod: guaranteed("u", 2, 1), RunningAllocations: []admission.RunningAllocation{
		{Container: "main", Devices: map[string][]string{gpu: {"g3"}}},
	}})
	must(t, err)
	response := func() []byte {
		p, _ := h.ledger.View().Pod("u")
		c, _ := p.Claim("main", gpu)
		if !slices.Equal(c.Devices.IDs(), []string{"g3"}) {
			t.Errorf("devices %q", c.Devices.IDs())
		}
		return c.Devices.Response
	}
	if got := response(); got != nil {
		t.Errorf("the plugin was asked: %q", got)
	}
	for range 2 {
		must(t, h.Complete(t.Context(), "u"))
		must(t, h.Complete(t.Context(), "nobody"))
	}
	if got := response(); len(got) == 0 {
		t.Error("the plugin was not asked")
	}
}
